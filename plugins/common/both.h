// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Marks what nvcc compiles for host and device; plain C++ elsewhere. Headers that use it keep to
/// C++17 and to the freestanding part of the library.
#ifdef __CUDACC__
#define BULKHEAD_BOTH __host__ __device__
#else
#define BULKHEAD_BOTH
#endif

/// Before a loop over registers, which have no index on a GPU.
#ifdef __CUDA_ARCH__
#define BULKHEAD_UNROLL _Pragma("unroll")
#else
#define BULKHEAD_UNROLL
#endif
