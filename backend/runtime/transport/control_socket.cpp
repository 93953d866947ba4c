// SPDX-License-Identifier: Apache-2.0
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/runtime/transport/address.h"
#include "backend/runtime/transport/control_channel.h"
#include "backend/runtime/transport/socket_channel.h"

namespace bulkhead::runtime {
namespace {

/// A connector connects anew to whoever acknowledges nothing for so long: TCP waits twice as long
/// before each repetition, and finds a network that is whole again as long after that as it was
/// away. Several repetitions have their turn within it.
constexpr MonoNs kAnswerWithin = 3 * kSecond;

class SocketListener final : public ControlListener {
  public:
    SocketListener(Reactor& reactor, UniqueFd fd, ChannelOptions options, AcceptChannel accept)
        : reactor_(reactor),
          fd_(std::move(fd)),
          address_(localAddress(fd_.get())),
          options_(std::move(options)),
          accept_(std::make_shared<AcceptChannel>(std::move(accept))) {
        options_.firstMessage = kMaxFirstMessage;
    }

    ~SocketListener() override {
        if (timer_ != 0) reactor_.cancel(timer_);
        reactor_.unwatch(fd_.get());
        if (address_.starts_with("unix:")) ::unlink(address_.c_str() + std::strlen("unix:"));
    }

    absl::Status watch() {
        return reactor_.watch(fd_.get(), EPOLLIN, [this](uint32_t) { onReadable(); });
    }

    std::string address() const override { return address_; }

  private:
    void pause(MonoNs forNs) {
        reactor_.unwatch(fd_.get());
        timer_ = reactor_.after(forNs, [this] {
            timer_ = 0;
            watch().IgnoreError();
        });
    }

    void onReadable() {
        if (options_.faults != nullptr && options_.faults->isCut())
            return pause(options_.faults->cutUntil() - reactor_.now());
        const std::weak_ptr<AcceptChannel> alive = accept_;
        while (true) {
            UniqueFd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
            if (!fd.valid()) {
                if (errno == ECONNABORTED || errno == EINTR) continue;
                // Out of descriptors: the connection stays pending, look again a little later.
                if (errno != EAGAIN) pause(100 * kMillisecond);
                return;
            }
            const std::shared_ptr<AcceptChannel> accept = accept_;
            (*accept)(std::make_unique<SocketChannel>(reactor_, std::move(fd), options_));
            if (alive.use_count() <= 1) return;  // only our own copy: the listener is gone
        }
    }

    Reactor& reactor_;
    UniqueFd fd_;
    const std::string address_;
    ChannelOptions options_;
    Reactor::TimerId timer_ = 0;
    std::shared_ptr<AcceptChannel> accept_;
};

class SocketConnector final : public ControlConnector {
  public:
    SocketConnector(Reactor& reactor, std::string address, ChannelOptions options,
                    ConnectedChannel done)
        : reactor_(reactor),
          address_(std::move(address)),
          options_(std::move(options)),
          done_(std::move(done)) {
        deadline_ = reactor_.after(options_.connectTimeout, [this] {
            deadline_ = 0;
            finish(absl::DeadlineExceededError(
                absl::StrCat("connecting to ", address_, " took too long")));
        });
        begin_ = reactor_.after(0, [this] { begin(); });
    }

    ~SocketConnector() override { release(); }

  private:
    void begin() {
        begin_ = 0;
        if (options_.faults != nullptr && options_.faults->isCut()) {
            begin_ =
                reactor_.after(options_.faults->cutUntil() - reactor_.now(), [this] { begin(); });
            return;
        }
        absl::StatusOr<UniqueFd> fd = beginConnect(address_, options_.localIp);
        if (!fd.ok()) return finish(fd.status());
        fd_ = std::move(*fd);
        absl::Status watched =
            reactor_.watch(fd_.get(), EPOLLOUT, [this](uint32_t) { onWritable(); });
        if (!watched.ok()) finish(std::move(watched));
    }

    void onWritable() {
        if (const int error = socketError(fd_.get()); error != 0)
            return finish(absl::UnavailableError(
                absl::StrCat("cannot connect to ", address_, ": ", std::strerror(error))));
        reactor_.unwatch(fd_.get());
        breakUnanswered(fd_.get(), kAnswerWithin);
        finish(std::unique_ptr<ControlChannel>(
            std::make_unique<SocketChannel>(reactor_, std::move(fd_), options_)));
    }

    void release() {
        for (Reactor::TimerId* timer : {&deadline_, &begin_})
            if (*timer != 0) reactor_.cancel(std::exchange(*timer, 0));
        if (fd_.valid()) reactor_.unwatch(fd_.get());
        fd_.reset();
    }

    void finish(absl::StatusOr<std::unique_ptr<ControlChannel>> result) {
        release();
        // `done` may destroy this connector.
        const ConnectedChannel done = std::exchange(done_, nullptr);
        if (done) done(std::move(result));
    }

    Reactor& reactor_;
    const std::string address_;
    const ChannelOptions options_;
    ConnectedChannel done_;
    UniqueFd fd_;
    Reactor::TimerId deadline_ = 0;
    Reactor::TimerId begin_ = 0;
};

class SocketNetwork final : public Network {
  public:
    absl::StatusOr<std::unique_ptr<ControlListener>> listen(Reactor& reactor,
                                                            const std::string& address,
                                                            ChannelOptions options,
                                                            AcceptChannel accept) override {
        return listenControl(reactor, address, std::move(options), std::move(accept));
    }
    std::unique_ptr<ControlConnector> connect(Reactor& reactor, const std::string& address,
                                              ChannelOptions options,
                                              ConnectedChannel done) override {
        return connectControl(reactor, address, std::move(options), std::move(done));
    }
};

}  // namespace

Network& socketNetwork() {
    static SocketNetwork network;
    return network;
}

absl::StatusOr<std::unique_ptr<ControlListener>> listenControl(Reactor& reactor,
                                                               const std::string& address,
                                                               ChannelOptions options,
                                                               AcceptChannel accept) {
    absl::StatusOr<UniqueFd> fd = listenOn(address);
    if (!fd.ok()) return fd.status();
    auto listener = std::make_unique<SocketListener>(reactor, std::move(*fd), std::move(options),
                                                     std::move(accept));
    if (absl::Status s = listener->watch(); !s.ok()) return s;
    return listener;
}

std::unique_ptr<ControlConnector> connectControl(Reactor& reactor, const std::string& address,
                                                 ChannelOptions options, ConnectedChannel done) {
    return std::make_unique<SocketConnector>(reactor, address, std::move(options), std::move(done));
}

}  // namespace bulkhead::runtime
