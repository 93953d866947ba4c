// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "backend/model/event.h"
#include "backend/model/run_views.h"

/// Explains GPU errors to an operator. Pure; thread: any.
namespace bulkhead::model {

/// kWarning when only the program that ran there is the likely cause or the only victim, kError
/// when the GPU itself needs somebody. After NVIDIA's list of Xid errors; a number that is not on
/// it is an error.
[[nodiscard]] Severity severityOf(const GpuTroubled& trouble);

/// "Xid 79: the GPU has fallen off the bus; cordon the node and reset or replace the GPU", without
/// where.
[[nodiscard]] std::string troubleText(const GpuTroubled& trouble);

/// "GPU 1 of node0", with its name where it is known.
[[nodiscard]] std::string gpuName(const GpuTroubled& trouble);

/// "computed there: r0s1, r2s0"
[[nodiscard]] std::string ranksText(const GpuTroubled& trouble);

/// The reason for which a node shows no GPU: its agent's words, or the lack of a sample.
[[nodiscard]] std::string whyNoGpus(const NodeView& node);

}  // namespace bulkhead::model
