// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plugins/llama_moe/math.h"

namespace bulkhead::llama_moe {

/// Everything done at once by this thread, for float and double; device memory is the CPU's.
template <class T>
class CpuMath final : public Math<T> {
  public:
    using Math<T>::Math;

    absl::Status open(const ModelConfig& config, size_t samples, size_t sequence) override;
    void product(const Product<T>& product) override;
    void normForward(const T* x, const T* gain, T* y, T* scale, T* same, size_t rows, size_t dim,
                     T epsilon) override;
    void normBackward(const T* dy, const T* x, const T* gain, const T* scale, T* dx, T* rounded,
                      T* dGain, size_t rows, size_t dim) override;
    /// Probabilities, [sample][head][row][chunk].
    size_t keptOfAttention(const AttentionShape& shape) const override {
        return shape.tokens() * shape.heads * shape.chunk;
    }
    void attentionForward(const AttentionShape& shape, T* qkv, T* probabilities, T* mixed) override;
    void attentionBackward(const AttentionShape& shape, const T* qkv, const T* probabilities,
                           const T* mixed, const T* dMixed, T* dQkv) override;
    void swigluForward(const T* h, T* act, size_t rows, size_t hidden) override;
    void swigluBackward(T* h, const T* dAct, size_t rows, size_t hidden) override;
    void route(const T* logits, const T* balance, int32_t* chosen, T* gates, size_t rows,
               size_t experts, size_t k) override;
    void sortByExpert(const int32_t* chosen, int32_t* place, int32_t* starts, size_t choices,
                      size_t experts) override;
    void multiplyGroups(const Groups& groups, const T* x, const GroupWeights<T>& w, T* y) override;
    void multiplyGroupsBack(const Groups& groups, const T* x, const T* dy, const GroupWeights<T>& w,
                            T* dw, T* dx) override;
    void spread(const T* from, const int32_t* place, const T* gates, T* to, size_t rows, size_t k,
                size_t dim) override;
    void collect(const T* from, const int32_t* place, T* to, size_t rows, size_t k,
                 size_t dim) override;
    void routeBackward(const T* dSpread, const int32_t* place, const T* normed,
                       const int32_t* chosen, const T* gates, T* dLogits, T* dNormed, size_t rows,
                       size_t experts, size_t k, size_t dim) override;
    void addSurplus(const int32_t* chosen, T* surplus, size_t choices, size_t experts) override;
    void embed(const T* table, const int32_t* tokens, T* out, size_t rows, size_t dim) override;
    void embedBackward(const T* dOut, const int32_t* order, const int32_t* starts, T* dTable,
                       size_t dim) override;
    void crossEntropy(T* logits, const int32_t* targets, double* loss, T* dLogits, size_t rows,
                      size_t classes) override;
    void add(T* to, const T* from, size_t count) override;
    void narrow(const T* from, T* to, size_t count) override;
    absl::Status adamW(const AdamW<T>& rule, const Layout& layout, const T* reduced,
                       const StateRuns<T>& state, T* image) override;
    absl::StatusOr<double> sumOfSquares(const Layout& layout, const T* reduced) override;
    absl::StatusOr<uint64_t> stateHash(const void* state, size_t bytes) override;

  private:
    void turn(const AttentionShape& shape, T* qkv, T sign) const;

    Buffer<T> cosine_, sine_;  ///< [sequence][headDim / 2]
    Buffer<T> dScores_;        ///< of one tile
};

}  // namespace bulkhead::llama_moe
