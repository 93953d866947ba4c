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
    BULKHEAD_RETURN_IF_ERROR(rounded_.reserve(device, wide));
    BULKHEAD_RETURN_IF_ERROR(headNormed_.reserve(device, wide));
    BULKHEAD_RETURN_IF_ERROR(headScale_.reserve(device, maxTokens_));
    BULKHEAD_RETURN_IF_ERROR(logits_.reserve(device, maxTokens_ * kVocabulary));
    BULKHEAD_RETURN_IF_ERROR(dLogits_.reserve(device, maxTokens_ * kVocabulary));
    return told_.reserve(device, toldCount());
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
absl::StatusOr<typename Decoder<A>::Passage*> Decoder<A>::nextPassage(const Batch& batch) {
    // Memory that an earlier batch is told from is written again only when that has been read.
    if (unsettled_ == 0) BULKHEAD_RETURN_IF_ERROR(wait());
    if (unsettled_ == passages_.size()) {
        auto passage = std::make_unique<Passage>();
        const Device& device = math_->device();
        const size_t chosen = config().mixtureLayers() * choices();
        BULKHEAD_RETURN_IF_ERROR(passage->told.reserve(device, toldCount()));
        BULKHEAD_RETURN_IF_ERROR(passage->losses.reserve(device, maxTokens_));
        BULKHEAD_RETURN_IF_ERROR(passage->lossesOnHost.reserve(device, maxTokens_));
        BULKHEAD_RETURN_IF_ERROR(passage->chosen.reserve(device, chosen));
        BULKHEAD_RETURN_IF_ERROR(passage->chosenOnHost.reserve(device, chosen));
        passages_.push_back(std::move(passage));
    }
    last_ = unsettled_++;
    put_ = math_->waits();
    samples_ = batch.samples;
    Passage& passage = *passages_[last_];
    passage.domain.assign(batch.domain, batch.domain + batch.samples);
    return &passage;
}

template <class A>
void Decoder<A>::tell(const Batch& batch, Passage& passage) {
    const Told host = told(passage.told.data());
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
    math_->copy(told_.data(), passage.told.data(), toldCount());
}

template <class A>
absl::Status Decoder<A>::forward(const Batch& batch) {
    const size_t tokens = batch.samples * sequence_;
    absl::StatusOr<Passage*> passage = nextPassage(batch);
    if (!passage.ok()) return passage.status();
    math_->besideExchange(false);
    BULKHEAD_RETURN_IF_ERROR(store_->gather(0));
    tell(batch, **passage);
    math_->embed(store_->dense(0), told(told_.data()).inputs, stream(0), tokens, config().dim);
    for (size_t l = 0; l < layers_.size(); ++l) {
        BULKHEAD_RETURN_IF_ERROR(store_->gather(l + 1));
        const auto w = layerWeights(l, store_->dense(l + 1));
        Layer& layer = *layers_[l];
        layer.attention.forward(w.attention, stream(2 * l), stream(2 * l + 1), batch.samples);
        if (ModelConfig::mixture(l))
            BULKHEAD_RETURN_IF_ERROR(
                layer.mixture.forward(*store_, w.mixture, stream(2 * l + 1), stream(2 * l + 2),
                                      tokens, (*passage)->chosen.data() + l / 2 * choices()));
        else
            layer.feedForward.forward(w.feedForward, stream(2 * l + 1), stream(2 * l + 2), tokens);
    }
    return head(tokens, **passage);
}

template <class A>
absl::Status Decoder<A>::head(size_t tokens, const Passage& passage) {
    const size_t dim = config().dim;
    BULKHEAD_RETURN_IF_ERROR(store_->gather(headUnit()));
    const A* unit = store_->dense(headUnit());
    math_->normForward(stream(2 * layers_.size()), unit, headNormed_.data(), headScale_.data(),
                       nullptr, tokens, dim, static_cast<T>(config().normEpsilon));
    multiply(*math_, headNormed_.data(), unit + headWeights_, logits_.data(), tokens, dim,
             kVocabulary, T(0));
    math_->crossEntropy(logits_.data(), told(told_.data()).targets, passage.losses.data(),
                        dLogits_.of(logits_.data()), tokens, kVocabulary);
    put_ = math_->waits();
    return absl::OkStatus();
}

template <class A>
void Decoder<A>::fetch() {
    for (; fetched_ < unsettled_; ++fetched_) {
        const Passage& passage = *passages_[fetched_];
        math_->copy(passage.lossesOnHost.data(), passage.losses.data(),
                    passage.domain.size() * sequence_);
        math_->copy(passage.chosenOnHost.data(), passage.chosen.data(),
                    config().mixtureLayers() * choices());
    }
}

template <class A>
absl::Status Decoder<A>::wait() {
    if (fetched_ == unsettled_ && math_->waits() > put_) return absl::OkStatus();
    fetch();
    return math_->finish();
}

template <class A>
absl::Status Decoder<A>::settle(Sums* sums) {
    if (unsettled_ == 0) return absl::OkStatus();
    BULKHEAD_RETURN_IF_ERROR(wait());
    for (size_t i = 0; i < unsettled_; ++i) {
        addLosses(*passages_[i], sums);
        addCounts(*passages_[i], sums);
    }
    unsettled_ = fetched_ = 0;
    return absl::OkStatus();
}

template <class A>
void Decoder<A>::addLosses(const Passage& passage, Sums* sums) const {
    for (size_t s = 0; s < passage.domain.size(); ++s) {
        double sum = 0;
        for (size_t t = 0; t < sequence_; ++t)
            sum += passage.lossesOnHost.data()[s * sequence_ + t];
        sums->domainLoss[passage.domain[s]] += sum;
        sums->domainTokens[passage.domain[s]] += sequence_;
    }
}

template <class A>
void Decoder<A>::addCounts(const Passage& passage, Sums* sums) const {
    const size_t experts = config().experts, rows = sequence_ * config().topK;
    for (size_t mixture = 0; mixture < config().mixtureLayers(); ++mixture) {
        uint64_t* counts = sums->expertCounts.data() + mixture * domains_ * experts;
        const int32_t* chosen = passage.chosenOnHost.data() + mixture * choices();
        for (size_t a = 0; a < passage.domain.size() * rows; ++a)
            ++counts[passage.domain[a / rows] * experts + static_cast<size_t>(chosen[a])];
    }
}

template <class A>
absl::Status Decoder<A>::finish(size_t unit, bool last, const Ready& ready) {
    if (!last) return absl::OkStatus();
    BULKHEAD_RETURN_IF_ERROR(store_->reduceUnit(unit));
    if (!ready) return absl::OkStatus();
    BULKHEAD_RETURN_IF_ERROR(math_->finish());
    const UnitRegion& region = store_->layout().units()[unit];
    ready(region.begin, region.end);
    return absl::OkStatus();
}

template <class A>
absl::Status Decoder<A>::backward(bool last, const Ready& ready) {
    const size_t tokens = samples_ * sequence_;
    T* dx = gradient_.data();
    A* rounded = rounded_.of(dx);
    math_->besideExchange(last);
    headBackward(tokens);
    BULKHEAD_RETURN_IF_ERROR(finish(headUnit(), last, ready));
    for (size_t l = layers_.size(); l-- > 0;) {
        const auto w = layerWeights(l, store_->dense(l + 1));
        const auto dw = layerWeights(l, store_->denseGradient(l + 1));
        Layer& layer = *layers_[l];
        if (ModelConfig::mixture(l))
            BULKHEAD_RETURN_IF_ERROR(layer.mixture.backward(
                *store_, w.mixture, dw.mixture, stream(2 * l + 1), dx, rounded, tokens));
        else
            layer.feedForward.backward(w.feedForward, dw.feedForward, stream(2 * l + 1), dx,
                                       rounded, tokens);
        layer.attention.backward(w.attention, dw.attention, stream(2 * l), dx, rounded, samples_);
        BULKHEAD_RETURN_IF_ERROR(finish(l + 1, last, ready));
    }
    const Told device = told(told_.data());
    math_->embedBackward(dx, device.order, device.starts, store_->denseGradient(0), config().dim);
    if (last) fetch();
    put_ = math_->waits();
    return finish(0, last, ready);
}

template <class A>
absl::Status Decoder<A>::routing(size_t sample, uint32_t* out) {
    BULKHEAD_RETURN_IF_ERROR(wait());
    const size_t k = config().topK, mixtures = config().mixtureLayers();
    for (size_t m = 0; m < mixtures; ++m) {
        const int32_t* chosen =
            lastPassage().chosenOnHost.data() + m * choices() + sample * sequence_ * k;
        for (size_t t = 0; t < sequence_; ++t)
            for (size_t j = 0; j < k; ++j)
                out[(t * mixtures + m) * k + j] = static_cast<uint32_t>(chosen[t * k + j]);
    }
    return absl::OkStatus();
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
                        gradient_.data(), rounded_.of(gradient_.data()), dUnit, tokens, dim);
}

BULKHEAD_FOR_NUMBERS(Decoder)

}  // namespace bulkhead::llama_moe
