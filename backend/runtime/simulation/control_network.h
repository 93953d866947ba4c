// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "backend/common/clock.h"
#include "backend/runtime/simulation/rng.h"

namespace bulkhead::simulation {

/// Faults of a control link beyond a small delay. An honest link keeps their order.
struct Storm {
    double drop = 0;  ///< probability, likewise below
    double duplicate = 0;
    double reorder = 0;  ///< out of its turn, up to delayMs late
    double delayMs = 0;  ///< at most so much on top for all
};

/// One direction of one connection.
struct Link {
    explicit Link(uint64_t seed) : rng(seed) {}
    Rng rng;
    MonoNs last = 0;        ///< arrival of the latest message in order
    MonoNs cutUntil = 0;    ///< messages are lost until then
    MonoNs stallUntil = 0;  ///< messages wait until then
    MonoNs stormUntil = 0;
    Storm storm;
};

/// When the copies of one message arrive: none, one or two.
struct Arrivals {
    std::array<MonoNs, 2> at{};
    size_t count = 0;
};

/// Every control link of the job, by number. Deterministic; each link has its own chance.
class ControlNetwork {
  public:
    struct Counts {
        uint64_t sent = 0;
        uint64_t dropped = 0;
        uint64_t duplicated = 0;
        uint64_t reordered = 0;
    };

    ControlNetwork(uint64_t seed, size_t links) {
        links_.reserve(links);
        for (size_t i = 0; i < links; ++i) links_.emplace_back(mix(seed, i));
    }

    Link& link(size_t i) { return links_[i]; }
    /// Everything sent over it in order has arrived.
    bool quiet(size_t link, MonoNs now) const { return links_[link].last <= now; }
    size_t size() const { return links_.size(); }
    /// A message sent now. `fromMs`, `toMs`: how long an honest link takes.
    Arrivals send(size_t link, MonoNs now, double fromMs, double toMs);
    /// A piece of a stream sent now: it arrives once, behind those before it, or is lost.
    std::optional<MonoNs> stream(size_t link, MonoNs now, double fromMs, double toMs);
    /// Ends every disturbance; what stalls is let go.
    void heal(MonoNs now);
    const Counts& counts() const { return counts_; }

  private:
    std::vector<Link> links_;
    Counts counts_;
};

}  // namespace bulkhead::simulation
