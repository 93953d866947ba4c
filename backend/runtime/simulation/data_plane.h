// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backend/runtime/simulation/event_queue.h"
#include "backend/runtime/simulation/rng.h"
#include "backend/runtime/simulation/values.h"
#include "backend/runtime/simulation/words.h"

namespace bulkhead::simulation {

/// The fence of a frame: ranks that differ in any of these never meet.
struct FrameKey {
    uint64_t term = 0;
    ExchangeId id;
    std::array<uint64_t, 4> secret{};
    int32_t shard = 0;
    auto operator<=>(const FrameKey&) const = default;
};

FrameKey keyOf(const Quorum& quorum, int32_t shard);

/// The all-reduce between replicas as it looks from the protocol: parts go in, the same sum comes
/// out everywhere or an error does. A member's death, a cut, an abort hit it at any point: before
/// its part is out, after, or while others still fetch results.
class DataPlane {
  public:
    struct Hooks {
        /// The process is there and answers connections.
        std::function<bool(RankId, uint32_t incarnation)> present;
        std::function<void(RankId, uint32_t incarnation, const ExchangeId&, const Sum&,
                           bool overflow)>
            complete;
        /// One bucket arrived, the exchange did not complete.
        std::function<void(RankId, uint32_t incarnation, size_t bucket, uint64_t value)> landed;
        std::function<void(RankId, uint32_t incarnation, const ExchangeId&, EvidenceKind,
                           const std::vector<int32_t>& peers)>
            failed;
        /// Members of one key do not agree on who they are.
        std::function<void(std::string)> broken;
    };

    DataPlane(EventQueue& events, const MonoNs& now, uint64_t seed, Hooks hooks)
        : events_(events), now_(now), rng_(seed), hooks_(std::move(hooks)) {}

    void join(RankId rank, uint32_t incarnation, const Quorum& quorum, const Sum& part);
    /// Aborted by its own side. False when it had completed, or never began.
    void leave(RankId rank, uint32_t incarnation);
    /// `silent`: a machine without power sends no reset.
    void died(RankId rank, uint32_t incarnation, bool silent);
    void cut(int32_t from, int32_t to, bool cut);
    void healCuts();
    void overflowNext(bool on) { overflowNext_ = on; }

  private:
    enum class Side { kAway, kIn, kOut, kDone };
    struct Seat {
        int32_t replica = 0;
        uint32_t incarnation = 0;
        Side side = Side::kAway;
        bool dead = false;
        bool partOut = true;  ///< all of its part was sent before it died
        Sum part{};
    };
    struct Meeting {
        std::vector<Seat> seats;
        bool reducing = false;
        bool reduced = false;
        bool overflow = false;
        MonoNs timeout = 0;
        Sum sum{};
    };

    Seat* seatOf(Meeting& m, int32_t replica, uint32_t incarnation);
    bool isCut(int32_t from, int32_t to) const { return cuts_.contains({from, to}); }
    void tryReduce(const FrameKey& key, Meeting& m);
    void reduce(const FrameKey& key);
    void finish(const FrameKey& key, int32_t replica, uint32_t incarnation);
    void timeout(const FrameKey& key, int32_t replica, uint32_t incarnation);
    void reset(const FrameKey& key, int32_t replica, uint32_t incarnation, int32_t peer);
    void fail(const FrameKey& key, Seat& seat, EvidenceKind kind, std::vector<int32_t> peers);
    void trim();

    EventQueue& events_;
    const MonoNs& now_;
    Rng rng_;
    Hooks hooks_;
    std::map<FrameKey, Meeting> meetings_;
    std::vector<FrameKey> order_;
    std::set<std::pair<int32_t, int32_t>> cuts_;
    bool overflowNext_ = false;
};

}  // namespace bulkhead::simulation
