// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bulkhead::simulation {

inline constexpr int kUsage = 2;  ///< exit code of a call that makes no sense

/// Arguments of `bulkhead-sim ett`.
struct EttArguments {
    std::string preset;                ///< empty: all
    std::vector<std::string> changes;  ///< "key=value", for each scenario shown
    double days = 54;
    uint64_t seed = 1;
    bool json = false;
};

/// Effective training time of jobs of any size, as a table or as JSON on standard output; a
/// refusal on standard error. Returns the exit code.
int showEtt(const EttArguments& arguments);

}  // namespace bulkhead::simulation
