// SPDX-License-Identifier: Apache-2.0
// Compiled with -ffp-contract=off: a fused multiply-add would round differently where there is one.
#include "plugins/llama_moe/optimizer.h"

#include <array>
#include <cmath>

namespace bulkhead::llama_moe {
namespace {

template <class T>
void applyRange(const AdamW<T>& rule, T decay, size_t n, const T* __restrict reduced,
                T* __restrict parameters, T* __restrict first, T* __restrict second) {
    const T keep1 = rule.beta1, add1 = T(1) - rule.beta1;
    const T keep2 = rule.beta2, add2 = T(1) - rule.beta2;
    for (size_t i = 0; i < n; ++i) {
        const T g = reduced[i] * rule.gradientScale;
        first[i] = keep1 * first[i] + add1 * g;
        second[i] = keep2 * second[i] + add2 * g * g;
        const T mean = first[i] / rule.correction1;
        const T deviation = std::sqrt(second[i] / rule.correction2) + rule.epsilon;
        parameters[i] -= rule.learningRate * (mean / deviation + decay * parameters[i]);
    }
}

template <class T>
void balanceRange(T rate, size_t n, const T* surplus, T* bias) {
    for (size_t i = 0; i < n; ++i)
        bias[i] -= surplus[i] > T(0) ? rate : surplus[i] < T(0) ? -rate : T(0);
}

}  // namespace

template <class T>
void apply(const AdamW<T>& rule, const Layout& layout, const T* reduced,
           const StateRuns<T>& state) {
    for (const Segment& segment : layout.segments()) {
        const size_t at = segment.begin;
        const size_t n = segment.end - at;
        if (segment.kind == TensorKind::kPadding) continue;
        if (segment.kind == TensorKind::kBalance) {
            balanceRange(rule.balanceRate, n, reduced + at, state.parameters + at);
            continue;
        }
        const T decay = segment.kind == TensorKind::kMatrix ? rule.weightDecay : T(0);
        applyRange(rule, decay, n, reduced + at, state.parameters + at, state.first + at,
                   state.second + at);
    }
}

template <class T>
double sumOfSquares(const Layout& layout, const T* reduced) {
    constexpr size_t kLanes = 8;
    std::array<double, kLanes> sums{};
    for (const Segment& segment : layout.segments()) {
        const double weight = segment.kind == TensorKind::kBalance ? 0.0 : 1.0;
        size_t i = segment.begin;
        for (; i + kLanes <= segment.end; i += kLanes)
            for (size_t lane = 0; lane < kLanes; ++lane) {
                const auto g = static_cast<double>(reduced[i + lane]);
                sums[lane] += g * g * weight;
            }
        for (; i < segment.end; ++i) {
            const auto g = static_cast<double>(reduced[i]);
            sums[0] += g * g * weight;
        }
    }
    double sum = 0;
    for (const double lane : sums) sum += lane;
    return sum;
}

// A type cannot stand in parentheses.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define BULKHEAD_INSTANTIATE(T)                                                            \
    template void apply<T>(const AdamW<T>&, const Layout&, const T*, const StateRuns<T>&); \
    template double sumOfSquares<T>(const Layout&, const T*);
// NOLINTEND(bugprone-macro-parentheses)
BULKHEAD_INSTANTIATE(float)
BULKHEAD_INSTANTIATE(double)

}  // namespace bulkhead::llama_moe
