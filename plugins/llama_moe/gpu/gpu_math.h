// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "plugins/llama_moe/gpu/machine.h"
#include "plugins/llama_moe/math.h"

namespace bulkhead::llama_moe {

/// Math in bfloat16 with float32 masters, as kernels and matrix products that a machine runs.
/// Nothing here touches device memory, so that the same code drives a GPU and the threads of a
/// test. Equal calls give equal bits on one kind of machine: no sum's order is left to chance.
class GpuMath final : public Math<Bf16> {
  public:
    /// `api` and `host` outlive this.
    GpuMath(const Device& device, const gpu::MachineApi* api, const bulkhead_host* host)
        : Math(device), api_(api), host_(host) {}
    ~GpuMath() override;

    absl::Status open(const ModelConfig& config, size_t samples, size_t sequence) override;
    void product(const Product<Bf16>& product) override;
    void normForward(const float* x, const Bf16* gain, Bf16* y, float* scale, float* same,
                     size_t rows, size_t dim, float epsilon) override;
    void normBackward(const float* dy, const float* x, const Bf16* gain, const float* scale,
                      float* dx, Bf16* rounded, float* dGain, size_t rows, size_t dim) override;
    /// The logarithm, for each row and head, of the sum of the exponentials of its scores.
    size_t keptOfAttention(const AttentionShape& shape) const override {
        return shape.tokens() * shape.heads;
    }
    void attentionForward(const AttentionShape& shape, Bf16* qkv, float* kept,
                          Bf16* mixed) override;
    void attentionBackward(const AttentionShape& shape, const Bf16* qkv, const float* kept,
                           const Bf16* mixed, const Bf16* dMixed, Bf16* dQkv) override;
    void swigluForward(const Bf16* h, Bf16* act, size_t rows, size_t hidden) override;
    void swigluBackward(Bf16* h, const Bf16* dAct, size_t rows, size_t hidden) override;
    void route(const float* logits, const Bf16* balance, int32_t* chosen, float* gates, size_t rows,
               size_t experts, size_t k) override;
    void sortByExpert(const int32_t* chosen, int32_t* place, int32_t* starts, size_t choices,
                      size_t experts) override;
    void multiplyGroups(const Groups& groups, const Bf16* x, const GroupWeights<Bf16>& w,
                        Bf16* y) override;
    void multiplyGroupsBack(const Groups& groups, const Bf16* x, const Bf16* dy,
                            const GroupWeights<Bf16>& w, float* dw, Bf16* dx) override;
    void spread(const Bf16* from, const int32_t* place, const float* gates, Bf16* to, size_t rows,
                size_t k, size_t dim) override;
    void collect(const Bf16* from, const int32_t* place, float* to, size_t rows, size_t k,
                 size_t dim) override;
    void routeBackward(const Bf16* dSpread, const int32_t* place, const Bf16* normed,
                       const int32_t* chosen, const float* gates, Bf16* dLogits, float* dNormed,
                       size_t rows, size_t experts, size_t k, size_t dim) override;
    void addSurplus(const int32_t* chosen, float* surplus, size_t choices, size_t experts) override;
    void embed(const Bf16* table, const int32_t* tokens, float* out, size_t rows,
               size_t dim) override;
    void embedBackward(const float* dOut, const int32_t* order, const int32_t* starts,
                       float* dTable, size_t dim) override;
    void crossEntropy(float* logits, const int32_t* targets, double* loss, Bf16* dLogits,
                      size_t rows, size_t classes) override;
    void add(float* to, const float* from, size_t count) override;
    void narrow(const float* from, Bf16* to, size_t count) override;
    absl::Status adamW(const AdamW<float>& rule, const Layout& layout, const float* reduced,
                       const StateRuns<float>& state, Bf16* image) override;
    absl::StatusOr<double> sumOfSquares(const Layout& layout, const float* reduced) override;
    absl::StatusOr<uint64_t> stateHash(const void* state, size_t bytes) override;
    void besideExchange(bool may) override;

  protected:
    absl::Status check() override;

  private:
    template <class Body>
    void launch(const Body& body, size_t blocks) {
        if (blocks > 0)
            api_->launch(machine_, kernelOf(body), &body, static_cast<uint32_t>(blocks));
    }

    /// Makes the stretches on the device those of the layout, if they are not.
    absl::Status useLayout(const Layout& layout);

    const gpu::MachineApi* api_;
    const bulkhead_host* host_;
    gpu::Machine* machine_ = nullptr;
    Buffer<char> workspace_;
    Buffer<float> cosine_, sine_;  ///< [sequence][headDim / 2]
    Buffer<float> along_;          ///< of attention's results, [sample][head][row]
    Buffer<float> parts_;          ///< of norms' gains, [kParts][dim], and behind them sums of some
    Buffer<int32_t> choiceCounts_;   ///< [stretch][expert]
    std::vector<Segment> segments_;  ///< that the stretches are of
    Buffer<gpu::Stretch> stretches_;
    size_t stretchCount_ = 0;
    Buffer<double> squares_;  ///< [block]
    Buffer<double, BULKHEAD_MEMORY_HOST> squaresOnHost_;
    Buffer<uint64_t> pieceSums_;    ///< [piece][kPairs]
    Buffer<uint64_t> pieceHashes_;  ///< [piece]
    Buffer<uint64_t, BULKHEAD_MEMORY_HOST> pieceHashesOnHost_;
    Buffer<char, BULKHEAD_MEMORY_HOST> lastPiece_;
};

}  // namespace bulkhead::llama_moe
