// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "backend/runtime/simulation/minimise.h"

namespace bulkhead::simulation {

/// Runs it once more and writes down who did what, when, and what is wrong about it: the faults,
/// and of the rest the last lines before the end (`everything`: all). For people.
std::string tellStory(uint64_t seed, const Setup& setup, const Minimised& minimised,
                      bool everything);

}  // namespace bulkhead::simulation
