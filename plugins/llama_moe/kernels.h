// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

/// The loops between the matrix products, for float and double. Rows are tokens; every matrix is
/// row-major. Not a number stays not a number. Results depend on the build and the arguments only.
namespace bulkhead::llama_moe {

/// y = x * gain / rms(x), rms over each row of `dim`; scale[row] keeps 1 / rms for the way back.
template <class T>
void normForward(const T* x, const T* gain, T* y, T* scale, size_t rows, size_t dim, T epsilon);
/// dx += the gradient through the norm, dGain += its gradient.
template <class T>
void normBackward(const T* dy, const T* x, const T* gain, const T* scale, T* dx, T* dGain,
                  size_t rows, size_t dim);

/// Rotary positions: angle of position t and pair i is t * theta^(-2i / headDim); element i of a
/// head is paired with element i + headDim / 2. cosine and sine are [positions][headDim / 2].
template <class T>
void ropeTable(T* cosine, T* sine, size_t positions, size_t headDim, double theta);
/// Turns `heads` neighbouring heads of each row (stride apart); row r is position r % positions.
/// `sign` is 1 forward and -1 for gradients.
template <class T>
void rope(T* x, size_t rows, size_t stride, size_t heads, size_t headDim, size_t positions,
          const T* cosine, const T* sine, T sign);

/// In place: row r of `rows` becomes the softmax of its first `firstValid + r` elements, and the
/// rest of its `columns` zero.
template <class T>
void causalSoftmax(T* x, size_t rows, size_t columns, size_t stride, size_t firstValid);
/// In place: dp becomes p * (dp - sum(p * dp)) over the same elements; the rest zero.
template <class T>
void causalSoftmaxBackward(const T* p, size_t pStride, T* dp, size_t dpStride, size_t rows,
                           size_t columns, size_t firstValid);

/// act[rows,hidden] = silu(gate) * up, where h is [rows][gate hidden, up hidden].
template <class T>
void swigluForward(const T* h, T* act, size_t rows, size_t hidden);
/// h becomes the gradient with respect to h.
template <class T>
void swigluBackward(T* h, const T* dAct, size_t rows, size_t hidden);

/// Cross-entropy in nats: loss[row] = -log softmax(logits)[target]; logits become the gradient.
template <class T>
void crossEntropy(T* logits, const int32_t* targets, double* loss, size_t rows, size_t classes);

/// The k experts with the largest logit + balance, largest first, and the sigmoids of their logits.
template <class T>
void chooseExperts(const T* logits, const T* balance, int32_t* chosen, T* gates, size_t experts,
                   size_t k);

/// y = factor * x, y += factor * x, and the inner product, over n elements.
template <class T>
void scaled(T* y, const T* x, T factor, size_t n);
template <class T>
void addScaled(T* y, const T* x, T factor, size_t n);
template <class T>
T dot(const T* a, const T* b, size_t n);

}  // namespace bulkhead::llama_moe
