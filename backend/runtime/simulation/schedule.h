// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "backend/runtime/simulation/fault.h"
#include "backend/runtime/simulation/simulated_job.h"

namespace bulkhead::simulation {

/// The job of a seed: how many replicas, shards, nodes, which policies. Detection bounds are
/// shorter than a real job's, so that a day of faults fits into seconds.
struct Setup {
    Options options;
    SimulatedJob::Environment environment;
    bool corruption = false;  ///< faults may flip bits, which excuses the states they reach
};
Setup drawSetup(uint64_t seed);

/// `count` faults, in order of time: in bursts, one by one, and at chosen moments of the protocol.
Schedule drawSchedule(uint64_t seed, const Setup& setup, size_t count);

}  // namespace bulkhead::simulation
