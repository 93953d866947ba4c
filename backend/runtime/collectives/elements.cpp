// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/collectives/elements.h"

#include <algorithm>
#include <array>
#include <type_traits>

namespace bulkhead::runtime {
namespace {

/// The accumulator of a block stays in the first-level cache while the sources pass by.
constexpr size_t kBlock = 1024;

template <class Sum, class T>
Sum widen(T x) {
    if constexpr (std::is_same_v<T, Bf16>) {
        return static_cast<Sum>(toFloat(x));
    } else {
        return static_cast<Sum>(x);
    }
}

template <class T, class Sum>
T narrow(Sum x) {
    if constexpr (std::is_same_v<T, Bf16>) {
        return toBf16(static_cast<float>(x));
    } else {
        return static_cast<T>(x);
    }
}

template <class To, class From, class Sum>
void reduceAs(void* to, std::span<const void* const> from, size_t count) {
    std::array<Sum, kBlock> sum;
    for (size_t at = 0; at < count; at += kBlock) {
        const size_t n = std::min(kBlock, count - at);
        const From* first = static_cast<const From*>(from[0]) + at;
        for (size_t i = 0; i < n; ++i) sum[i] = widen<Sum>(first[i]);
        for (size_t s = 1; s < from.size(); ++s) {
            const From* next = static_cast<const From*>(from[s]) + at;
            for (size_t i = 0; i < n; ++i) sum[i] = static_cast<Sum>(sum[i] + widen<Sum>(next[i]));
        }
        To* out = static_cast<To*>(to) + at;
        for (size_t i = 0; i < n; ++i) out[i] = narrow<To>(sum[i]);
    }
}

template <class From>
bool reduceFrom(void* to, ElementType toType, std::span<const void* const> from, size_t count) {
    constexpr bool wide = std::is_same_v<From, double>;
    using Sum = std::conditional_t<wide, double, float>;
    switch (toType) {
        case ElementType::kF32:
            reduceAs<float, From, Sum>(to, from, count);
            return true;
        case ElementType::kBf16:
            reduceAs<Bf16, From, Sum>(to, from, count);
            return true;
        case ElementType::kF64:
            reduceAs<double, From, double>(to, from, count);
            return true;
        default:
            return false;
    }
}

}  // namespace

size_t elementSize(ElementType type) {
    switch (type) {
        case ElementType::kF32:
        case ElementType::kI32:
            return 4;
        case ElementType::kBf16:
            return 2;
        case ElementType::kF64:
            return 8;
        case ElementType::kU8:
            return 1;
    }
    return 1;
}

bool reduceElements(void* to, ElementType toType, std::span<const void* const> from,
                    ElementType fromType, size_t count) {
    switch (fromType) {
        case ElementType::kF32:
            return reduceFrom<float>(to, toType, from, count);
        case ElementType::kBf16:
            return reduceFrom<Bf16>(to, toType, from, count);
        case ElementType::kF64:
            return reduceFrom<double>(to, toType, from, count);
        case ElementType::kI32:
            if (toType != fromType) return false;
            // Unsigned, because signed overflow is not arithmetic.
            reduceAs<uint32_t, uint32_t, uint32_t>(to, from, count);
            return true;
        case ElementType::kU8:
            if (toType != fromType) return false;
            reduceAs<uint8_t, uint8_t, uint8_t>(to, from, count);
            return true;
    }
    return false;
}

}  // namespace bulkhead::runtime
