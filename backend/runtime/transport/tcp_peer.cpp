// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/tcp_peer.h"

#include <algorithm>
#include <utility>

namespace bulkhead::runtime {
namespace {

constexpr size_t kStripeAlign = 64;

/// The part that goes over connection `index` of `count`; the first one's is empty only if `whole`
/// is.
template <class T>
std::span<T> partOf(std::span<T> whole, size_t index, size_t count, size_t least) {
    const size_t parts = std::clamp<size_t>(whole.size() / least, 1, count);
    const size_t each =
        ((whole.size() + parts - 1) / parts + kStripeAlign - 1) / kStripeAlign * kStripeAlign;
    const size_t begin = std::min(whole.size(), index * each);
    return whole.subspan(begin, std::min(each, whole.size() - begin));
}

}  // namespace

TcpPeer::TcpPeer(std::vector<std::unique_ptr<TcpConnection>> connections, size_t leastPart)
    : leastPart_(leastPart) {
    for (auto& connection : connections) lanes_.push_back({std::move(connection)});
}

void TcpPeer::begin(const RoundTag& tag, bool more, std::span<const std::byte> out,
                    std::span<std::byte> in) {
    for (size_t i = 0; i < lanes_.size(); ++i) {
        const auto give = partOf(out, i, lanes_.size(), leastPart_);
        const auto get = partOf(in, i, lanes_.size(), leastPart_);
        lanes_[i].used = i == 0 || !give.empty() || !get.empty();
        lanes_[i].readable = false;
        if (lanes_[i].used) lanes_[i].connection->begin(tag, more, give, get);
    }
}

void TcpPeer::appendWaits(std::vector<pollfd>& waits) const {
    for (const Lane& lane : lanes_)
        waits.push_back(lane.open() ? pollfd{lane.connection->fd(), lane.connection->wanted(), 0}
                                    : pollfd{-1, 0, 0});
}

void TcpPeer::onPolled(std::span<const pollfd> found) {
    for (size_t i = 0; i < lanes_.size(); ++i)
        lanes_[i].readable = (found[i].revents & ~POLLOUT) != 0;
}

absl::Status TcpPeer::advance() {
    for (Lane& lane : lanes_) {
        if (!lane.open()) continue;
        const bool readable = std::exchange(lane.readable, false);
        if (absl::Status s = lane.connection->advance(readable); !s.ok()) return s;
    }
    return absl::OkStatus();
}

bool TcpPeer::done() const {
    return std::none_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.open(); });
}

uint64_t TcpPeer::staleFrames() const {
    uint64_t sum = 0;
    for (const Lane& lane : lanes_) sum += lane.connection->staleFrames();
    return sum;
}

uint64_t TcpPeer::moved() const {
    uint64_t sum = 0;
    for (const Lane& lane : lanes_) sum += lane.connection->moved();
    return sum;
}

void TcpPeer::breakOff() {
    for (Lane& lane : lanes_) lane.connection->breakOff();
}

}  // namespace bulkhead::runtime
