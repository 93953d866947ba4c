// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace bulkhead::proto {

/// Silences gRPC's own log, which is about sockets and frames; what matters reaches callers as a
/// status and our own log. What it says before it aborts is kept. Process-wide.
void quietGrpcLog();

}  // namespace bulkhead::proto
