// SPDX-License-Identifier: Apache-2.0
#include "plugins/llama_moe/decoder.h"

#include <algorithm>

#include "plugins/llama_moe/blas.h"
#include "plugins/llama_moe/kernels.h"

namespace bulkhead::llama_moe {

void Sums::clear() {
    std::fill(domainLoss.begin(), domainLoss.end(), 0.0);
    std::fill(domainTokens.begin(), domainTokens.end(), uint64_t{0});
    std::fill(expertCounts.begin(), expertCounts.end(), uint64_t{0});
    sentBytes = 0;
}

template <class T>
absl::Status Decoder<T>::open(ParameterStore<T>* store, size_t samples, size_t sequence,
                              size_t domains) {
    store_ = store;
    sequence_ = sequence;
    maxTokens_ = samples * sequence;
    domains_ = domains;
    const ModelSpec& spec = store->spec();
    const Device& device = store->device();
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
        BULKHEAD_RETURN_IF_ERROR(layer->attention.open(config(), ModelConfig::fullAttention(l),
                                                       device, samples, sequence,
                                                       &attentionScratch_));
        if (ModelConfig::mixture(l)) {
            at.w13 = offsetOf(dense, "moe.shared.w13");
            at.w2 = offsetOf(dense, "moe.shared.w2");
            at.router = offsetOf(dense, "moe.router");
            at.balance = offsetOf(dense, "moe.balance");
            BULKHEAD_RETURN_IF_ERROR(
                layer->mixture.open(config(), device, maxTokens_, l + 1, l / 2, &mixtureScratch_));
        } else {
            at.w13 = offsetOf(dense, "ffn.w13");
            at.w2 = offsetOf(dense, "ffn.w2");
            BULKHEAD_RETURN_IF_ERROR(layer->feedForward.open(config(), device, maxTokens_,
                                                             &mixtureScratch_.feedForward));
        }
        offsets_.push_back(at);
        layers_.push_back(std::move(layer));
    }
    headWeights_ = offsetOf(spec.units.back().dense, "head.w");
    targets_.resize(maxTokens_);
    losses_.resize(maxTokens_);
    const size_t wide = maxTokens_ * config().dim;
    BULKHEAD_RETURN_IF_ERROR(streams_.reserve(device, (2 * config().layers + 1) * wide));
    BULKHEAD_RETURN_IF_ERROR(gradient_.reserve(device, wide));
    BULKHEAD_RETURN_IF_ERROR(headNormed_.reserve(device, wide));
    BULKHEAD_RETURN_IF_ERROR(headScale_.reserve(device, maxTokens_));
    return logits_.reserve(device, maxTokens_ * kVocabulary);
}

template <class T>
Sums Decoder<T>::emptySums() const {
    Sums sums;
    sums.domainLoss.resize(domains_);
    sums.domainTokens.resize(domains_);
    sums.expertCounts.resize(config().mixtureLayers() * domains_ * config().experts);
    return sums;
}

template <class T>
template <class P>
typename Decoder<T>::template LayerWeights<P> Decoder<T>::layerWeights(size_t layer,
                                                                       P* base) const {
    const LayerOffsets& at = offsets_[layer];
    const SwigluWeights<P> swiglu{base + at.w13, base + at.w2};
    LayerWeights<P> weights;
    weights.attention = {base + at.attentionNorm, base + at.wqkv, base + at.wo};
    weights.feedForward = {base + at.norm, swiglu};
    weights.mixture = {base + at.norm, base + at.router, base + at.balance, swiglu};
    return weights;
}

template <class T>
void Decoder<T>::embed(const Batch& batch) {
    const size_t dim = config().dim;
    const T* table = store_->dense(0);
    for (size_t s = 0; s < batch.samples; ++s)
        for (size_t t = 0; t < sequence_; ++t) {
            const int32_t* token = batch.tokens + s * (sequence_ + 1) + t;
            const size_t row = s * sequence_ + t;
            targets_[row] = token[1];
            std::copy_n(table + static_cast<size_t>(*token) * dim, dim, stream(0) + row * dim);
        }
}

template <class T>
absl::Status Decoder<T>::forward(const Batch& batch, Sums* sums) {
    const size_t tokens = batch.samples * sequence_;
    samples_ = batch.samples;
    BULKHEAD_RETURN_IF_ERROR(store_->gather(0));
    embed(batch);
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

template <class T>
absl::Status Decoder<T>::head(const Batch& batch) {
    const size_t tokens = batch.samples * sequence_, dim = config().dim;
    BULKHEAD_RETURN_IF_ERROR(store_->gather(headUnit()));
    const T* unit = store_->dense(headUnit());
    normForward(stream(2 * layers_.size()), unit, headNormed_.data(), headScale_.data(), tokens,
                dim, static_cast<T>(config().normEpsilon));
    multiply(headNormed_.data(), unit + headWeights_, logits_.data(), tokens, dim, kVocabulary,
             T(0));
    crossEntropy(logits_.data(), targets_.data(), losses_.data(), tokens, kVocabulary);
    return absl::OkStatus();
}

template <class T>
void Decoder<T>::addLosses(const Batch& batch, Sums* sums) const {
    for (size_t s = 0; s < batch.samples; ++s) {
        double sum = 0;
        for (size_t t = 0; t < sequence_; ++t) sum += losses_[s * sequence_ + t];
        sums->domainLoss[batch.domain[s]] += sum;
        sums->domainTokens[batch.domain[s]] += sequence_;
    }
}

template <class T>
void Decoder<T>::addCounts(const Batch& batch, size_t layer, Sums* sums) const {
    const size_t experts = config().experts, rows = sequence_ * config().topK;
    uint64_t* counts = sums->expertCounts.data() + layer / 2 * domains_ * experts;
    const std::vector<int32_t>& chosen = layers_[layer]->mixture.chosen();
    for (size_t a = 0; a < batch.samples * rows; ++a)
        ++counts[batch.domain[a / rows] * experts + static_cast<size_t>(chosen[a])];
}

template <class T>
absl::Status Decoder<T>::finish(size_t unit, bool last, const Ready& ready) {
    if (!last) return absl::OkStatus();
    BULKHEAD_RETURN_IF_ERROR(store_->reduceUnit(unit));
    const UnitRegion& region = store_->layout().units()[unit];
    if (ready) ready(region.begin, region.end);
    return absl::OkStatus();
}

template <class T>
absl::Status Decoder<T>::backward(const Batch& batch, bool last, const Ready& ready) {
    const size_t tokens = batch.samples * sequence_;
    T* dx = gradient_.data();
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
    embedBackward(batch);
    return finish(0, last, ready);
}

template <class T>
void Decoder<T>::routing(size_t sample, uint32_t* out) const {
    const size_t k = config().topK, layers = config().mixtureLayers();
    for (size_t l = 0; l < layers_.size(); ++l) {
        if (!ModelConfig::mixture(l)) continue;
        const int32_t* chosen = layers_[l]->mixture.chosen().data() + sample * sequence_ * k;
        for (size_t t = 0; t < sequence_; ++t)
            for (size_t j = 0; j < k; ++j)
                out[(t * layers + l / 2) * k + j] = static_cast<uint32_t>(chosen[t * k + j]);
    }
}

template <class T>
uint64_t Decoder<T>::sentBytes() const {
    uint64_t bytes = 0;
    for (const auto& layer : layers_) bytes += layer->mixture.sentBytes();
    return bytes;
}

template <class T>
void Decoder<T>::headBackward(size_t tokens) {
    const size_t dim = config().dim;
    const T* unit = store_->dense(headUnit());
    T* dUnit = store_->denseGradient(headUnit());
    T* dNormed = attentionScratch_.dNormed.data();
    addWeightGradient(headNormed_.data(), logits_.data(), dUnit + headWeights_, tokens, dim,
                      kVocabulary);
    multiplyBack(logits_.data(), unit + headWeights_, dNormed, tokens, dim, kVocabulary, T(0));
    std::fill_n(gradient_.data(), tokens * dim, T(0));
    normBackward(dNormed, stream(2 * layers_.size()), unit, headScale_.data(), gradient_.data(),
                 dUnit, tokens, dim);
}

template <class T>
void Decoder<T>::embedBackward(const Batch& batch) {
    const size_t dim = config().dim;
    T* table = store_->denseGradient(0);
    for (size_t s = 0; s < batch.samples; ++s)
        for (size_t t = 0; t < sequence_; ++t) {
            const auto token = static_cast<size_t>(batch.tokens[s * (sequence_ + 1) + t]);
            addScaled(table + token * dim, gradient_.data() + (s * sequence_ + t) * dim, T(1), dim);
        }
}

template class Decoder<float>;
template class Decoder<double>;

}  // namespace bulkhead::llama_moe
