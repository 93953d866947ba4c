// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "backend/common/threads.h"
#include "backend/common/unique_fd.h"
#include "backend/runtime/transport/address.h"

namespace bulkhead::runtime::testing {

/// Stands before a listener and passes on what comes and goes, all connections together so many
/// bytes and not one more; the rest waits in the sockets until more is allowed.
class Relay {
  public:
    explicit Relay(std::string target)
        : target_(std::move(target)),
          listener_(std::move(listenOn("127.0.0.1:0")).value()),
          wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
          thread_([this] { run(); }) {}
    ~Relay() {
        stop_ = true;
        poke();
        thread_.join();
    }

    std::string address() const { return localAddress(listener_.get()); }
    uint64_t passed() const { return passed_; }
    /// So many more bytes from now on.
    void allow(uint64_t bytes) {
        {
            const MutexLock lock(mutex_);
            budget_ = bytes;
        }
        poke();
    }
    void untilDry() {
        MutexLock lock(mutex_);
        dry_.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return budget_ == 0; });
    }

  private:
    struct Line {
        UniqueFd ends[2];
        bool open = true;
    };

    void poke() {
        const uint64_t one = 1;
        [[maybe_unused]] const ssize_t n = ::write(wake_.get(), &one, sizeof one);
    }

    void run() {
        while (!stop_) {
            std::vector<pollfd> waits{{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
            bool dry = false;
            {
                const MutexLock lock(mutex_);
                dry = budget_ == 0;
            }
            // A dry relay still notices who hangs up.
            for (const Line& line : lines_)
                for (const UniqueFd& end : line.ends)
                    waits.push_back({end.get(), static_cast<short>(dry ? POLLRDHUP : POLLIN), 0});
            ::poll(waits.data(), waits.size(), -1);
            uint64_t count = 0;
            [[maybe_unused]] const ssize_t n = ::read(wake_.get(), &count, sizeof count);
            accept();
            for (Line& line : lines_)
                for (int from : {0, 1})
                    if (line.open) line.open = pass(line, from);
            lines_.remove_if([](const Line& line) { return !line.open; });
        }
    }

    void accept() {
        pollfd ready{listener_.get(), POLLIN, 0};
        while (::poll(&ready, 1, 0) == 1) {
            Line line;
            line.ends[0] = UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
            auto out = beginConnect(target_, "");
            if (!line.ends[0].valid() || !out.ok()) return;
            line.ends[1] = std::move(*out);
            pollfd open{line.ends[1].get(), POLLOUT, 0};
            ::poll(&open, 1, -1);
            for (const UniqueFd& end : line.ends) tuneStream(end.get());
            lines_.push_back(std::move(line));
        }
    }

    /// False when that end has closed.
    bool pass(Line& line, int from) {
        std::array<char, 4096> bytes;
        while (true) {
            const MutexLock lock(mutex_);
            if (budget_ == 0) {
                char one = 0;
                const ssize_t n = ::recv(line.ends[from].get(), &one, 1, MSG_PEEK | MSG_DONTWAIT);
                return n > 0 || (n < 0 && errno == EAGAIN);
            }
            const size_t most = std::min<uint64_t>(bytes.size(), budget_);
            const ssize_t n = ::recv(line.ends[from].get(), bytes.data(), most, MSG_DONTWAIT);
            if (n < 0) return errno == EAGAIN;
            if (n == 0) return false;
            size_t sent = 0;
            while (sent < static_cast<size_t>(n)) {
                pollfd room{line.ends[1 - from].get(), POLLOUT, 0};
                ::poll(&room, 1, -1);
                const ssize_t s =
                    ::send(line.ends[1 - from].get(), bytes.data() + sent,
                           static_cast<size_t>(n) - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
                if (s < 0 && errno != EAGAIN) return false;
                sent += s < 0 ? 0 : static_cast<size_t>(s);
            }
            passed_ += static_cast<uint64_t>(n);
            if (budget_ != ~uint64_t{0}) budget_ -= static_cast<uint64_t>(n);
            if (budget_ == 0) dry_.notify_all();
        }
    }

    const std::string target_;
    UniqueFd listener_, wake_;
    std::atomic<bool> stop_{false};
    std::atomic<uint64_t> passed_{0};
    Mutex mutex_;
    ConditionVariable dry_;
    uint64_t budget_ ABSL_GUARDED_BY(mutex_) = 0;
    std::list<Line> lines_;
    std::thread thread_;
};

}  // namespace bulkhead::runtime::testing
