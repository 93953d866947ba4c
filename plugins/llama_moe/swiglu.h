// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "plugins/llama_moe/blas.h"
#include "plugins/llama_moe/kernels.h"

namespace bulkhead::llama_moe {

template <class P>
struct SwigluWeights {
    P* w13 = nullptr;  ///< [dim, 2 * hidden]: gate, up
    P* w2 = nullptr;   ///< [hidden, dim]
};

struct SwigluShape {
    size_t dim = 0;
    size_t hidden = 0;
};

/// y = (silu(x Wgate) * (x Wup)) W2 + beta * y over `rows` tokens. h[rows, 2 * hidden] and
/// act[rows, hidden] are kept for the way back.
template <class T>
void swigluLayer(const SwigluShape& shape, const SwigluWeights<const T>& w, const T* x, T* h,
                 T* act, T* y, size_t rows, T beta) {
    multiply(x, w.w13, h, rows, shape.dim, 2 * shape.hidden, T(0));
    swigluForward(h, act, rows, shape.hidden);
    multiply(act, w.w2, y, rows, shape.hidden, shape.dim, beta);
}

/// dx = gradient of x + beta * dx; adds to dw. Destroys h; dAct[rows, hidden] is scratch.
template <class T>
void swigluLayerBackward(const SwigluShape& shape, const SwigluWeights<const T>& w,
                         const SwigluWeights<T>& dw, const T* x, T* h, const T* act, const T* dy,
                         T* dAct, T* dx, size_t rows, T beta) {
    addWeightGradient(act, dy, dw.w2, rows, shape.hidden, shape.dim);
    multiplyBack(dy, w.w2, dAct, rows, shape.hidden, shape.dim, T(0));
    swigluBackward(h, dAct, rows, shape.hidden);
    addWeightGradient(x, h, dw.w13, rows, shape.dim, 2 * shape.hidden);
    multiplyBack(h, w.w13, dx, rows, shape.dim, 2 * shape.hidden, beta);
}

}  // namespace bulkhead::llama_moe
