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

using Lanes = std::array<double, 8>;

template <class T>
void addSquares(size_t n, const T* values, Lanes& sums) {
    Lanes local = sums;
    size_t i = 0;
    for (; i + local.size() <= n; i += local.size())
        for (size_t lane = 0; lane < local.size(); ++lane) {
            const auto g = static_cast<double>(values[i + lane]);
            local[lane] += g * g;
        }
    for (; i < n; ++i) local[0] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    sums = local;
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
    Lanes sums{};
    for (const Segment& segment : layout.segments()) {
        const size_t n = segment.end - segment.begin;
        // They do not count, unless one of them is not finite.
        if (segment.kind == TensorKind::kBalance)
            for (size_t i = segment.begin; i < segment.end; ++i)
                sums[0] += 0.0 * static_cast<double>(reduced[i]);
        else
            addSquares(n, reduced + segment.begin, sums);
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
