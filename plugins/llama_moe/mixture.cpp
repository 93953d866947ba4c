// SPDX-License-Identifier: Apache-2.0
#include "plugins/llama_moe/mixture.h"

#include <algorithm>
#include <limits>

#include "plugins/llama_moe/blas.h"
#include "plugins/llama_moe/kernels.h"

namespace bulkhead::llama_moe {
namespace {

/// An expert's two matrices, which lie behind each other.
template <class P>
SwigluWeights<P> expertWeights(P* base, const SwigluShape& shape) {
    return {base, base + shape.dim * 2 * shape.hidden};
}

}  // namespace

template <class T>
absl::Status Mixture<T>::open(const ModelConfig& config, const Device& device, size_t tokens,
                              size_t unit, size_t mixture, MixtureScratch<T>* scratch) {
    config_ = config;
    device_ = device;
    unit_ = unit;
    mixture_ = mixture;
    scratch_ = scratch;
    sharedShape_ = {config.dim, config.sharedHidden};
    expertShape_ = {config.dim, config.expertHidden};
    exchange_.open(device, config.experts, config.dim);
    const size_t rows = tokens * config.topK;
    chosen_.reserve(rows);
    gates_.reserve(rows);
    BULKHEAD_RETURN_IF_ERROR(scale_.reserve(device, tokens));
    BULKHEAD_RETURN_IF_ERROR(normed_.reserve(device, tokens * config.dim));
    BULKHEAD_RETURN_IF_ERROR(sharedH_.reserve(device, tokens * 2 * config.sharedHidden));
    BULKHEAD_RETURN_IF_ERROR(sharedAct_.reserve(device, tokens * config.sharedHidden));
    BULKHEAD_RETURN_IF_ERROR(sortedIn_.reserve(device, rows * config.dim));
    BULKHEAD_RETURN_IF_ERROR(scratch->sorted.reserve(device, rows * config.dim));
    BULKHEAD_RETURN_IF_ERROR(scratch->logits.reserve(device, tokens * config.experts));
    BULKHEAD_RETURN_IF_ERROR(
        scratch->feedForward.dAct.reserve(device, tokens * config.sharedHidden));
    return scratch->feedForward.dNormed.reserve(device, tokens * config.dim);
}

template <class T>
absl::Status Mixture<T>::reserveGrouped() {
    const size_t needed = exchange_.groupedRows();
    if (needed * config_.dim <= groupedIn_.capacity() ||
        (alone() && needed * config_.expertHidden <= expertAct_.capacity()))
        return absl::OkStatus();
    // A little more than asked for, so that a drifting router does not allocate every step.
    const size_t rows = needed + needed / 4;
    if (!alone()) BULKHEAD_RETURN_IF_ERROR(groupedIn_.reserve(device_, rows * config_.dim));
    BULKHEAD_RETURN_IF_ERROR(expertH_.reserve(device_, rows * 2 * config_.expertHidden));
    BULKHEAD_RETURN_IF_ERROR(expertAct_.reserve(device_, rows * config_.expertHidden));
    BULKHEAD_RETURN_IF_ERROR(scratch_->expertAct.reserve(device_, rows * config_.expertHidden));
    return scratch_->grouped.reserve(device_, rows * config_.dim);
}

template <class T>
void Mixture<T>::chooseFor(const T* logits, const T* balance, int32_t* chosen, T* gates) const {
    for (size_t j = 0; j < config_.topK; ++j) {
        size_t best = config_.experts;
        T most = -std::numeric_limits<T>::infinity();
        for (size_t e = 0; e < config_.experts; ++e) {
            const bool taken = std::find(chosen, chosen + j, static_cast<int32_t>(e)) != chosen + j;
            // The first free expert is taken even if nothing compares, as with not-a-number.
            if (taken || (best < config_.experts && !(logits[e] + balance[e] > most))) continue;
            best = e;
            most = logits[e] + balance[e];
        }
        chosen[j] = static_cast<int32_t>(best);
        gates[j] = sigmoid(logits[best]);
    }
}

template <class T>
void Mixture<T>::route(const MixtureWeights<const T>& w, size_t tokens) {
    const size_t k = config_.topK;
    T* logits = scratch_->logits.data();
    multiply(normed_.data(), w.router, logits, tokens, config_.dim, config_.experts, T(0));
    chosen_.resize(tokens * k);
    gates_.resize(tokens * k);
    for (size_t t = 0; t < tokens; ++t)
        chooseFor(logits + t * config_.experts, w.balance, chosen_.data() + t * k,
                  gates_.data() + t * k);
}

template <class T>
absl::Status Mixture<T>::forward(Store& store, const MixtureWeights<const T>& w, const T* in,
                                 T* out, size_t tokens) {
    const size_t dim = config_.dim, k = config_.topK, hidden = config_.expertHidden;
    normForward(in, w.norm, normed_.data(), scale_.data(), tokens, dim,
                static_cast<T>(config_.normEpsilon));
    route(w, tokens);
    BULKHEAD_RETURN_IF_ERROR(
        exchange_.plan(chosen_.data(), tokens * k, store.layout().shardsOf(mixture_)));
    BULKHEAD_RETURN_IF_ERROR(reserveGrouped());
    for (size_t a = 0; a < tokens * k; ++a) {
        const T* from = normed_.data() + a / k * dim;
        T* to = sortedIn_.data() + exchange_.place(a) * dim;
        for (size_t i = 0; i < dim; ++i) to[i] = gates_[a] * from[i];
    }
    BULKHEAD_RETURN_IF_ERROR(exchange_.toExperts(sortedIn_.data(), groupedIn()));
    std::copy_n(in, tokens * dim, out);
    swigluLayer(sharedShape_, w.shared, normed_.data(), sharedH_.data(), sharedAct_.data(), out,
                tokens, T(1));
    T* results = scratch_->grouped.data();
    for (const auto& group : exchange_.groups())
        swigluLayer(expertShape_, expertWeights(store.expert(unit_, group.expert), expertShape_),
                    groupedIn() + group.begin * dim, expertH_.data() + group.begin * 2 * hidden,
                    expertAct_.data() + group.begin * hidden, results + group.begin * dim,
                    group.rows, T(0));
    T* returned = alone() ? results : scratch_->sorted.data();
    BULKHEAD_RETURN_IF_ERROR(exchange_.fromExperts(results, returned));
    for (size_t a = 0; a < tokens * k; ++a)
        addScaled(out + a / k * dim, returned + exchange_.place(a) * dim, T(1), dim);
    return absl::OkStatus();
}

template <class T>
absl::Status Mixture<T>::backward(Store& store, const MixtureWeights<const T>& w,
                                  const MixtureWeights<T>& dw, const T* in, T* dx, size_t tokens) {
    const size_t dim = config_.dim, k = config_.topK, hidden = config_.expertHidden;
    T* sorted = scratch_->sorted.data();
    T* grouped = alone() ? sorted : scratch_->grouped.data();
    for (size_t a = 0; a < tokens * k; ++a)
        std::copy_n(dx + a / k * dim, dim, sorted + exchange_.place(a) * dim);
    BULKHEAD_RETURN_IF_ERROR(exchange_.toExperts(sorted, grouped));
    // The gradient of a group's input replaces that of its output once this has been used.
    for (const auto& group : exchange_.groups()) {
        T* rows = grouped + group.begin * dim;
        swigluLayerBackward(
            expertShape_, expertWeights(store.expert(unit_, group.expert), expertShape_),
            expertWeights(store.expertGradient(unit_, group.expert), expertShape_),
            groupedIn() + group.begin * dim, expertH_.data() + group.begin * 2 * hidden,
            expertAct_.data() + group.begin * hidden, rows, scratch_->expertAct.data(), rows,
            group.rows, T(0));
    }
    BULKHEAD_RETURN_IF_ERROR(exchange_.fromExperts(grouped, sorted));
    T* dNormed = scratch_->feedForward.dNormed.data();
    swigluLayerBackward(sharedShape_, w.shared, dw.shared, normed_.data(), sharedH_.data(),
                        sharedAct_.data(), dx, scratch_->feedForward.dAct.data(), dNormed, tokens,
                        T(0));
    addRouterGradient(w, dw, sorted, dNormed, tokens);
    normBackward(dNormed, in, w.norm, scale_.data(), dx, dw.norm, tokens, dim);
    return absl::OkStatus();
}

template <class T>
void Mixture<T>::addRouterGradient(const MixtureWeights<const T>& w, const MixtureWeights<T>& dw,
                                   const T* dRows, T* dNormed, size_t tokens) {
    const size_t dim = config_.dim, k = config_.topK, experts = config_.experts;
    T* dLogits = scratch_->logits.data();
    std::fill_n(dLogits, tokens * experts, T(0));
    for (size_t a = 0; a < tokens * k; ++a) {
        const T* row = dRows + exchange_.place(a) * dim;
        const size_t t = a / k;
        const T gate = gates_[a];
        const auto e = static_cast<size_t>(chosen_[a]);
        dLogits[t * experts + e] = dot(row, normed_.data() + t * dim, dim) * gate * (T(1) - gate);
        addScaled(dNormed + t * dim, row, gate, dim);
        dw.balance[e] += T(1);
    }
    const T share = static_cast<T>(tokens * k) / static_cast<T>(experts);
    for (size_t e = 0; e < experts; ++e) dw.balance[e] -= share;
    addWeightGradient(normed_.data(), dLogits, dw.router, tokens, dim, experts);
    multiplyBack(dLogits, w.router, dNormed, tokens, dim, experts, T(1));
}

template class Mixture<float>;
template class Mixture<double>;

}  // namespace bulkhead::llama_moe
