// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "plugins/llama_moe/math.h"

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
/// act[rows, hidden] are kept for the way back. Y is A or its Master.
template <class A, class Y>
void swigluLayer(Math<A>& math, const SwigluShape& shape, const SwigluWeights<const A>& w,
                 const A* x, A* h, A* act, Y* y, size_t rows, Master<A> beta) {
    multiply(math, x, w.w13, h, rows, shape.dim, 2 * shape.hidden, Master<A>(0));
    math.swigluForward(h, act, rows, shape.hidden);
    multiply(math, act, w.w2, y, rows, shape.hidden, shape.dim, beta);
}

/// dx = gradient of x + beta * dx; adds to dw. Destroys h; dAct[rows, hidden] is scratch. dx may be
/// dy.
template <class A, class X>
void swigluLayerBackward(Math<A>& math, const SwigluShape& shape, const SwigluWeights<const A>& w,
                         const SwigluWeights<Master<A>>& dw, const A* x, A* h, const A* act,
                         const A* dy, A* dAct, X* dx, size_t rows, Master<A> beta) {
    addWeightGradient(math, act, dy, dw.w2, rows, shape.hidden, shape.dim);
    multiplyBack(math, dy, w.w2, dAct, rows, shape.hidden, shape.dim, Master<A>(0));
    math.swigluBackward(h, dAct, rows, shape.hidden);
    addWeightGradient(math, x, h, dw.w13, rows, shape.dim, 2 * shape.hidden);
    multiplyBack(math, h, w.w13, dx, rows, shape.dim, 2 * shape.hidden, beta);
}

}  // namespace bulkhead::llama_moe
