// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>

/// A CUDA driver and runtime for tests, as unfriendly as a real one may be:
///
/// - One lock for all calls of the process. Calls that may wait for an idle GPU do, for all that is
///   on its streams, and hold the lock meanwhile: allocating and freeing, device and pinned memory
///   alike, mapping, unmapping, loading a kernel.
/// - An error is the thread's last one until somebody asks, a stream that is at work included; of a
///   GPU that is lost every call says so for ever.
/// - Arguments are checked: a free or close of what is not there, a copy beyond an allocation.
/// - With CUDA_LAUNCH_BLOCKING=1, or blockLaunches(), a launch returns when the kernel has ended.
/// - Memory that another process still maps must not be freed: the process is ended.
///
/// BULKHEAD_FAKE_GPUS says how many GPUs the node has (2); CUDA_VISIBLE_DEVICES narrows and orders
/// them, by index or by UUID. Kernels are functions, run by a thread of their stream. Threads: any.
namespace bulkhead::fake_cuda {

/// A kernel: its address is what cudaLaunchKernel() is given.
struct Kernel {
    /// Copies the arguments, and gives what is to run on `blocks` blocks.
    std::function<std::function<void()>(unsigned blocks, void** arguments)> prepare;
};

struct Counts {
    uint64_t launches = 0;
    uint64_t bytesToHost = 0;
    uint64_t synchronisations = 0;  ///< calls that wait, or may wait, for the GPU
    uint64_t allocations = 0;
};
/// Counts of this process since it began.
Counts counts();

void blockLaunches(bool block);
/// The next call of that function does nothing but fail, as a driver's own trouble makes it.
void failNext(const std::string& function, cudaError_t code);
/// Makes every later call on the GPU return `code`.
void loseGpu(int gpu, cudaError_t code);

}  // namespace bulkhead::fake_cuda
