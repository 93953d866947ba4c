// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "backend/runtime/protocol/coordinator_machine.h"

namespace bulkhead::runtime {

/// Sees everything just before the machine is told it, and just before it is carried out: a test
/// ends the process at the moment it has chosen.
struct Probe {
    std::function<void(const protocol::Input&)> input;
    std::function<void(const protocol::Action&)> action;
    /// The machine that is about to begin; lives as long as its job.
    std::function<void(const protocol::CoordinatorMachine&)> begun = nullptr;
    /// It steps no more, although its job goes on: the log could not be written.
    std::function<void()> halted = nullptr;
};

}  // namespace bulkhead::runtime
