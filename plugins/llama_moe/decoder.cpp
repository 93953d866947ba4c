// SPDX-License-Identifier: Apache-2.0
#include "plugins/llama_moe/decoder.h"

#include <algorithm>

#include "plugins/llama_moe/numbers.h"

namespace bulkhead::llama_moe {

void Sums::clear() {
    std::fill(domainLoss.begin(), domainLoss.end(), 0.0);
    std::fill(domainTokens.begin(), domainTokens.end(), uint64_t{0});
    std::fill(expertCounts.begin(), expertCounts.end(), uint64_t{0});
    sentBytes = 0;
}

template <class A>
absl::Status Decoder<A>::open(ParameterStore<A>* store, size_t samples, size_t sequence,
                              size_t domains) {
    store_ = store;
    math_ = &store->math();
    sequence_ = sequence;
    maxTokens_ = samples * sequence;
    domains_ = domains;
    const ModelSpec& spec = store->spec();
    const Device& device = math_->device();
    for (size_t l = 0; l < config().layers; ++l) {
        auto layer = std::make_unique<Layer>();
        const auto& dense = spec.units[l + 1].dense;
        LayerOffsets at{offsetOf(dense, "attention.norm"),
                        offsetOf(dense, "attention.wqkv"),
                        offsetOf(dense, "attention.wo"),
                        offsetOf(dense, "ffn.norm"),
                        0,
                        0,
                        0,
                        0};
        BULKHEAD_RETURN_IF_ERROR(layer->attention.open(
            config(), ModelConfig::fullAttention(l), math_, samples, sequence, &attentionScratch_));
        if (ModelConfig::mixture(l)) {
            at.w13 = offsetOf(dense, "moe.shared.w13");
            at.w2 = offsetOf(dense, "moe.shared.w2");
            at.router = offsetOf(dense, "moe.router");
            at.balance = offsetOf(dense, "moe.balance");
            BULKHEAD_RETURN_IF_ERROR(
                layer->mixture.open(config(), math_, maxTokens_, l + 1, l / 2, &mixtureScratch_));
        } else {
            at.w13 = offsetOf(dense, "ffn.w13");
            at.w2 = offsetOf(dense, "ffn.w2");
            BULKHEAD_RETURN_IF_ERROR(
                layer->feedForward.open(config(), math_, maxTokens_, &mixtureScratch_.feedForward));
        }
        offsets_.push_back(at);
        layers_.push_back(std::move(layer));
    }
    headWeights_ = offsetOf(spec.units.back().dense, "head.w");
    const size_t wide = maxTokens_ * config().dim;
    BULKHEAD_RETURN_IF_ERROR(streams_.reserve(device, (2 * config().layers + 1) * wide));
    BULKHEAD_RETURN_IF_ERROR(gradient_.reserve(device, wide));
    BULKHEAD_RETURN_IF_ERROR(headNormed_.reserve(device, wide));
    BULKHEAD_RETURN_IF_ERROR(headScale_.reserve(device, maxTokens_));
    BULKHEAD_RETURN_IF_ERROR(logits_.reserve(device, maxTokens_ * kVocabulary));
    BULKHEAD_RETURN_IF_ERROR(dLogits_.reserve(device, maxTokens_ * kVocabulary));
    BULKHEAD_RETURN_IF_ERROR(told_.reserve(device, toldCount()));
    BULKHEAD_RETURN_IF_ERROR(toldOnHost_.reserve(device, toldCount()));
    BULKHEAD_RETURN_IF_ERROR(losses_.reserve(device, maxTokens_));
    return lossesOnHost_.reserve(device, maxTokens_);
}

template <class A>
Sums Decoder<A>::emptySums() const {
    Sums sums;
    sums.domainLoss.resize(domains_);
    sums.domainTokens.resize(domains_);
    sums.expertCounts.resize(config().mixtureLayers() * domains_ * config().experts);
    return sums;
}

template <class A>
template <class P>
typename Decoder<A>::template LayerWeights<P> Decoder<A>::layerWeights(size_t layer,
                                                                       P* base) const {
    const LayerOffsets& at = offsets_[layer];
    const SwigluWeights<P> swiglu{base + at.w13, base + at.w2};
    LayerWeights<P> weights;
    weights.attention = {base + at.attentionNorm, base + at.wqkv, base + at.wo};
    weights.feedForward = {base + at.norm, swiglu};
    weights.mixture = {base + at.norm, base + at.router, base + at.balance, swiglu};
    return weights;
}

template <class A>
void Decoder<A>::tell(const Batch& batch) {
    const Told host = told(toldOnHost_.data());
    const size_t rows = batch.samples * sequence_;
    std::fill_n(host.starts, kVocabulary + 1, 0);
    for (size_t row = 0; row < rows; ++row) {
        const int32_t* token = batch.tokens + row / sequence_ * (sequence_ + 1) + row % sequence_;
        host.inputs[row] = token[0];
        host.targets[row] = token[1];
        ++host.starts[token[0]];
    }
    // Counts become the ends of the stretches, then, filled from behind, their beginnings.
    for (size_t v = 0; v < kVocabulary; ++v) host.starts[v + 1] += host.starts[v];
    for (size_t row = rows; row-- > 0;)
        host.order[--host.starts[host.inputs[row]]] = static_cast<int32_t>(row);
    math_->copy(told_.data(), toldOnHost_.data(), toldCount());
}

template <class A>
absl::Status Decoder<A>::forward(const Batch& batch, Sums* sums) {
    const size_t tokens = batch.samples * sequence_;
    samples_ = batch.samples;
    math_->besideExchange(false);
    BULKHEAD_RETURN_IF_ERROR(store_->gather(0));
    tell(batch);
    math_->embed(store_->dense(0), told(told_.data()).inputs, stream(0), tokens, config().dim);
    for (size_t l = 0; l < layers_.size(); ++l) {
        BULKHEAD_RETURN_IF_ERROR(store_->gather(l + 1));
        const auto w = layerWeights(l, store_->dense(l + 1));
        Layer& layer = *layers_[l];
        layer.attention.forward(w.attention, stream(2 * l), stream(2 * l + 1), batch.samples);
        if (ModelConfig::mixture(l)) {
            BULKHEAD_RETURN_IF_ERROR(layer.mixture.forward(*store_, w.mixture, stream(2 * l + 1),
                                                           stream(2 * l + 2), tokens));
            addCounts(batch, l, sums);
        } else {
            layer.feedForward.forward(w.feedForward, stream(2 * l + 1), stream(2 * l + 2), tokens);
        }
    }
    BULKHEAD_RETURN_IF_ERROR(head(batch));
    addLosses(batch, sums);
    return absl::OkStatus();
}

template <class A>
absl::Status Decoder<A>::head(const Batch& batch) {
    const size_t tokens = batch.samples * sequence_, dim = config().dim;
    BULKHEAD_RETURN_IF_ERROR(store_->gather(headUnit()));
    const A* unit = store_->dense(headUnit());
    math_->normForward(stream(2 * layers_.size()), unit, headNormed_.data(), headScale_.data(),
                       tokens, dim, static_cast<T>(config().normEpsilon));
    multiply(*math_, headNormed_.data(), unit + headWeights_, logits_.data(), tokens, dim,
             kVocabulary, T(0));
    math_->crossEntropy(logits_.data(), told(told_.data()).targets, losses_.data(),
                        dLogits_.of(logits_.data()), tokens, kVocabulary);
    math_->copy(lossesOnHost_.data(), losses_.data(), tokens);
    return math_->finish();
}

template <class A>
void Decoder<A>::addLosses(const Batch& batch, Sums* sums) const {
    for (size_t s = 0; s < batch.samples; ++s) {
        double sum = 0;
        for (size_t t = 0; t < sequence_; ++t) sum += lossesOnHost_.data()[s * sequence_ + t];
        sums->domainLoss[batch.domain[s]] += sum;
        sums->domainTokens[batch.domain[s]] += sequence_;
    }
}

template <class A>
void Decoder<A>::addCounts(const Batch& batch, size_t layer, Sums* sums) const {
    const size_t experts = config().experts, rows = sequence_ * config().topK;
    uint64_t* counts = sums->expertCounts.data() + layer / 2 * domains_ * experts;
    const int32_t* chosen = layers_[layer]->mixture.chosen();
    for (size_t a = 0; a < batch.samples * rows; ++a)
        ++counts[batch.domain[a / rows] * experts + static_cast<size_t>(chosen[a])];
}

template <class A>
absl::Status Decoder<A>::finish(size_t unit, bool last, const Ready& ready) {
    if (!last) return absl::OkStatus();
    BULKHEAD_RETURN_IF_ERROR(store_->reduceUnit(unit));
    BULKHEAD_RETURN_IF_ERROR(math_->finish());
    const UnitRegion& region = store_->layout().units()[unit];
    if (ready) ready(region.begin, region.end);
    return absl::OkStatus();
}

template <class A>
absl::Status Decoder<A>::backward(const Batch& batch, bool last, const Ready& ready) {
    const size_t tokens = batch.samples * sequence_;
    T* dx = gradient_.data();
    math_->besideExchange(last);
    headBackward(tokens);
    BULKHEAD_RETURN_IF_ERROR(finish(headUnit(), last, ready));
    for (size_t l = layers_.size(); l-- > 0;) {
        const auto w = layerWeights(l, store_->dense(l + 1));
        const auto dw = layerWeights(l, store_->denseGradient(l + 1));
        Layer& layer = *layers_[l];
        if (ModelConfig::mixture(l))
            BULKHEAD_RETURN_IF_ERROR(layer.mixture.backward(*store_, w.mixture, dw.mixture,
                                                            stream(2 * l + 1), dx, tokens));
        else
            layer.feedForward.backward(w.feedForward, dw.feedForward, stream(2 * l + 1), dx,
                                       tokens);
        layer.attention.backward(w.attention, dw.attention, stream(2 * l), dx, batch.samples);
        BULKHEAD_RETURN_IF_ERROR(finish(l + 1, last, ready));
    }
    const Told device = told(told_.data());
    math_->embedBackward(dx, device.order, device.starts, store_->denseGradient(0), config().dim);
    BULKHEAD_RETURN_IF_ERROR(finish(0, last, ready));
    return last ? absl::OkStatus() : math_->finish();
}

template <class A>
void Decoder<A>::routing(size_t sample, uint32_t* out) const {
    const size_t k = config().topK, layers = config().mixtureLayers();
    for (size_t l = 0; l < layers_.size(); ++l) {
        if (!ModelConfig::mixture(l)) continue;
        const int32_t* chosen = layers_[l]->mixture.chosen() + sample * sequence_ * k;
        for (size_t t = 0; t < sequence_; ++t)
            for (size_t j = 0; j < k; ++j)
                out[(t * layers + l / 2) * k + j] = static_cast<uint32_t>(chosen[t * k + j]);
    }
}

template <class A>
uint64_t Decoder<A>::sentBytes() const {
    uint64_t bytes = 0;
    for (const auto& layer : layers_) bytes += layer->mixture.sentBytes();
    return bytes;
}

template <class A>
void Decoder<A>::headBackward(size_t tokens) {
    const size_t dim = config().dim;
    const A* unit = store_->dense(headUnit());
    T* dUnit = store_->denseGradient(headUnit());
    T* dNormed = attentionScratch_.dNormed.data();
    const A* dLogits = dLogits_.of(logits_.data());
    addWeightGradient(*math_, headNormed_.data(), dLogits, dUnit + headWeights_, tokens, dim,
                      kVocabulary);
    multiplyBack(*math_, dLogits, unit + headWeights_, dNormed, tokens, dim, kVocabulary, T(0));
    math_->zero(gradient_.data(), tokens * dim);
    math_->normBackward(dNormed, stream(2 * layers_.size()), unit, headScale_.data(),
                        gradient_.data(), dUnit, tokens, dim);
}

BULKHEAD_FOR_NUMBERS(Decoder)

}  // namespace bulkhead::llama_moe
