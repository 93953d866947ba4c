// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/ftar/reduction.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

namespace bulkhead::runtime {
namespace {

/// 8 KiB: the accumulator stays in the first-level cache while the sources pass by.
constexpr size_t kBlock = 2048;

Bfloat16 narrow(float x) {
    const auto bits = std::bit_cast<uint32_t>(x);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40u;
    return static_cast<Bfloat16>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

float widen(Bfloat16 x) {
    return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
}

struct Exact {
    static float load(float x) { return x; }
};

struct Rounded {
    static float load(float x) { return widen(narrow(x)); }
    static float load(Bfloat16 x) { return widen(x); }
};

/// Adds as many sources at once as the processor's prefetcher can follow: one
/// after the other takes a third longer (measured, 4 sources of 64 MiB).
constexpr size_t kAtOnce = 4;

/// to[i] = ((below[i] + s0[i]) + s1[i]) + ... over kCount sources, all from element `at` on.
template <class Form, bool kOnTop, size_t kCount, class T>
void add(const float* below, const T* const* sources, size_t at, float* to, size_t n) {
    const T* from[kCount];
    for (size_t s = 0; s < kCount; ++s) from[s] = sources[s] + at;
#pragma GCC ivdep
    for (size_t i = 0; i < n; ++i) {
        float sum = kOnTop ? below[i] + Form::load(from[0][i]) : Form::load(from[0][i]);
        for (size_t s = 1; s < kCount; ++s) sum += Form::load(from[s][i]);
        to[i] = sum;
    }
}

template <class Form, bool kOnTop, class T>
void addSome(const float* below, std::span<const T* const> sources, size_t at, float* to,
             size_t n) {
    static_assert(kAtOnce == 4);
    const T* const* from = sources.data();
    switch (sources.size()) {
        case 1:
            return add<Form, kOnTop, 1>(below, from, at, to, n);
        case 2:
            return add<Form, kOnTop, 2>(below, from, at, to, n);
        case 3:
            return add<Form, kOnTop, 3>(below, from, at, to, n);
        default:
            return add<Form, kOnTop, 4>(below, from, at, to, n);
    }
}

/// The last additions write to `out`, those before them into a block of our own: so `out` may be
/// one of the sources.
template <class Form, class T>
void sumBlocks(std::span<const T* const> sources, float* out, size_t count) {
    float block[kBlock];
    for (size_t at = 0; at < count; at += kBlock) {
        const size_t n = std::min(kBlock, count - at);
        for (size_t s = 0; s < sources.size(); s += kAtOnce) {
            const auto some = sources.subspan(s, std::min(kAtOnce, sources.size() - s));
            float* to = s + kAtOnce < sources.size() ? block : out + at;
            if (s == 0)
                addSome<Form, false>(block, some, at, to, n);
            else
                addSome<Form, true>(block, some, at, to, n);
        }
        if constexpr (std::is_same_v<Form, Rounded>) roundToBfloat16({out + at, n}, {out + at, n});
    }
}

}  // namespace

void sumInOrder(std::span<const float* const> sources, float* out, size_t count) {
    if (sources.size() > 1) return sumBlocks<Exact>(sources, out, count);
    if (count > 0 && out != sources[0]) std::memcpy(out, sources[0], count * sizeof(float));
}

void sumRounded(std::span<const float* const> sources, float* out, size_t count) {
    if (sources.size() > 1) return sumBlocks<Rounded>(sources, out, count);
    roundToBfloat16({sources[0], count}, {out, count});
}

void sumRounded(std::span<const Bfloat16* const> sources, float* out, size_t count) {
    if (sources.size() > 1) return sumBlocks<Rounded>(sources, out, count);
    fromBfloat16({sources[0], count}, {out, count});
}

void toBfloat16(std::span<const float> from, std::span<Bfloat16> to) {
    const float* __restrict in = from.data();
    Bfloat16* __restrict out = to.data();
    for (size_t i = 0; i < from.size(); ++i) out[i] = narrow(in[i]);
}

void fromBfloat16(std::span<const Bfloat16> from, std::span<float> to) {
    const Bfloat16* __restrict in = from.data();
    float* __restrict out = to.data();
    for (size_t i = 0; i < from.size(); ++i) out[i] = widen(in[i]);
}

void roundToBfloat16(std::span<const float> from, std::span<float> to) {
    const float* in = from.data();
    float* out = to.data();
#pragma GCC ivdep
    for (size_t i = 0; i < from.size(); ++i) out[i] = widen(narrow(in[i]));
}

}  // namespace bulkhead::runtime
