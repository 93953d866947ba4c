// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "plugins/llama_moe/config.h"
#include "plugins/llama_moe/device.h"

namespace bulkhead::llama_moe {

/// Pointers into a unit's dense run, for reading (const T) or for gradients (T).
template <class P>
struct AttentionWeights {
    P* norm = nullptr;
    P* wqkv = nullptr;  ///< [dim, (heads + 2 kvHeads) * headDim]: queries, keys, values
    P* wo = nullptr;    ///< [dim, dim]
};

/// What attention layers share: angles and memory that lives for one call.
template <class T>
struct AttentionScratch {
    Buffer<T> cosine, sine;  ///< [sequence][headDim / 2]
    Buffer<T> dOut, dQkv, dScores, dNormed;
};

/// Causal grouped-query attention with pre-norm and residual, over samples of one length. Chunked:
/// rotary positions, a token sees its own chunk up to itself. Full: no positions, the whole sample
/// up to itself (Llama 4's NoPE layers). Keeps what the way back needs of the last forward.
template <class T>
class Attention {
  public:
    /// Memory for up to `samples` samples of `sequence` tokens; `scratch` outlives this.
    absl::Status open(const ModelConfig& config, bool full, const Device& device, size_t samples,
                      size_t sequence, AttentionScratch<T>* scratch);

    /// out[tokens, dim] = in + attention(norm(in))
    void forward(const AttentionWeights<const T>& w, const T* in, T* out, size_t samples);
    /// `in` as in forward. dx holds the gradient of `out` and becomes that of `in`; gradients of
    /// the weights are added to `dw`.
    void backward(const AttentionWeights<const T>& w, const AttentionWeights<T>& dw, const T* in,
                  T* dx, size_t samples);

  private:
    /// Calls visit(firstRow, rows, firstKey, keys): query rows of a tile and the keys they may see,
    /// as tokens of a sample; the first row sees keys - rows + 1 of them.
    template <class Visit>
    void forTiles(Visit&& visit) const;
    T* scores(size_t sample, size_t head, size_t row) {
        return probabilities_.data() + ((sample * config_.heads + head) * sequence_ + row) * chunk_;
    }

    ModelConfig config_;
    bool full_ = false;
    size_t sequence_ = 0;
    size_t chunk_ = 0;
    AttentionScratch<T>* scratch_ = nullptr;
    Buffer<T> scale_, normed_, qkv_, mixed_;
    Buffer<T> probabilities_;  ///< [sample][head][row][chunk]
};

}  // namespace bulkhead::llama_moe
