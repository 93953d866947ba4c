// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/simulation/control_network.h"

#include <algorithm>

namespace bulkhead::simulation {

Arrivals ControlNetwork::send(size_t link, MonoNs now, double fromMs, double toMs) {
    Link& l = links_[link];
    Arrivals out;
    ++counts_.sent;
    MonoNs at = now + l.rng.between(fromMs, toMs);
    const bool storm = l.stormUntil > now;
    if (l.cutUntil > now || (storm && l.rng.chance(l.storm.drop))) {
        ++counts_.dropped;
        return out;
    }
    if (storm) at += l.rng.between(0, l.storm.delayMs);
    if (l.stallUntil > now) at = std::max(at, l.stallUntil + l.rng.between(0, 1));
    if (storm && l.rng.chance(l.storm.reorder)) {
        ++counts_.reordered;
    } else {
        at = l.last = std::max(l.last + 1, at);
    }
    out.at[out.count++] = at;
    if (storm && l.rng.chance(l.storm.duplicate)) {
        ++counts_.duplicated;
        out.at[out.count++] = at + l.rng.between(0, l.storm.delayMs + 1);
    }
    return out;
}

std::optional<MonoNs> ControlNetwork::stream(size_t link, MonoNs now, double fromMs, double toMs) {
    Link& l = links_[link];
    ++counts_.sent;
    MonoNs at = now + l.rng.between(fromMs, toMs);
    if (l.cutUntil > now) {
        ++counts_.dropped;
        return std::nullopt;
    }
    if (l.stormUntil > now) at += l.rng.between(0, l.storm.delayMs);
    at = std::max(at, l.stallUntil);
    return l.last = std::max(l.last + 1, at);
}

void ControlNetwork::heal(MonoNs now) {
    for (Link& l : links_) {
        l.cutUntil = l.stormUntil = std::min(l.cutUntil, now);
        l.stallUntil = std::min(l.stallUntil, now);
    }
}

}  // namespace bulkhead::simulation
