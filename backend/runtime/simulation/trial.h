// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/runtime/simulation/schedule.h"

namespace bulkhead::simulation {

/// The outcome of one seed. Equal for equal (seed, schedule).
struct Verdict {
    uint64_t seed = 0;
    std::optional<std::string> broken;  ///< "I2: ..."; nullopt: all is well
    std::string standing;               ///< where everybody stood then
    MonoNs time = 0;                    ///< virtual
    uint64_t digest = 0;
    SimulatedJob::Counts counts;
    /// "I2" of it.
    std::string invariant() const { return broken ? broken->substr(0, broken->find(':')) : ""; }
};

/// Runs the job of `seed` under `schedule`, then without faults until it is whole again: every
/// replica trains and all data is accounted for, within a bound of virtual time (I4). Then it has
/// to stay so, and to stop in order when it is told to. Pure.
Verdict runTrial(uint64_t seed, const Setup& setup, const Schedule& schedule,
                 const SimulatedJob::Story& story = nullptr);
/// The same with setup and `faults` faults drawn from the seed.
Verdict runTrial(uint64_t seed, size_t faults);

}  // namespace bulkhead::simulation
