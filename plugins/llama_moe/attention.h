// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "plugins/llama_moe/math.h"

namespace bulkhead::llama_moe {

/// Pointers into a unit's dense run: weights to read, or their gradients.
template <class P>
struct AttentionWeights {
    P* norm = nullptr;
    P* wqkv = nullptr;  ///< [dim, (heads + 2 kvHeads) * headDim]: queries, keys, values
    P* wo = nullptr;    ///< [dim, dim]
};

/// Memory that attention layers share for one call.
template <class A>
struct AttentionScratch {
    Buffer<A> dOut, dQkv;
    Buffer<Master<A>> dNormed;
};

/// Causal grouped-query attention with pre-norm and residual, over samples of one length. Chunked:
/// rotary positions, a token sees its own chunk up to itself. Full: no positions, the whole sample
/// up to itself (Llama 4's NoPE layers). Keeps what the way back needs of the last forward.
template <class A>
class Attention {
  public:
    using T = Master<A>;

    /// Memory for up to `samples` samples of `sequence` tokens; `scratch` outlives this.
    absl::Status open(const ModelConfig& config, bool full, Math<A>* math, size_t samples,
                      size_t sequence, AttentionScratch<A>* scratch);

    /// out[tokens, dim] = in + attention(norm(in))
    void forward(const AttentionWeights<const A>& w, const T* in, T* out, size_t samples);
    /// `in` as in forward. dx holds the gradient of `out` and becomes that of `in`, and so does
    /// `rounded`, which is it in A; gradients of the weights are added to `dw`.
    void backward(const AttentionWeights<const A>& w, const AttentionWeights<T>& dw, const T* in,
                  T* dx, A* rounded, size_t samples);

  private:
    Math<A>* math_ = nullptr;
    AttentionShape shape_;
    T epsilon_ = 0;
    AttentionScratch<A>* scratch_ = nullptr;
    Buffer<T> scale_;
    Buffer<A> normed_, qkv_, mixed_;
    Buffer<T> kept_;
};

}  // namespace bulkhead::llama_moe
