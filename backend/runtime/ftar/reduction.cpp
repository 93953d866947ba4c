// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/ftar/reduction.h"

#include <algorithm>
#include <bit>
#include <cstring>

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
    static float store(float x) { return x; }
};

struct Rounded {
    static float load(float x) { return widen(narrow(x)); }
    static float load(Bfloat16 x) { return widen(x); }
    static float store(float x) { return load(x); }
};

/// The last addition writes to `out`, those before it into a block of our own: so `out` may be one
/// of the sources.
template <class Form, class T>
void sumBlocks(std::span<const T* const> sources, float* out, size_t count) {
    float block[kBlock];
    for (size_t at = 0; at < count; at += kBlock) {
        const size_t n = std::min(kBlock, count - at);
        const T* a = sources[0] + at;
        const T* b = sources[1] + at;
        float* to = out + at;
        if (sources.size() == 2) {
#pragma GCC ivdep
            for (size_t i = 0; i < n; ++i) to[i] = Form::store(Form::load(a[i]) + Form::load(b[i]));
            continue;
        }
        for (size_t i = 0; i < n; ++i) block[i] = Form::load(a[i]) + Form::load(b[i]);
        for (size_t s = 2; s + 1 < sources.size(); ++s) {
            const T* from = sources[s] + at;
            for (size_t i = 0; i < n; ++i) block[i] += Form::load(from[i]);
        }
        const T* last = sources.back() + at;
#pragma GCC ivdep
        for (size_t i = 0; i < n; ++i) to[i] = Form::store(block[i] + Form::load(last[i]));
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
