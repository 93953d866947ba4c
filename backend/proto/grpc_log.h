// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace bulkhead::proto {

/// Silences gRPC's own log, which is about sockets and frames; what matters reaches callers as a
/// status and our own log. What it says before it aborts is kept. Process-wide.
void quietGrpcLog();

/// Lets gRPC run until the process ends by _exit(). Else its last user waits for its threads, and
/// of gRPC 1.51 one waits for up to 10 s after a large message that a socket did not take at once.
void keepGrpc();

}  // namespace bulkhead::proto
