// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "plugins/cuda/ftar/both.h"

/// Additions in float32, in a fixed order, the same bits on the GPU and on the CPU: nothing but
/// additions and integer arithmetic, no product that a compiler could fuse with a sum. Only the
/// payload of a NaN is the processor's own.
namespace bulkhead::cuda {

constexpr uint32_t kMaxSources = 64;  ///< as many as an exchange has members

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

/// To nearest, ties to even; a NaN stays a NaN.
BULKHEAD_BOTH inline Bf16 narrow(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40u;
    return Bf16{static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded)};
}

/// What one chunk adds: to[i] = ((s0[i] + s1[i]) + s2[i]) + ... for i < count.
struct Sum {
    uint64_t to;        ///< address, aligned to its element
    uint64_t count;     ///< elements
    uint64_t narrow;    ///< bit s: source s holds bfloat16, else float32
    uint32_t sources;   ///< 1 to kMaxSources
    uint16_t narrowTo;  ///< 1: the sum is stored as bfloat16
    uint16_t rounded;   ///< 1: every source and the sum are rounded to bfloat16, however stored
    uint64_t from[kMaxSources];  ///< addresses, in the order of addition
};

namespace detail {

constexpr uint32_t kPack = 8;  ///< elements a thread takes at a time: 16 bytes of bfloat16

template <class T>
struct alignas(16) Pack {
    T at[kPack];
};

BULKHEAD_BOTH inline bool packed(uint64_t address) {
    return address % 16 == 0;
}

/// All sources and the target begin where whole packs can be moved.
BULKHEAD_BOTH inline bool packed(const Sum& sum) {
    bool all = packed(sum.to);
    for (uint32_t s = 0; s < sum.sources; ++s) all = all && packed(sum.from[s]);
    return all;
}

BULKHEAD_BOTH inline float rounding(float x, bool rounded) {
    return rounded ? widen(narrow(x)) : x;
}

BULKHEAD_BOTH inline float element(const Sum& sum, uint32_t source, uint64_t i) {
    if ((sum.narrow >> source) & 1u)
        return widen(reinterpret_cast<const Bf16*>(sum.from[source])[i]);
    return rounding(reinterpret_cast<const float*>(sum.from[source])[i], sum.rounded != 0);
}

BULKHEAD_BOTH inline void one(const Sum& sum, uint64_t i) {
    float total = element(sum, 0, i);
    for (uint32_t s = 1; s < sum.sources; ++s) total += element(sum, s, i);
    if (sum.narrowTo)
        reinterpret_cast<Bf16*>(sum.to)[i] = narrow(total);
    else
        reinterpret_cast<float*>(sum.to)[i] = rounding(total, sum.rounded != 0);
}

BULKHEAD_BOTH inline void load(const Sum& sum, uint32_t source, uint64_t pack, float* out) {
    if ((sum.narrow >> source) & 1u) {
        const Pack<Bf16> in = reinterpret_cast<const Pack<Bf16>*>(sum.from[source])[pack];
        for (uint32_t k = 0; k < kPack; ++k) out[k] = widen(in.at[k]);
        return;
    }
    const Pack<float> in = reinterpret_cast<const Pack<float>*>(sum.from[source])[pack];
    for (uint32_t k = 0; k < kPack; ++k) out[k] = rounding(in.at[k], sum.rounded != 0);
}

BULKHEAD_BOTH inline void onePack(const Sum& sum, uint64_t pack) {
    float total[kPack];
    load(sum, 0, pack, total);
    for (uint32_t s = 1; s < sum.sources; ++s) {
        float next[kPack];
        load(sum, s, pack, next);
        for (uint32_t k = 0; k < kPack; ++k) total[k] += next[k];
    }
    if (sum.narrowTo) {
        Pack<Bf16> out;
        for (uint32_t k = 0; k < kPack; ++k) out.at[k] = narrow(total[k]);
        reinterpret_cast<Pack<Bf16>*>(sum.to)[pack] = out;
    } else {
        Pack<float> out;
        for (uint32_t k = 0; k < kPack; ++k) out.at[k] = rounding(total[k], sum.rounded != 0);
        reinterpret_cast<Pack<float>*>(sum.to)[pack] = out;
    }
}

}  // namespace detail

/// The part of `sum` that thread `thread` of `threads` does; all of them together do the whole.
BULKHEAD_BOTH inline void add(const Sum& sum, uint64_t thread, uint64_t threads) {
    uint64_t whole = 0;
    if (detail::packed(sum)) {
        const uint64_t packs = sum.count / detail::kPack;
        whole = packs * detail::kPack;
#ifdef __CUDA_ARCH__
#pragma unroll 2
#endif
        for (uint64_t p = thread; p < packs; p += threads) detail::onePack(sum, p);
    }
    for (uint64_t i = whole + thread; i < sum.count; i += threads) detail::one(sum, i);
}

}  // namespace bulkhead::cuda
