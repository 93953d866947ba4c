// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#ifndef __CUDA_ARCH__
#include <chrono>
#include <thread>
#endif

#include "plugins/common/both.h"

/// The few memory operations that GPU and CPU speak to each other with, at system scope: words in
/// pinned host memory that one side writes and the other reads.
namespace bulkhead::cuda {

/// Acquire load: a thread that reads a value also sees the writes before its storeRelease.
BULKHEAD_BOTH inline uint64_t loadAcquire(const uint64_t* at) {
#ifdef __CUDA_ARCH__
    uint64_t value;
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
    return value;
#else
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
#endif
}

BULKHEAD_BOTH inline void storeRelease(uint64_t* at, uint64_t value) {
#ifdef __CUDA_ARCH__
    asm volatile("st.release.sys.u64 [%0], %1;" : : "l"(at), "l"(value) : "memory");
#else
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
#endif
}

/// Likewise, and what this thread loads later is loaded after that: of two that each store one word
/// and then load the other's, at least one sees what the other stored.
BULKHEAD_BOTH inline void storeBeforeLoads(uint64_t* at, uint64_t value) {
#ifdef __CUDA_ARCH__
    storeRelease(at, value);
    asm volatile("fence.sc.sys;" : : : "memory");
#else
    __atomic_store_n(at, value, __ATOMIC_SEQ_CST);
#endif
}

/// A clock that only ever grows.
BULKHEAD_BOTH inline uint64_t nanoseconds() {
#ifdef __CUDA_ARCH__
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
#else
    return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

/// Between a kernel's looks at a word that has not changed.
BULKHEAD_BOTH inline void relax() {
#ifdef __CUDA_ARCH__
    __nanosleep(100);
#else
    std::this_thread::sleep_for(std::chrono::microseconds(50));
#endif
}

}  // namespace bulkhead::cuda
