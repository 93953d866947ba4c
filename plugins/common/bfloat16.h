// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>

#include "plugins/common/both.h"

/// The upper half of a float32, the same on the GPU and on the CPU. Threads: any.
namespace bulkhead {

/// A bfloat16 as its bits.
struct Bf16 {
    uint16_t bits;
};

BULKHEAD_BOTH inline float widen(Bf16 x) {
    const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/// To nearest, ties to even; a NaN stays a NaN, whose other bits are the processor's own.
BULKHEAD_BOTH inline Bf16 narrow(float x) {
#ifdef __CUDA_ARCH__
    Bf16 near;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(near.bits) : "f"(x));
    return near;
#else
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40u;
    return Bf16{static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded)};
#endif
}

}  // namespace bulkhead
