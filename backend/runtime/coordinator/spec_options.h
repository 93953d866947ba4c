// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "backend/model/job_spec.h"
#include "backend/runtime/protocol/options.h"

namespace bulkhead::runtime {

/// The coordinator machine's options for a job. `secret`: the job's. Pure.
protocol::Options machineOptions(const model::JobSpec& spec, const Secret& secret);

protocol::Policies machinePolicies(const model::Policies& policies);
/// `policies` with what the machine knows of them replaced by its own.
model::Policies modelPolicies(const protocol::Policies& known, model::Policies policies);

}  // namespace bulkhead::runtime
