// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/runtime/transport/control_channel.h"

namespace bulkhead::runtime {
namespace {

class MemoryEnd;

/// State shared by both ends; an end that is gone is null.
struct Link {
    MemoryEnd* ends[2] = {nullptr, nullptr};
};

class MemoryEnd final : public ControlChannel {
  public:
    MemoryEnd(Reactor& reactor, ChannelOptions options, std::shared_ptr<Link> link, int side)
        : reactor_(reactor), options_(std::move(options)), link_(std::move(link)), side_(side) {
        link_->ends[side_] = this;
        if (options_.faults == nullptr) return;
        resetsSeen_ = options_.faults->resets();
        subscription_ =
            options_.faults->subscribe([this, weak = std::weak_ptr<char>(life_), &reactor] {
                reactor.post([this, weak] {
                    if (!weak.expired()) onFaultsChanged();
                });
            });
    }

    ~MemoryEnd() override {
        if (subscription_ != 0) options_.faults->unsubscribe(subscription_);
        close();
    }

    void start(Received received, Closed closed) override {
        received_ = std::make_shared<Received>(std::move(received));
        closed_ = std::move(closed);
        pumpSoon(0);
    }

    absl::Status send(std::string_view message) override {
        MemoryEnd* other = link_->ends[1 - side_];
        if (!open_ || other == nullptr)
            return absl::FailedPreconditionError("the memory channel is closed");
        if (message.size() > kMaxControlMessage)
            return absl::InvalidArgumentError("message too long");
        if (other->inboxBytes_ + message.size() > options_.maxQueuedBytes)
            return absl::ResourceExhaustedError("the other end does not read");
        const MonoNs due = reactor_.now() + delayOf(options_) + delayOf(other->options_);
        const MonoNs last = other->inbox_.empty() ? 0 : other->inbox_.back().second;
        other->inbox_.emplace_back(std::string(message), std::max(due, last));
        other->inboxBytes_ += message.size();
        other->pumpSoon(0);
        return absl::OkStatus();
    }

    void close() override {
        if (!std::exchange(open_, false)) return;
        received_.reset();
        closed_ = nullptr;
        if (timer_ != 0) reactor_.cancel(std::exchange(timer_, 0));
        link_->ends[side_] = nullptr;
        if (MemoryEnd* other = link_->ends[1 - side_]) other->pumpSoon(0);
    }

    bool isOpen() const override { return open_; }
    size_t queuedBytes() const override {
        const MemoryEnd* other = link_->ends[1 - side_];
        return other == nullptr ? 0 : other->inboxBytes_;
    }
    std::string peer() const override { return "memory"; }
    std::string here() const override { return "memory"; }
    std::string identity() const override {
        const MemoryEnd* other = link_->ends[1 - side_];
        const bool named = other != nullptr && other->options_.credential.has_value();
        return named ? other->options_.credential->identity : "";
    }

  private:
    static MonoNs delayOf(const ChannelOptions& options) {
        return options.faults == nullptr ? 0 : options.faults->currentDelay();
    }

    /// When the cable is whole again at both ends.
    MonoNs cutUntil() const {
        MonoNs until = 0;
        const MemoryEnd* other = link_->ends[1 - side_];
        if (options_.faults != nullptr) until = options_.faults->cutUntil();
        if (other != nullptr && other->options_.faults != nullptr)
            until = std::max(until, other->options_.faults->cutUntil());
        return until;
    }

    void onFaultsChanged() {
        if (options_.faults->resets() != resetsSeen_) {
            lose("reset by a fault");
            return;
        }
        pumpSoon(0);
        if (MemoryEnd* other = link_->ends[1 - side_]) other->pumpSoon(0);
    }

    void pumpSoon(MonoNs wait) {
        if (timer_ != 0) reactor_.cancel(timer_);
        timer_ = reactor_.after(wait, [this] {
            timer_ = 0;
            pump();
        });
    }

    void pump() {
        if (!open_ || received_ == nullptr) return;
        const std::weak_ptr<char> alive = life_;
        while (!inbox_.empty()) {
            const MonoNs due = std::max(inbox_.front().second, cutUntil());
            if (due > reactor_.now()) return pumpSoon(due - reactor_.now());
            const std::string message = std::move(inbox_.front().first);
            inbox_.pop_front();
            inboxBytes_ -= message.size();
            const std::shared_ptr<Received> received = received_;
            (*received)(message);
            if (alive.expired() || !open_) return;
        }
        if (link_->ends[1 - side_] != nullptr) return;
        if (cutUntil() > reactor_.now()) return pumpSoon(cutUntil() - reactor_.now());
        lose("closed by the peer");
    }

    void lose(const char* why) {
        Closed closed = std::exchange(closed_, nullptr);
        const bool was = open_;
        close();
        if (was && closed) closed(absl::UnavailableError(absl::StrCat("memory channel: ", why)));
    }

    Reactor& reactor_;
    const ChannelOptions options_;
    std::shared_ptr<Link> link_;
    const int side_;
    bool open_ = true;
    uint64_t resetsSeen_ = 0;
    uint64_t subscription_ = 0;
    std::deque<std::pair<std::string, MonoNs>> inbox_;
    size_t inboxBytes_ = 0;
    Reactor::TimerId timer_ = 0;
    std::shared_ptr<Received> received_;
    Closed closed_;
    std::shared_ptr<char> life_ = std::make_shared<char>();
};

}  // namespace

std::pair<std::unique_ptr<ControlChannel>, std::unique_ptr<ControlChannel>> memoryChannels(
    Reactor& left, Reactor& right, ChannelOptions leftOptions, ChannelOptions rightOptions) {
    auto link = std::make_shared<Link>();
    auto a = std::make_unique<MemoryEnd>(left, std::move(leftOptions), link, 0);
    auto b = std::make_unique<MemoryEnd>(right, std::move(rightOptions), link, 1);
    return {std::move(a), std::move(b)};
}

}  // namespace bulkhead::runtime
