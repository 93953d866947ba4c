// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace bulkhead::runtime {

/// False only in the program that bench/ftar measures against: the same sources without fences in
/// the frames, polls of the abort signal and checks of silence. Nothing else may be built so.
#ifdef BULKHEAD_BENCH_WITHOUT_FAULT_TOLERANCE
inline constexpr bool kFaultTolerant = false;
#else
inline constexpr bool kFaultTolerant = true;
#endif

}  // namespace bulkhead::runtime
