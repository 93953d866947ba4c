// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/simulation/memory_network.h"

#include <algorithm>

namespace bulkhead::simulation {
namespace {

constexpr size_t kMostInFlight = size_t{128} << 20;
/// About the values that tuneStream() asks of the kernel.
constexpr MonoNs kKeepalive = 60 * kSecond;
constexpr MonoNs kRetransmission = 200 * kMillisecond;

}  // namespace

MemoryNetwork::Ends MemoryNetwork::join(Executor first, Executor second, size_t there,
                                        size_t back) {
    auto wire = std::make_shared<MemoryChannel::Wire>();
    wire->links[0] = there;
    wire->links[1] = back;
    return {std::make_unique<MemoryChannel>(*this, std::move(first), wire, 0),
            std::make_unique<MemoryChannel>(*this, std::move(second), wire, 1)};
}

MemoryChannel::MemoryChannel(MemoryNetwork& network, Executor run, std::shared_ptr<Wire> wire,
                             int side)
    : network_(network), run_(std::move(run)), wire_(std::move(wire)), side_(side) {
    wire_->ends[side_] = this;
}

void MemoryChannel::start(Received received, Closed closed) {
    received_ = std::make_shared<Received>(std::move(received));
    closed_ = std::move(closed);
    if (inbox_.empty()) return;
    run_([this, alive = std::weak_ptr<char>(life_)] {
        if (!alive.expired()) drain();
    });
}

absl::Status MemoryChannel::send(std::string_view message) {
    if (!open_) return absl::FailedPreconditionError("the connection is gone");
    if (wire_->flying[side_] + message.size() > kMostInFlight)
        return absl::ResourceExhaustedError("the other end does not read");
    carry(std::string(message), false);
    return absl::OkStatus();
}

void MemoryChannel::carry(std::string bytes, bool end) {
    if (wire_->hole[side_]) return;
    const auto at = network_.links_.stream(wire_->links[side_], network_.now_, 0.1, 2);
    if (!at) {
        wire_->hole[side_] = true;
        return;
    }
    wire_->flying[side_] += bytes.size();
    network_.events_.at(*at, [wire = wire_, side = side_, bytes = std::move(bytes), end]() mutable {
        wire->flying[side] -= bytes.size();
        if (MemoryChannel* other = wire->ends[1 - side]) other->arrived(std::move(bytes), end);
    });
}

void MemoryChannel::arrived(std::string bytes, bool end) {
    inbox_.push_back({std::move(bytes), end});
    if (inbox_.size() > 1 || received_ == nullptr) return;
    run_([this, alive = std::weak_ptr<char>(life_)] {
        if (!alive.expired()) drain();
    });
}

void MemoryChannel::drain() {
    const std::weak_ptr<char> alive = life_;
    while (!inbox_.empty() && received_ != nullptr) {
        Item item = std::move(inbox_.front());
        if (item.end) {
            const Closed closed = std::move(closed_);
            close();
            if (closed) closed(absl::UnavailableError("the connection was lost"));
            return;
        }
        // The callback may start the channel anew, or destroy it.
        const std::shared_ptr<Received> received = received_;
        inbox_.pop_front();
        (*received)(std::move(item.bytes));
        if (alive.expired() || !open_) return;
    }
}

void MemoryChannel::close() {
    if (!open_) return;
    carry("", true);
    // The kernel says it again until the network lets it through.
    if (wire_->hole[side_])
        endLater(std::max(network_.links_.link(wire_->links[side_]).cutUntil, network_.now_) +
                 kRetransmission);
    detach();
}

void MemoryChannel::vanish() {
    if (!open_) return;
    endLater(network_.now_ + kKeepalive);
    detach();
}

void MemoryChannel::drop() {
    if (!open_) return;
    endLater(network_.now_ + kKeepalive);
    wire_->hole[0] = wire_->hole[1] = true;
    network_.events_.at(network_.now_, [wire = wire_, side = side_] {
        if (MemoryChannel* end = wire->ends[side]) end->arrived("", true);
    });
}

void MemoryChannel::endLater(MonoNs at) {
    network_.events_.at(at, [wire = wire_, side = side_] {
        if (MemoryChannel* other = wire->ends[1 - side]) other->arrived("", true);
    });
}

void MemoryChannel::detach() {
    open_ = false;
    wire_->ends[side_] = nullptr;
    inbox_.clear();
    received_.reset();
    closed_ = nullptr;
}

void MemoryChannel::reset() {
    wire_->hole[0] = wire_->hole[1] = true;
    network_.events_.at(network_.now_, [wire = wire_] {
        for (MemoryChannel* const& end : wire->ends)
            if (end != nullptr) end->arrived("", true);  // may destroy the other
    });
}

runtime::ConnectedChannel introduced(const std::optional<runtime::Credential>& credential,
                                     runtime::ConnectedChannel done) {
    return [identity = credential ? credential->identity : "", done = std::move(done)](
               absl::StatusOr<std::unique_ptr<runtime::ControlChannel>> channel) {
        if (channel.ok()) static_cast<MemoryChannel&>(**channel).wire()->identity = identity;
        done(std::move(channel));
    };
}

}  // namespace bulkhead::simulation
