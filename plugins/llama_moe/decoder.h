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
/// shard's experts, or more micro-batches are not settled, than ever before. Waits for the device
/// only where it must be known what was computed. Not thread-safe.
template <class A>
class Decoder {
  public:
    using T = Master<A>;

    /// `store` and its math outlive the decoder; the math was opened for as large a batch.
    /// Micro-batches have up to `samples` samples of `sequence` tokens.
    absl::Status open(ParameterStore<A>* store, size_t samples, size_t sequence, size_t domains);

    Sums emptySums() const;
    /// Collective. May only have been started when it returns; the batch is copied.
    absl::Status forward(const Batch& batch);
    /// Collective. Of the batch last given to forward, once; adds to the gradients. With `last`,
    /// units are reduced over the shards, from the head down; `ready` is told when they are there.
    /// The rest may only have been started when it returns.
    absl::Status backward(bool last, const Ready& ready);
    /// Adds losses and router counts of all forward passes since the last settle to `sums`, once
    /// they are computed. Waits if nobody has since.
    absl::Status settle(Sums* sums);
    /// These are figures of the batch last given to forward.
    size_t samples() const { return samples_; }
    /// Experts chosen by the tokens of a sample of that batch, [token][mixture layer][choice].
    /// Waits if nobody has since.
    absl::Status routing(size_t sample, uint32_t* out);
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

    /// The device needs this of the micro-batch's tokens, each an array of device memory.
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

    /// Host and device exchange this for one micro-batch, while one of them may be behind.
    struct Passage {
        std::vector<uint32_t> domain;                ///< [samples]
        Buffer<int32_t, BULKHEAD_MEMORY_HOST> told;  ///< as `told` on the device
        Buffer<double> losses;                       ///< by row
        Buffer<int32_t> chosen;                      ///< [mixture layer][row][choice]
        Buffer<double, BULKHEAD_MEMORY_HOST> lossesOnHost;
        Buffer<int32_t, BULKHEAD_MEMORY_HOST> chosenOnHost;
    };
    absl::StatusOr<Passage*> nextPassage(const Batch& batch);
    const Passage& lastPassage() const { return *passages_[last_]; }
    size_t choices() const { return maxTokens_ * config().topK; }
    /// Puts copies on the device that bring the host what the passages hold. Not one by one: each
    /// waits its turn behind others' copies, a snapshot's say, and all that follows behind it.
    void fetch();
    absl::Status wait();

    void tell(const Batch& batch, Passage& passage);
    absl::Status head(size_t tokens, const Passage& passage);
    void headBackward(size_t tokens);
    void addLosses(const Passage& passage, Sums* sums) const;
    void addCounts(const Passage& passage, Sums* sums) const;
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
    Narrowed<A> dLogits_, rounded_;  ///< the latter of gradient_
    Buffer<int32_t> told_;
    std::vector<std::unique_ptr<Passage>> passages_;
    size_t unsettled_ = 0;  ///< so many of them
    size_t fetched_ = 0;    ///< so many of these
    size_t last_ = 0;       ///< the one of the last forward
    uint64_t put_ = 0;      ///< math_->waits() when that was put on the device
};

}  // namespace bulkhead::llama_moe
