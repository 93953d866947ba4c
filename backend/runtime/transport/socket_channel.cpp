// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/socket_channel.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/runtime/transport/address.h"

namespace bulkhead::runtime {
namespace {

constexpr size_t kReadBytes = size_t{256} << 10;

absl::Status connectionLost(const std::string& peer, int error) {
    const std::string text = absl::StrCat("connection to ", peer, ": ", std::strerror(error));
    if (error == ETIMEDOUT) return absl::DeadlineExceededError(text);
    return absl::UnavailableError(text);
}

}  // namespace

SocketChannel::SocketChannel(Reactor& reactor, UniqueFd fd, ChannelOptions options)
    : reactor_(reactor),
      fd_(std::move(fd)),
      options_(std::move(options)),
      peer_(remoteAddress(fd_.get())),
      parser_(options_.firstMessage) {
    tuneStream(fd_.get());
    if (options_.credential) tls_ = std::make_unique<TlsSession>(*options_.credential);
    if (options_.keyOf) tls_ = std::make_unique<TlsSession>(options_.keyOf);
    if (options_.faults == nullptr) return;
    resetsSeen_ = options_.faults->resets();
    subscription_ = options_.faults->subscribe([this, weak = std::weak_ptr<char>(life_), &reactor] {
        reactor.post([this, weak] {
            if (!weak.expired()) onFaultsChanged();
        });
    });
}

SocketChannel::~SocketChannel() {
    if (subscription_ != 0) options_.faults->unsubscribe(subscription_);
    shut();
}

void SocketChannel::start(Received received, Closed closed) {
    received_ = std::make_shared<Received>(std::move(received));
    closed_ = std::move(closed);
    started_ = true;
    if (tls_ != nullptr)
        armTimer(handshakeTimer_, reactor_.now() + options_.connectTimeout,
                 &SocketChannel::onHandshakeTimer);
    reactor_.post([this, weak = std::weak_ptr<char>(life_)] {
        if (!weak.expired()) onFaultsChanged();
    });
}

bool SocketChannel::isCut() const {
    return options_.faults != nullptr && options_.faults->isCut();
}

MonoNs SocketChannel::dueNow(const std::deque<Timed>& queue) const {
    MonoNs due = reactor_.now();
    if (options_.faults != nullptr) due += options_.faults->currentDelay();
    return queue.empty() ? due : std::max(due, queue.back().due);
}

absl::Status SocketChannel::send(std::string_view message) {
    if (!fd_.valid() || ended_)
        return absl::FailedPreconditionError(absl::StrCat("connection to ", peer_, " is closed"));
    if (message.size() > kMaxControlMessage)
        return absl::InvalidArgumentError(absl::StrCat("a message of ", message.size(),
                                                       " bytes, at most ", kMaxControlMessage,
                                                       " can be sent"));
    const size_t bytes = message.size() + kControlHeaderBytes;
    if (queuedBytes() + bytes > options_.maxQueuedBytes)
        return absl::ResourceExhaustedError(
            absl::StrCat(peer_, " does not read: ", queuedBytes(), " bytes are queued for it"));
    std::string frame = controlHeader(message);
    frame.append(message);
    const MonoNs due = dueNow(outbox_);
    outbox_.push_back({std::move(frame), due});
    outboxBytes_ += bytes;
    if (absl::Status s = flush(); !s.ok()) loseSoon(std::move(s));
    return absl::OkStatus();
}

void SocketChannel::close() {
    if (fd_.valid() && !ended_) flush().IgnoreError();
    received_.reset();
    closed_ = nullptr;
    shut();
}

void SocketChannel::shut() {
    for (Reactor::TimerId* timer : {&handshakeTimer_, &cutTimer_, &flushTimer_, &deliverTimer_})
        if (*timer != 0) reactor_.cancel(std::exchange(*timer, 0));
    if (watched_) reactor_.unwatch(fd_.get());
    watched_ = false;
    fd_.reset();
}

void SocketChannel::onFaultsChanged() {
    if (!fd_.valid() || !started_) return;
    if (options_.faults != nullptr && options_.faults->resets() != resetsSeen_) {
        resetOnClose(fd_.get());
        ended_ =
            absl::UnavailableError(absl::StrCat("connection to ", peer_, ": reset by a fault"));
        return deliver();
    }
    if (isCut()) return pauseWhileCut();
    if (cutTimer_ != 0) reactor_.cancel(std::exchange(cutTimer_, 0));
    if (absl::Status s = flush(); !s.ok()) return loseSoon(std::move(s));
    updateInterest();
    deliver();
}

void SocketChannel::pauseWhileCut() {
    // Hang-ups are reported whatever one asks for, so a paused socket is not watched at all.
    if (watched_) reactor_.unwatch(fd_.get());
    watched_ = false;
    if (cutTimer_ != 0) reactor_.cancel(cutTimer_);
    const MonoNs left = options_.faults->cutUntil() - reactor_.now();
    cutTimer_ = reactor_.after(left, [this] {
        cutTimer_ = 0;
        onFaultsChanged();
    });
}

void SocketChannel::updateInterest() {
    if (!fd_.valid() || !started_ || cutTimer_ != 0) return;
    uint32_t events = 0;
    if (!ended_ && inboxBytes_ < options_.maxQueuedBytes) events |= EPOLLIN;
    if (writeBlocked_) events |= EPOLLOUT;
    if (events == 0 && watched_) {
        reactor_.unwatch(fd_.get());
        watched_ = false;
    } else if (events != 0 && !watched_) {
        watched_ = reactor_.watch(fd_.get(), events, [this](uint32_t e) { onEvents(e); }).ok();
        interest_ = events;
    } else if (events != 0 && interest_ != events) {
        reactor_.rewatch(fd_.get(), events);
        interest_ = events;
    }
}

void SocketChannel::onEvents(uint32_t events) {
    if (isCut()) return pauseWhileCut();
    if (events & EPOLLOUT) {
        if (absl::Status s = flush(); !s.ok()) ended_ = std::move(s);
    }
    if (events & (EPOLLIN | EPOLLERR | EPOLLHUP)) readSome();
    updateInterest();
    deliver();
}

void SocketChannel::readSome() {
    if (ended_) return;
    // Aligned: a TLS segment at an odd address ends where no page does, and such a program is not
    // loaded.
    alignas(64) thread_local std::array<char, kReadBytes> buffer;
    const ssize_t n = ::recv(fd_.get(), buffer.data(), buffer.size(), 0);
    if (n < 0) {
        if (errno == EAGAIN || errno == EINTR) return;
        ended_ = connectionLost(peer_, errno);
        return;
    }
    if (n == 0) {
        ended_ =
            absl::UnavailableError(absl::StrCat("connection to ", peer_, ": closed by the peer"));
        return;
    }
    const std::string_view bytes(buffer.data(), static_cast<size_t>(n));
    if (absl::Status s = parse(bytes); !s.ok()) ended_ = std::move(s);
}

absl::Status SocketChannel::parse(std::string_view bytes) {
    std::string plain;
    if (tls_ != nullptr) {
        absl::Status read = tls_->receive(bytes, plain);
        // Its part of the handshake, what waited for that, or why there will be none.
        if (absl::Status s = flush(); read.ok()) read = std::move(s);
        if (!read.ok())
            return absl::Status(read.code(),
                                absl::StrCat("connection to ", peer_, ": ", read.message()));
        bytes = plain;
    }
    parser_.append(bytes);
    while (true) {
        std::optional<std::string> message;
        if (absl::Status s = parser_.next(message); !s.ok()) return s;
        if (!message) return absl::OkStatus();
        inboxBytes_ += message->size();
        const MonoNs due = dueNow(inbox_);
        inbox_.push_back({std::move(*message), due});
    }
}

absl::Status SocketChannel::flush() {
    writeBlocked_ = false;
    while (!isCut() && !writeBlocked_) {
        if (wireAt_ == wire_.size())
            if (absl::Status s = fillWire(); !s.ok()) return s;
        if (wire_.empty()) break;
        if (absl::Status s = writeWire(writeBlocked_); !s.ok()) return s;
    }
    if (isCut() && started_ && cutTimer_ == 0) pauseWhileCut();
    updateInterest();
    return absl::OkStatus();
}

/// With what TLS has to say, else with the message that is due; empty when there is neither.
absl::Status SocketChannel::fillWire() {
    wireAt_ = 0;
    wire_ = tls_ != nullptr ? tls_->takeOutput() : "";
    if (!wire_.empty() || outbox_.empty()) return absl::OkStatus();
    if (tls_ != nullptr && !tls_->established()) return absl::OkStatus();
    if (outbox_.front().due > reactor_.now()) {
        armTimer(flushTimer_, outbox_.front().due, &SocketChannel::onFlushTimer);
        return absl::OkStatus();
    }
    wire_ = std::move(outbox_.front().bytes);
    outbox_.pop_front();
    outboxBytes_ -= wire_.size();
    if (tls_ == nullptr) return absl::OkStatus();
    if (absl::Status s = tls_->send(wire_); !s.ok()) return s;
    wire_ = tls_->takeOutput();
    return absl::OkStatus();
}

absl::Status SocketChannel::writeWire(bool& blocked) {
    const ssize_t n = ::send(fd_.get(), wire_.data() + wireAt_, wire_.size() - wireAt_,
                             MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
        if (errno == EINTR) return absl::OkStatus();
        if (errno != EAGAIN) return connectionLost(peer_, errno);
        blocked = true;
        return absl::OkStatus();
    }
    wireAt_ += static_cast<size_t>(n);
    return absl::OkStatus();
}

void SocketChannel::armTimer(Reactor::TimerId& timer, MonoNs due, void (SocketChannel::*then)()) {
    if (timer != 0) return;
    timer = reactor_.after(due - reactor_.now(), [this, &timer, then] {
        timer = 0;
        (this->*then)();
    });
}

void SocketChannel::onFlushTimer() {
    if (absl::Status s = flush(); !s.ok()) loseSoon(std::move(s));
}

void SocketChannel::onHandshakeTimer() {
    if (!tls_->established())
        loseSoon(absl::DeadlineExceededError(
            absl::StrCat("connection to ", peer_, ": the TLS handshake took too long")));
}

void SocketChannel::deliver() {
    if (!started_) return;
    const std::weak_ptr<char> alive = life_;
    while (!inbox_.empty() && !isCut()) {
        if (inbox_.front().due > reactor_.now()) {
            armTimer(deliverTimer_, inbox_.front().due, &SocketChannel::deliver);
            return;
        }
        const std::string message = std::move(inbox_.front().bytes);
        inbox_.pop_front();
        inboxBytes_ -= message.size();
        const std::shared_ptr<Received> received = received_;
        if (received == nullptr) return;
        (*received)(message);
        if (alive.expired()) return;
    }
    updateInterest();
    if (inbox_.empty() && ended_ && fd_.valid()) lose(*ended_);
}

void SocketChannel::loseSoon(absl::Status why) {
    if (ended_) return;
    ended_ = std::move(why);
    reactor_.post([this, weak = std::weak_ptr<char>(life_)] {
        if (!weak.expired()) deliver();
    });
}

void SocketChannel::lose(const absl::Status& why) {
    const absl::Status copy = why;
    shut();
    if (Closed closed = std::exchange(closed_, nullptr)) closed(copy);
}

}  // namespace bulkhead::runtime
