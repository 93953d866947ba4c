// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Marks what nvcc compiles for host and device; plain C++ elsewhere. Headers that use it keep to
/// C++17 and to the freestanding part of the library.
#ifdef __CUDACC__
#define BULKHEAD_BOTH __host__ __device__
#else
#define BULKHEAD_BOTH
#endif

/// Before a loop over registers, which have no index on a GPU, and before one whose rounds must not
/// need registers at the same time.
#ifdef __CUDA_ARCH__
#define BULKHEAD_UNROLL _Pragma("unroll")
#define BULKHEAD_ROLLED _Pragma("unroll 1")
#else
#define BULKHEAD_UNROLL
#define BULKHEAD_ROLLED
#endif
