// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/report.h"
#include "bench/torch/gpt_job.h"

namespace bulkhead::bench {

/// The same seeded kills upon examples/gpt under Bulkhead and upon the same model on torchft, in
/// turn, by the same interpreter. Without torchft: its reason in one line and our own rows.
Report besideTorchft(const GptOptions& o);

}  // namespace bulkhead::bench
