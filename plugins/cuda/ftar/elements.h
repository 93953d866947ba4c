// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "plugins/common/bfloat16.h"

/// Additions in float32, in a fixed order, the same bits on the GPU and on the CPU: nothing but
/// additions and integer arithmetic, no product that a compiler could fuse with a sum. Only the
/// sign and payload of a NaN are the processor's own.
namespace bulkhead::cuda {

constexpr uint32_t kMaxSources = 64;  ///< as many as an exchange has members

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

template <class T>
BULKHEAD_BOTH void store(const Sum& sum, uint64_t pack, const Pack<float>& total) {
    Pack<T> out;
    BULKHEAD_UNROLL
    for (uint32_t k = 0; k < kPack; ++k) {
        if constexpr (sizeof(T) == sizeof(Bf16))
            out.at[k] = narrow(total.at[k]);
        else
            out.at[k] = rounding(total.at[k], sum.rounded != 0);
    }
    reinterpret_cast<Pack<T>*>(sum.to)[pack] = out;
}

BULKHEAD_BOTH inline void onePack(const Sum& sum, uint64_t pack) {
    float total[kPack];
    load(sum, 0, pack, total);
    for (uint32_t s = 1; s < sum.sources; ++s) {
        float next[kPack];
        load(sum, s, pack, next);
        for (uint32_t k = 0; k < kPack; ++k) total[k] += next[k];
    }
    Pack<float> whole;
    for (uint32_t k = 0; k < kPack; ++k) whole.at[k] = total[k];
    if (sum.narrowTo)
        store<Bf16>(sum, pack, whole);
    else
        store<float>(sum, pack, whole);
}

/// Packs a thread has on their way at a time, of each source. More of them need registers that a
/// kernel beside this one should have.
constexpr uint32_t kBatch = 2;

template <class T>
struct Batch {
    Pack<T> pack[kBatch];
};

template <class T>
BULKHEAD_BOTH void load(const Sum& sum, uint32_t source, uint64_t first, uint64_t step,
                        Batch<T>* out) {
    const auto* from = reinterpret_cast<const Pack<T>*>(sum.from[source]) + first;
    BULKHEAD_UNROLL
    for (uint32_t b = 0; b < kBatch; ++b) out->pack[b] = from[b * step];
}

BULKHEAD_BOTH inline float value(Bf16 x, bool) {
    return widen(x);
}
BULKHEAD_BOTH inline float value(float x, bool rounded) {
    return rounding(x, rounded);
}

/// kBatch packs, `step` apart, where all sources are of one type. Loads go out before anything
/// waits for them, those of the first two sources together: few blocks need many bytes on their
/// way.
template <class T>
BULKHEAD_BOTH void oneBatch(const Sum& sum, uint64_t first, uint64_t step) {
    const bool rounded = sum.rounded != 0;
    Batch<T> next;
    Batch<float> total;
    {
        Batch<T> from;
        load(sum, 0, first, step, &from);
        if (sum.sources > 1) load(sum, 1, first, step, &next);
        BULKHEAD_UNROLL
        for (uint32_t b = 0; b < kBatch; ++b) BULKHEAD_UNROLL
        for (uint32_t k = 0; k < kPack; ++k)
            total.pack[b].at[k] = value(from.pack[b].at[k], rounded);
    }
    BULKHEAD_ROLLED
    for (uint32_t s = 1; s < sum.sources; ++s) {
        BULKHEAD_UNROLL
        for (uint32_t b = 0; b < kBatch; ++b) BULKHEAD_UNROLL
        for (uint32_t k = 0; k < kPack; ++k)
            total.pack[b].at[k] += value(next.pack[b].at[k], rounded);
        if (s + 1 < sum.sources) load(sum, s + 1, first, step, &next);
    }
    BULKHEAD_UNROLL
    for (uint32_t b = 0; b < kBatch; ++b) {
        if (sum.narrowTo)
            store<Bf16>(sum, first + b * step, total.pack[b]);
        else
            store<float>(sum, first + b * step, total.pack[b]);
    }
}

/// This thread's packs in batches; returns the first pack of the thread that is left.
template <class T>
BULKHEAD_BOTH uint64_t batches(const Sum& sum, uint64_t thread, uint64_t threads, uint64_t packs) {
    uint64_t p = thread;
    for (; p + (kBatch - 1) * threads < packs; p += kBatch * threads) oneBatch<T>(sum, p, threads);
    return p;
}

}  // namespace detail

/// The part of `sum` that thread `thread` of `threads` does; all of them together do the whole.
BULKHEAD_BOTH inline void add(const Sum& sum, uint64_t thread, uint64_t threads) {
    uint64_t whole = 0;
    if (detail::packed(sum)) {
        const uint64_t packs = sum.count / detail::kPack;
        const uint64_t all = ~uint64_t{0} >> (kMaxSources - sum.sources);
        whole = packs * detail::kPack;
        uint64_t p = thread;
        if ((sum.narrow & all) == 0) p = detail::batches<float>(sum, thread, threads, packs);
        if ((sum.narrow & all) == all) p = detail::batches<Bf16>(sum, thread, threads, packs);
        for (; p < packs; p += threads) detail::onePack(sum, p);
    }
    for (uint64_t i = whole + thread; i < sum.count; i += threads) detail::one(sum, i);
}

}  // namespace bulkhead::cuda
