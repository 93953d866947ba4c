// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/llama_moe/attention.h"
#include "plugins/llama_moe/feed_forward.h"
#include "plugins/llama_moe/mixture.h"
#include "plugins/llama_moe/parameter_store.h"

namespace bulkhead::llama_moe {

/// One micro-batch of this shard, in host memory.
struct Batch {
    size_t samples = 0;
    const int32_t* tokens = nullptr;   ///< [samples][sequence + 1], each a byte
    const uint32_t* domain = nullptr;  ///< [samples]
};

/// Called when [begin, end) of the shard's gradient is final, in descending order.
using Ready = std::function<void(size_t begin, size_t end)>;

/// Sums over this shard's own tokens.
struct Sums {
    std::vector<double> domainLoss;  ///< nats
    std::vector<uint64_t> domainTokens;
    std::vector<uint64_t> expertCounts;  ///< [mixture layer][domain][expert]
    uint64_t sentBytes = 0;              ///< to other shards for the experts
    void clear();
};

/// The whole model: embedding, layers, final norm, head, cross-entropy. Forward and backward of one
/// micro-batch over a ParameterStore. Allocates when opened; later only when more rows reach this
/// shard's experts than ever before. Not thread-safe.
template <class A>
class Decoder {
  public:
    using T = Master<A>;

    /// `store` and its math outlive the decoder; the math was opened for as large a batch.
    /// Micro-batches have up to `samples` samples of `sequence` tokens.
    absl::Status open(ParameterStore<A>* store, size_t samples, size_t sequence, size_t domains);

    Sums emptySums() const;
    /// Collective. Adds losses and router counts to `sums`. Returns when all is computed.
    absl::Status forward(const Batch& batch, Sums* sums);
    /// Collective. Of the batch last given to forward, once; adds to the gradients. With `last`,
    /// units are reduced over the shards, from the head down, and `ready` told. Returns when all is
    /// computed.
    absl::Status backward(const Batch& batch, bool last, const Ready& ready);
    /// Of the batch last given to forward.
    size_t samples() const { return samples_; }
    /// Experts chosen by the tokens of a sample of that batch, [token][mixture layer][choice].
    void routing(size_t sample, uint32_t* out) const;
    /// To other shards for the experts, since open.
    uint64_t sentBytes() const;

  private:
    struct Layer {
        Attention<A> attention;
        FeedForward<A> feedForward;  ///< of dense layers
        Mixture<A> mixture;          ///< of mixture layers
    };
    struct LayerOffsets {
        size_t attentionNorm, wqkv, wo, norm, w13, w2, router, balance;
    };
    template <class P>
    struct LayerWeights {
        AttentionWeights<P> attention;
        FeedForwardWeights<P> feedForward;
        MixtureWeights<P> mixture;
    };

    const ModelConfig& config() const { return store_->spec().config; }
    size_t headUnit() const { return config().layers + 1; }
    template <class P>
    LayerWeights<P> layerWeights(size_t layer, P* base) const;
    T* stream(size_t index) { return streams_.data() + index * maxTokens_ * config().dim; }

    /// What the device needs to know of the micro-batch's tokens, each an array of device memory.
    struct Told {
        int32_t* inputs = nullptr;   ///< by row
        int32_t* targets = nullptr;  ///< by row
        int32_t* order = nullptr;    ///< rows by input, those of one input ascending
        int32_t* starts = nullptr;   ///< [kVocabulary + 1]: where in `order` each input's begin
    };
    Told told(int32_t* base) const {
        return {base, base + maxTokens_, base + 2 * maxTokens_, base + 3 * maxTokens_};
    }
    size_t toldCount() const { return 3 * maxTokens_ + kVocabulary + 1; }

    void tell(const Batch& batch);
    absl::Status head(const Batch& batch);
    void headBackward(size_t tokens);
    void addLosses(const Batch& batch, Sums* sums) const;
    void addCounts(const Batch& batch, size_t layer, Sums* sums) const;
    absl::Status finish(size_t unit, bool last, const Ready& ready);

    Math<A>* math_ = nullptr;
    ParameterStore<A>* store_ = nullptr;
    size_t sequence_ = 0;
    size_t maxTokens_ = 0;
    size_t domains_ = 0;
    size_t samples_ = 0;
    std::vector<std::unique_ptr<Layer>> layers_;
    std::vector<LayerOffsets> offsets_;
    size_t headWeights_ = 0;  ///< offset in the head's unit
    AttentionScratch<A> attentionScratch_;
    MixtureScratch<A> mixtureScratch_;
    Buffer<T> streams_;  ///< residual stream [2 * layers + 1][tokens][dim]
    Buffer<T> gradient_, headScale_, logits_;
    Buffer<A> headNormed_;
    Narrowed<A> dLogits_;
    Buffer<int32_t> told_;
    Buffer<int32_t, BULKHEAD_MEMORY_HOST> toldOnHost_;
    Buffer<double> losses_;
    Buffer<double, BULKHEAD_MEMORY_HOST> lossesOnHost_;
};

}  // namespace bulkhead::llama_moe
