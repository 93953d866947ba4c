// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/runtime/simulation/simulated_job.h"

/// Shared by the job's files: scheduling of messages and of tasks of a training thread.
namespace bulkhead::simulation {

inline std::string nameOf(RankId id) {
    return absl::StrCat("r", id.replica, "s", id.shard);
}

/// `deliver` may be called twice, or never.
template <class F>
void SimulatedJob::send(size_t link, double fromMs, double toMs, F deliver) {
    const Arrivals arrivals = network_.send(link, now_, fromMs, toMs);
    if (arrivals.count == 2) at(arrivals.at[1], deliver);
    if (arrivals.count >= 1) at(arrivals.at[0], std::move(deliver));
}

template <class F>
void SimulatedJob::forProcesses(size_t node, F f) {
    for (const auto* list : {&zombies_, &ranks_})
        for (const auto& r : *list)
            if (r && r->node == node) f(*r);
}

/// One thing after the other on the rank's training thread; a hung one waits until it wakes.
template <class F>
void SimulatedJob::train(Process& rank, double fromMs, double toMs, F task) {
    rank.busyUntil = std::max(rank.busyUntil, now_) + rank.rng.between(fromMs, toMs);
    at(rank.busyUntil,
       [this, id = rank.id, inc = rank.incarnation, task = std::move(task)]() mutable {
           Process* r = live(id, inc);
           if (r == nullptr) return;
           if (!r->hung && r->postponed.empty()) return task(*r);
           // Stopped: what it was about to do happens after it is woken, if it ever is.
           r->postponed.push_back(std::move(task));
       });
}

}  // namespace bulkhead::simulation
