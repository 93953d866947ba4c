// SPDX-License-Identifier: Apache-2.0
#include "plugins/llama_moe/cpu_math.h"

#include <algorithm>

#include "bulkhead/state_hash.h"
#include "plugins/llama_moe/blas.h"
#include "plugins/llama_moe/kernels.h"

namespace bulkhead::llama_moe {

template <class T>
void CpuMath<T>::product(const Product<T>& p) {
    gemm(p.turnA, p.turnB, p.m, p.n, p.k, p.alpha, p.a, p.lda, p.b, p.ldb, p.beta,
         static_cast<T*>(p.c), p.ldc);
}

template <class T>
void CpuMath<T>::normForward(const T* x, const T* gain, T* y, T* scale, T* same, size_t rows,
                             size_t dim, T epsilon) {
    llama_moe::normForward(x, gain, y, scale, rows, dim, epsilon);
    if (same != nullptr) std::copy_n(x, rows * dim, same);
}

template <class T>
void CpuMath<T>::normBackward(const T* dy, const T* x, const T* gain, const T* scale, T* dx, T*,
                              T* dGain, size_t rows, size_t dim) {
    llama_moe::normBackward(dy, x, gain, scale, dx, dGain, rows, dim);
}

template <class T>
void CpuMath<T>::swigluForward(const T* h, T* act, size_t rows, size_t hidden) {
    llama_moe::swigluForward(h, act, rows, hidden);
}

template <class T>
void CpuMath<T>::swigluBackward(T* h, const T* dAct, size_t rows, size_t hidden) {
    llama_moe::swigluBackward(h, dAct, rows, hidden);
}

template <class T>
void CpuMath<T>::route(const T* logits, const T* balance, int32_t* chosen, T* gates, size_t rows,
                       size_t experts, size_t k) {
    for (size_t row = 0; row < rows; ++row)
        chooseExperts(logits + row * experts, balance, chosen + row * k, gates + row * k, experts,
                      k);
}

template <class T>
void CpuMath<T>::sortByExpert(const int32_t* chosen, int32_t* place, int32_t* starts,
                              size_t choices, size_t experts) {
    std::fill_n(starts, experts + 1, 0);
    for (size_t a = 0; a < choices; ++a) ++starts[chosen[a]];
    // Counts become ends, then, filled from behind, beginnings.
    for (size_t e = 0; e < experts; ++e) starts[e + 1] += starts[e];
    for (size_t a = choices; a-- > 0;) place[a] = --starts[chosen[a]];
}

namespace {

/// Calls visit(group, first row, rows).
template <class Visit>
void forGroups(const Groups& groups, Visit&& visit) {
    for (size_t g = 0; g < groups.count; ++g) {
        const auto begin = static_cast<size_t>(groups.starts[g]);
        const size_t rows = static_cast<size_t>(groups.starts[g + 1]) - begin;
        if (rows > 0) visit(g, begin, rows);
    }
}

}  // namespace

template <class T>
void CpuMath<T>::multiplyGroups(const Groups& groups, const T* x, const GroupWeights<T>& w, T* y) {
    forGroups(groups, [&](size_t g, size_t begin, size_t rows) {
        multiply(*this, x + begin * w.in, w.first + g * w.apart, y + begin * w.out, rows, w.in,
                 w.out, T(0));
    });
}

template <class T>
void CpuMath<T>::multiplyGroupsBack(const Groups& groups, const T* x, const T* dy,
                                    const GroupWeights<T>& w, T* dw, T* dx) {
    forGroups(groups, [&](size_t g, size_t begin, size_t rows) {
        addWeightGradient(*this, x + begin * w.in, dy + begin * w.out, dw + g * w.apart, rows, w.in,
                          w.out);
        multiplyBack(*this, dy + begin * w.out, w.first + g * w.apart, dx + begin * w.in, rows,
                     w.in, w.out, T(0));
    });
}

template <class T>
void CpuMath<T>::spread(const T* from, const int32_t* place, const T* gates, T* to, size_t rows,
                        size_t k, size_t dim) {
    for (size_t a = 0; a < rows * k; ++a) {
        T* row = to + static_cast<size_t>(place[a]) * dim;
        if (gates == nullptr)
            std::copy_n(from + a / k * dim, dim, row);
        else
            scaled(row, from + a / k * dim, gates[a], dim);
    }
}

template <class T>
void CpuMath<T>::collect(const T* from, const int32_t* place, T* to, size_t rows, size_t k,
                         size_t dim) {
    for (size_t a = 0; a < rows * k; ++a)
        addScaled(to + a / k * dim, from + static_cast<size_t>(place[a]) * dim, T(1), dim);
}

template <class T>
void CpuMath<T>::routeBackward(const T* dSpread, const int32_t* place, const T* normed,
                               const int32_t* chosen, const T* gates, T* dLogits, T* dNormed,
                               size_t rows, size_t experts, size_t k, size_t dim) {
    std::fill_n(dLogits, rows * experts, T(0));
    for (size_t a = 0; a < rows * k; ++a) {
        const T* row = dSpread + static_cast<size_t>(place[a]) * dim;
        const size_t t = a / k;
        const T gate = gates[a];
        dLogits[t * experts + static_cast<size_t>(chosen[a])] =
            dot(row, normed + t * dim, dim) * gate * (T(1) - gate);
        addScaled(dNormed + t * dim, row, gate, dim);
    }
}

template <class T>
void CpuMath<T>::addSurplus(const int32_t* chosen, T* surplus, size_t choices, size_t experts) {
    for (size_t a = 0; a < choices; ++a) surplus[static_cast<size_t>(chosen[a])] += T(1);
    const T share = static_cast<T>(choices) / static_cast<T>(experts);
    for (size_t e = 0; e < experts; ++e) surplus[e] -= share;
}

template <class T>
void CpuMath<T>::embed(const T* table, const int32_t* tokens, T* out, size_t rows, size_t dim) {
    for (size_t row = 0; row < rows; ++row)
        std::copy_n(table + static_cast<size_t>(tokens[row]) * dim, dim, out + row * dim);
}

template <class T>
void CpuMath<T>::embedBackward(const T* dOut, const int32_t* order, const int32_t* starts,
                               T* dTable, size_t dim) {
    for (size_t v = 0; v < kVocabulary; ++v)
        for (int32_t i = starts[v]; i < starts[v + 1]; ++i)
            addScaled(dTable + v * dim, dOut + static_cast<size_t>(order[i]) * dim, T(1), dim);
}

template <class T>
void CpuMath<T>::crossEntropy(T* logits, const int32_t* targets, double* loss, T* dLogits,
                              size_t rows, size_t classes) {
    llama_moe::crossEntropy(logits, targets, loss, rows, classes);
    if (dLogits != logits) std::copy_n(logits, rows * classes, dLogits);
}

template <class T>
void CpuMath<T>::add(T* to, const T* from, size_t count) {
    addScaled(to, from, T(1), count);
}

template <class T>
void CpuMath<T>::narrow(const T* from, T* to, size_t count) {
    std::copy_n(from, count, to);
}

template <class T>
absl::Status CpuMath<T>::adamW(const AdamW<T>& rule, const Layout& layout, const T* reduced,
                               const StateRuns<T>& state, T*) {
    apply(rule, layout, reduced, state);
    return absl::OkStatus();
}

template <class T>
absl::StatusOr<double> CpuMath<T>::sumOfSquares(const Layout& layout, const T* reduced) {
    return llama_moe::sumOfSquares(layout, reduced);
}

template <class T>
absl::StatusOr<uint64_t> CpuMath<T>::stateHash(const void* state, size_t bytes) {
    return bulkhead_state_hash(state, bytes);
}

template class CpuMath<float>;
template class CpuMath<double>;

}  // namespace bulkhead::llama_moe
