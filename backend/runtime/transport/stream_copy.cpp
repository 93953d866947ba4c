// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace bulkhead::runtime {

void streamCopy(std::byte* to, const std::byte* from, size_t size) {
#ifdef __SSE2__
    constexpr size_t kLine = 64;
    const size_t head = std::min(size, (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine);
    std::memcpy(to, from, head);
    size_t at = head;
    for (; at + kLine <= size; at += kLine) {
        const auto* in = reinterpret_cast<const __m128i*>(from + at);
        auto* out = reinterpret_cast<__m128i*>(to + at);
        const __m128i a = _mm_loadu_si128(in);
        const __m128i b = _mm_loadu_si128(in + 1);
        const __m128i c = _mm_loadu_si128(in + 2);
        const __m128i d = _mm_loadu_si128(in + 3);
        _mm_stream_si128(out, a);
        _mm_stream_si128(out + 1, b);
        _mm_stream_si128(out + 2, c);
        _mm_stream_si128(out + 3, d);
    }
    std::memcpy(to + at, from + at, size - at);
    _mm_sfence();  // such writes are ordered with later ones by this alone
#else
    std::memcpy(to, from, size);
#endif
}

}  // namespace bulkhead::runtime
