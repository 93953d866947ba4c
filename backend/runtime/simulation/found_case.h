// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/runtime/simulation/trial.h"

namespace bulkhead::simulation {

/// A schedule that broke something once: kept as a JSON file in tests/simulation/found, so that it
/// is run with every test. Its job is the one that its seed draws.
struct FoundCase {
    uint64_t seed = 0;
    bool drivers = false;  ///< as setupOf() takes it
    std::string broken;    ///< the broken rule, for people
    Schedule schedule;
};

/// With `drivers` controller, agents and ranks are the real programs: a DrivenJob.
Setup setupOf(uint64_t seed, bool drivers);

Verdict runTrial(const FoundCase& found);

/// InvalidArgument naming what cannot be read.
absl::StatusOr<FoundCase> parseCase(const std::string& json);
std::string toText(const FoundCase& found);

/// The first of a range of seeds that nobody has chosen: from $BULKHEAD_FRESH_SEED, which `./dev
/// test` takes from the commit, else from chance.
uint64_t freshSeed();

}  // namespace bulkhead::simulation
