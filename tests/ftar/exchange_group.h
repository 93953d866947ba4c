// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "backend/runtime/ftar/exchange.h"
#include "backend/runtime/transport/address.h"
#include "backend/runtime/transport/shared_heap.h"
#include "backend/runtime/transport/shm_segment.h"

namespace bulkhead::runtime::testing {

/// shm: one host. direct: the same, gradients read where they are. tcp: forced. lanes: the same
/// with three connections a pair. mixed: two hosts, members alternate, on loopback addresses of
/// their own. mixedDirect: the same with heaps. ring: forced. tiers, tiersDirect: as the mixed
/// ones, Algorithm::kHierarchical forced.
enum class Wiring {
    kShm,
    kDirect,
    kTcp,
    kLanes,
    kMixed,
    kMixedDirect,
    kRing,
    kTiers,
    kTiersDirect
};

inline const auto kWirings =
    ::testing::Values(Wiring::kShm, Wiring::kDirect, Wiring::kTcp, Wiring::kLanes, Wiring::kMixed,
                      Wiring::kMixedDirect, Wiring::kRing, Wiring::kTiers, Wiring::kTiersDirect);

inline std::string wiringName(Wiring wiring) {
    static const char* const names[] = {"shm",         "direct", "tcp",   "lanes",      "mixed",
                                        "mixedDirect", "ring",   "tiers", "tiersDirect"};
    return names[static_cast<int>(wiring)];
}

/// Endpoints and listening sockets of `n` ranks, made before they fork or start their threads.
class Ranks {
  public:
    Ranks(size_t n, Wiring wiring) : wiring_(wiring) {
        static std::atomic<int> serial{0};
        exchanges_.resize(n);
        prefix_ = "bulkhead-test-" + std::to_string(::getpid()) + "-" + std::to_string(serial++);
        for (size_t i = 0; i < n; ++i) {
            const bool mixed =
                tiered() || wiring == Wiring::kMixed || wiring == Wiring::kMixedDirect;
            const size_t node = mixed ? i % 2 : 0;
            listeners_.push_back(
                std::move(listenOn("127.0.0." + std::to_string(node + 1) + ":0").value()));
            ExchangePeer peer;
            peer.replica = static_cast<int32_t>(10 * i + 1);
            peer.incarnation = static_cast<uint32_t>(i + 3);
            peer.host = "node" + std::to_string(node);
            peer.data = localAddress(listeners_.back().get());
            peer.shm = prefix_ + "-r" + std::to_string(i);
            peers_.push_back(peer);
            if (wiring == Wiring::kDirect || wiring == Wiring::kMixedDirect ||
                wiring == Wiring::kTiersDirect)
                memory_.push_back(std::make_unique<Memory>());
        }
    }
    ~Ranks() {
        exchanges_.clear();
        removeSegments(prefix_);
    }

    size_t size() const { return peers_.size(); }
    bool tiered() const { return wiring_ == Wiring::kTiers || wiring_ == Wiring::kTiersDirect; }
    const std::string& prefix() const { return prefix_; }
    int32_t replica(size_t i) const { return peers_[i].replica; }
    int listener(size_t i) const { return listeners_[i].get(); }

    ExchangeOptions options(size_t i, NetworkFaults* faults = nullptr) const {
        ExchangeOptions options;
        options.job = "test";
        options.replica = peers_[i].replica;
        options.incarnation = peers_[i].incarnation;
        options.listenFd = listeners_[i].get();
        options.chunkBytes = 16u << 10;
        options.roundBytes = 256u << 10;
        options.directBytes = 128u << 10;
        if (!memory_.empty()) options.heap = &memory_[i]->heap;
        options.faults = faults;
        options.clock = &clock_;
        return options;
    }

    /// Rank i's, until all ranks go or it is given another.
    Exchange* keep(size_t i, std::unique_ptr<Exchange> exchange) const {
        exchanges_[i] = std::move(exchange);
        return exchanges_[i].get();
    }

    /// The group of the ranks in `members`, as member `who` of them sees it.
    ExchangeGroup group(const std::vector<size_t>& members, size_t who, ExchangeKey key) const {
        ExchangeGroup group;
        group.key = key;
        group.secret = Secret::ofText("epoch " + std::to_string(key.epoch));
        for (size_t m : members) {
            if (m == who) group.self = static_cast<int32_t>(group.peers.size());
            group.peers.push_back(peers_[m]);
        }
        const bool shm = wiring_ == Wiring::kShm || wiring_ == Wiring::kDirect;
        group.transport = shm ? PeerChoice::kShm
                          : wiring_ == Wiring::kTcp || wiring_ == Wiring::kLanes
                              ? PeerChoice::kTcp
                              : PeerChoice::kAuto;
        group.wire = wire;
        group.connections = wiring_ == Wiring::kLanes ? 3 : 1;
        group.algorithm = tiered()                   ? Algorithm::kHierarchical
                          : wiring_ == Wiring::kRing ? Algorithm::kRing
                                                     : Algorithm::kDirect;
        group.chunkTimeout = 60 * kSecond;
        group.connectTimeout = 60 * kSecond;
        return group;
    }

    /// The sum as the exchange of these members shall find it.
    std::vector<float> sum(const std::vector<size_t>& members, uint64_t step, uint32_t bucket,
                           size_t count) const;

    WireType wire = WireType::kFloat32;

    std::vector<size_t> all() const {
        std::vector<size_t> members(size());
        for (size_t i = 0; i < size(); ++i) members[i] = i;
        return members;
    }

    /// reduce() of rank `i`, through memory that its peers read where the wiring says so. The
    /// memory stays until the ranks go: a peer may be late to look at the sum.
    absl::Status reduce(size_t i, Exchange& exchange, uint32_t bucket,
                        const std::vector<float>& input, std::vector<float>& output) const {
        if (memory_.empty()) return exchange.reduce(bucket, input, output);
        Memory& memory = *memory_[i];
        auto& [from, to] = memory.buffers[input.size()];
        for (float** block : {&from, &to})
            if (*block == nullptr)
                *block =
                    static_cast<float*>(memory.heap.allocate(input.size() * sizeof(float)).value());
        std::copy(input.begin(), input.end(), from);
        const absl::Status status =
            exchange.reduce(bucket, {from, input.size()}, {to, output.size()});
        EXPECT_TRUE(std::equal(input.begin(), input.end(), from)) << "the input was written";
        std::copy(to, to + output.size(), output.begin());
        return status;
    }

  private:
    struct Memory {
        SharedHeap heap;
        std::map<size_t, std::pair<float*, float*>> buffers;  ///< by size
    };
    const Wiring wiring_;
    SystemClock clock_;
    std::string prefix_;
    std::vector<UniqueFd> listeners_;
    std::vector<ExchangePeer> peers_;
    std::vector<std::unique_ptr<Memory>> memory_;  ///< empty where nobody reads it
    mutable std::vector<std::unique_ptr<Exchange>> exchanges_;
};

/// The gradient rank `rank` brings to (step, bucket): values whose sum depends on the order.
inline std::vector<float> gradient(size_t rank, uint64_t step, uint32_t bucket, size_t count) {
    std::mt19937_64 random(rank * 1000003 + step * 101 + bucket);
    std::vector<float> out(count);
    for (float& x : out) {
        const auto bits = static_cast<uint32_t>(random());
        const float scale = static_cast<float>(1u << (bits % 20));
        x = (static_cast<float>(bits >> 8) / 16777216.0f - 0.5f) * scale;
    }
    return out;
}

/// To nearest, ties to even, by the definition: the nearer of the two neighbours.
inline float plainBfloat16(float x) {
    uint32_t bits = 0;
    std::memcpy(&bits, &x, sizeof bits);
    const uint32_t below = bits & 0xffff0000u;
    const uint32_t rest = bits & 0xffffu;
    const bool up = rest > 0x8000u || (rest == 0x8000u && (below & 0x10000u) != 0);
    const uint32_t out = up ? below + 0x10000u : below;
    float y = 0;
    std::memcpy(&y, &out, sizeof y);
    return y;
}

/// Added one after the other; every input and the sum rounded if `rounded`.
inline std::vector<float> sumOf(const std::vector<std::vector<float>>& inputs, bool rounded) {
    std::vector<float> sum(inputs[0].size());
    for (size_t m = 0; m < inputs.size(); ++m)
        for (size_t i = 0; i < sum.size(); ++i) {
            const float x = rounded ? plainBfloat16(inputs[m][i]) : inputs[m][i];
            sum[i] = m == 0 ? x : sum[i] + x;
        }
    if (rounded)
        for (float& x : sum) x = plainBfloat16(x);
    return sum;
}

inline std::vector<float> Ranks::sum(const std::vector<size_t>& members, uint64_t step,
                                     uint32_t bucket, size_t count) const {
    const bool rounded = wire == WireType::kBfloat16;
    std::map<std::string, std::vector<size_t>> byHost;
    for (size_t m : members) byHost[tiered() ? peers_[m].host : ""].push_back(m);
    // One host, or one member a host: nothing to do in tiers.
    if (byHost.size() == members.size()) byHost = {{"", members}};
    std::vector<std::pair<size_t, std::vector<float>>> parts;
    for (const auto& [host, local] : byHost) {
        std::vector<std::vector<float>> inputs;
        for (size_t m : local) inputs.push_back(gradient(m, step, bucket, count));
        parts.emplace_back(local[0], sumOf(inputs, rounded && byHost.size() == 1));
    }
    std::sort(parts.begin(), parts.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    if (parts.size() == 1) return parts[0].second;
    std::vector<std::vector<float>> inputs;
    for (auto& [first, part] : parts) inputs.push_back(std::move(part));
    return sumOf(inputs, rounded);
}

inline bool sameBits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() &&
           (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace bulkhead::runtime::testing
