// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "backend/runtime/simulation/trial.h"

namespace bulkhead::simulation {

struct Minimised {
    Schedule schedule;  ///< as few faults as were found to be enough
    Verdict verdict;    ///< of the run with these
    size_t trials = 0;  ///< runs it took
};

/// Delta debugging (Zeller and Hildebrandt 2002, ddmin) over the faults of a schedule that breaks
/// something: leaves out what the same invariant breaks without. `verdict` is that of the whole
/// schedule. At most `budget` runs.
Minimised minimise(uint64_t seed, const Setup& setup, const Schedule& schedule,
                   const Verdict& verdict, size_t budget = 400);

}  // namespace bulkhead::simulation
