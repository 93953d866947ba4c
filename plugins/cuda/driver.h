// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace bulkhead::cuda {

/// Asks the machine's CUDA driver how many GPUs this process may use: at least one. Unavailable,
/// with one line of cause and remedy, where no driver is installed, where it does not start, and
/// where it shows no GPU. Loads `library` and keeps it: a driver cannot be unloaded. Thread: any.
[[nodiscard]] absl::StatusOr<int32_t> countGpus(const char* library = "libcuda.so.1");

}  // namespace bulkhead::cuda
