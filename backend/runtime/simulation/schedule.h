// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "backend/runtime/simulation/fault.h"
#include "backend/runtime/simulation/simulated_job.h"

namespace bulkhead::simulation {

/// The job of a seed: how many replicas, shards, nodes, which policies. Detection bounds are
/// shorter than a real job's, so that a day of faults fits into seconds.
struct Setup {
    Options options;
    SimulatedJob::Environment environment;
    bool corruption = false;  ///< faults may flip bits, which excuses the states they reach
    bool drivers = false;     ///< faults that only the real programs know strike too
    /// Time from the last fault until full recovery. The longest way there that is in
    /// order: a start that hangs (startMs), twice, behind a coordinator's join time and the longest
    /// back-off.
    MonoNs healWithin = 40 * kSecond;
    MonoNs stopWithin = 10 * kSecond;
    /// Makes the job; empty: the machines with pretended drivers.
    std::function<std::unique_ptr<SimulatedJob>(const Setup&, uint64_t seed)> make = nullptr;
};
Setup drawSetup(uint64_t seed);

/// `count` faults, in order of time: in bursts, one by one, and at chosen moments of the protocol.
Schedule drawSchedule(uint64_t seed, const Setup& setup, size_t count);

}  // namespace bulkhead::simulation
