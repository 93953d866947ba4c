// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/simulation/minimise.h"

#include <algorithm>

namespace bulkhead::simulation {
namespace {

Schedule without(const Schedule& all, size_t from, size_t to) {
    Schedule out(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(from));
    out.insert(out.end(), all.begin() + static_cast<std::ptrdiff_t>(to), all.end());
    return out;
}

}  // namespace

Minimised minimise(uint64_t seed, const Setup& setup, const Schedule& schedule,
                   const Verdict& verdict, size_t budget) {
    Minimised best{schedule, verdict, 0};
    const auto smaller = [&](const Schedule& candidate) {
        if (best.trials >= budget) return false;
        ++best.trials;
        Verdict v = runTrial(seed, setup, candidate);
        if (v.invariant() != verdict.invariant()) return false;
        best.schedule = candidate;
        best.verdict = std::move(v);
        return true;
    };
    for (size_t chunk = std::max<size_t>(1, schedule.size() / 2);;) {
        bool shrunk = false;
        for (size_t from = 0; from < best.schedule.size();) {
            const size_t to = std::min(from + chunk, best.schedule.size());
            if (smaller(without(best.schedule, from, to)))
                shrunk = true;
            else
                from = to;
        }
        if (best.trials >= budget || (chunk == 1 && !shrunk)) return best;
        if (chunk > 1) chunk /= 2;
    }
}

}  // namespace bulkhead::simulation
