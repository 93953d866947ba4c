// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include "absl/status/statusor.h"

namespace bulkhead::cuda {

/// NCCL functions of a group. Looked up when the first group of several ranks is made: a node that
/// runs one rank a replica needs no NCCL, and a plugin that finds no GPU does not load its 200 MB.
struct NcclLibrary {
    decltype(&::ncclGetUniqueId) getUniqueId = nullptr;
    decltype(&::ncclCommInitRankConfig) commInitRankConfig = nullptr;
    decltype(&::ncclCommFinalize) commFinalize = nullptr;
    decltype(&::ncclCommDestroy) commDestroy = nullptr;
    decltype(&::ncclCommAbort) commAbort = nullptr;
    decltype(&::ncclCommGetAsyncError) commGetAsyncError = nullptr;
    decltype(&::ncclGetErrorString) getErrorString = nullptr;
    decltype(&::ncclGetLastError) getLastError = nullptr;
    decltype(&::ncclAllGather) allGather = nullptr;
    decltype(&::ncclSend) send = nullptr;
    decltype(&::ncclRecv) recv = nullptr;
    decltype(&::ncclGroupStart) groupStart = nullptr;
    decltype(&::ncclGroupEnd) groupEnd = nullptr;
    decltype(&::ncclGetVersion) getVersion = nullptr;
};

/// Loads libnccl.so.2 once and keeps it. Unavailable where it is not found, FailedPrecondition
/// where it lacks a function. Thread: any.
[[nodiscard]] absl::StatusOr<const NcclLibrary*> ncclLibrary();

}  // namespace bulkhead::cuda
