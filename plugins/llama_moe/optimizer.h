// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "plugins/llama_moe/layout.h"

namespace bulkhead::llama_moe {

/// Decoupled weight decay (Loshchilov & Hutter, AdamW) with bias corrections from outside.
template <class T>
struct AdamW {
    T beta1, beta2, epsilon, weightDecay;
    T learningRate;
    T gradientScale;
    T correction1, correction2;  ///< 1 - beta^updates
    T balanceRate;               ///< step of the balancing bias, against the sign of its surplus
};

/// A shard's three flat runs.
template <class T>
struct StateRuns {
    T* parameters = nullptr;
    T* first = nullptr;
    T* second = nullptr;
};

/// One update of the flat runs from the reduced gradient. Element by element, each operation
/// rounded on its own: equal inputs give equal bits on any machine.
template <class T>
void apply(const AdamW<T>& rule, const Layout& layout, const T* reduced, const StateRuns<T>& state);

/// Sum of squares over all but the balancing surplus, which is no gradient (but not-a-number there
/// makes the sum not a number too). Always the same order, whatever the machine's vectors.
template <class T>
double sumOfSquares(const Layout& layout, const T* reduced);

}  // namespace bulkhead::llama_moe
