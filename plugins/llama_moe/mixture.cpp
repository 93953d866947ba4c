// SPDX-License-Identifier: Apache-2.0
#include "plugins/llama_moe/mixture.h"

#include "plugins/llama_moe/numbers.h"

namespace bulkhead::llama_moe {
namespace {

/// Experts of a shard: each's two matrices lie behind each other.
template <class P>
struct ExpertMatrices {
    P* w13 = nullptr;
    P* w2 = nullptr;
};

template <class P>
ExpertMatrices<P> matricesFrom(P* first, const SwigluShape& shape) {
    return {first, first + shape.dim * 2 * shape.hidden};
}

}  // namespace

template <class A>
absl::Status Mixture<A>::open(const ModelConfig& config, Math<A>* math, size_t tokens, size_t unit,
                              size_t mixture, MixtureScratch<A>* scratch) {
    config_ = config;
    math_ = math;
    unit_ = unit;
    mixture_ = mixture;
    scratch_ = scratch;
    sharedShape_ = {config.dim, config.sharedHidden};
    expertShape_ = {config.dim, config.expertHidden};
    const Device& device = math->device();
    const size_t rows = tokens * config.topK;
    BULKHEAD_RETURN_IF_ERROR(exchange_.open(math, config.experts, config.dim, rows));
    BULKHEAD_RETURN_IF_ERROR(gates_.reserve(device, rows));
    BULKHEAD_RETURN_IF_ERROR(scale_.reserve(device, tokens));
    BULKHEAD_RETURN_IF_ERROR(normed_.reserve(device, tokens * config.dim));
    BULKHEAD_RETURN_IF_ERROR(sharedH_.reserve(device, tokens * 2 * config.sharedHidden));
    BULKHEAD_RETURN_IF_ERROR(sharedAct_.reserve(device, tokens * config.sharedHidden));
    BULKHEAD_RETURN_IF_ERROR(sortedIn_.reserve(device, rows * config.dim));
    BULKHEAD_RETURN_IF_ERROR(scratch->sorted.reserve(device, rows * config.dim));
    BULKHEAD_RETURN_IF_ERROR(scratch->logits.reserve(device, tokens * config.experts));
    BULKHEAD_RETURN_IF_ERROR(scratch->dLogits.reserve(device, tokens * config.experts));
    FeedForwardScratch<A>& shared = scratch->feedForward;
    BULKHEAD_RETURN_IF_ERROR(shared.dAct.reserve(device, tokens * config.sharedHidden));
    return shared.dNormed.reserve(device, tokens * config.dim);
}

template <class A>
absl::Status Mixture<A>::reserveGrouped() {
    const size_t needed = exchange_.groups().rows;
    if (needed * config_.dim <= groupedIn_.capacity() ||
        (alone() && needed * config_.expertHidden <= expertAct_.capacity()))
        return absl::OkStatus();
    const Device& device = math_->device();
    // A little more than asked for, so that a drifting router does not allocate every step.
    const size_t rows = needed + needed / 4;
    if (!alone()) BULKHEAD_RETURN_IF_ERROR(groupedIn_.reserve(device, rows * config_.dim));
    BULKHEAD_RETURN_IF_ERROR(expertH_.reserve(device, rows * 2 * config_.expertHidden));
    BULKHEAD_RETURN_IF_ERROR(expertAct_.reserve(device, rows * config_.expertHidden));
    BULKHEAD_RETURN_IF_ERROR(scratch_->expertAct.reserve(device, rows * config_.expertHidden));
    return scratch_->grouped.reserve(device, rows * config_.dim);
}

template <class A>
void Mixture<A>::route(const MixtureWeights<const A>& w, size_t tokens) {
    T* logits = scratch_->logits.data();
    multiply(*math_, normed_.data(), w.router, logits, tokens, config_.dim, config_.experts, T(0));
    math_->route(logits, w.balance, chosen_, gates_.data(), tokens, config_.experts, config_.topK);
}

template <class A>
absl::Status Mixture<A>::forward(Store& store, const MixtureWeights<const A>& w, const T* in,
                                 T* out, size_t tokens, int32_t* chosen) {
    const size_t dim = config_.dim, k = config_.topK, hidden = config_.expertHidden;
    math_->normForward(in, w.norm, normed_.data(), scale_.data(), out, tokens, dim,
                       static_cast<T>(config_.normEpsilon));
    chosen_ = chosen;
    route(w, tokens);
    BULKHEAD_RETURN_IF_ERROR(
        exchange_.plan(chosen_, tokens * k, store.layout().shardsOf(mixture_)));
    BULKHEAD_RETURN_IF_ERROR(reserveGrouped());
    math_->spread(normed_.data(), exchange_.place(), gates_.data(), sortedIn_.data(), tokens, k,
                  dim);
    BULKHEAD_RETURN_IF_ERROR(exchange_.toExperts(sortedIn_.data(), groupedIn()));
    swigluLayer(*math_, sharedShape_, w.shared, normed_.data(), sharedH_.data(), sharedAct_.data(),
                out, tokens, T(1));
    A* results = scratch_->grouped.data();
    const Groups groups = exchange_.groups();
    const auto experts = matricesFrom(store.firstExpert(unit_), expertShape_);
    const size_t apart = store.layout().units()[unit_].expertsApart;
    math_->multiplyGroups(groups, groupedIn(), {experts.w13, apart, dim, 2 * hidden},
                          expertH_.data());
    math_->swigluForward(expertH_.data(), expertAct_.data(), groups.rows, hidden);
    math_->multiplyGroups(groups, expertAct_.data(), {experts.w2, apart, hidden, dim}, results);
    A* returned = alone() ? results : scratch_->sorted.data();
    BULKHEAD_RETURN_IF_ERROR(exchange_.fromExperts(results, returned));
    math_->collect(returned, exchange_.place(), out, tokens, k, dim);
    return absl::OkStatus();
}

template <class A>
absl::Status Mixture<A>::backward(Store& store, const MixtureWeights<const A>& w,
                                  const MixtureWeights<T>& dw, const T* in, T* dx, A* rounded,
                                  size_t tokens) {
    const size_t dim = config_.dim, k = config_.topK, hidden = config_.expertHidden;
    A* sorted = scratch_->sorted.data();
    A* grouped = alone() ? sorted : scratch_->grouped.data();
    const A* up = rounded;
    math_->spread(up, exchange_.place(), nullptr, sorted, tokens, k, dim);
    BULKHEAD_RETURN_IF_ERROR(exchange_.toExperts(sorted, grouped));
    const Groups groups = exchange_.groups();
    const auto experts = matricesFrom(store.firstExpert(unit_), expertShape_);
    const auto gradients = matricesFrom(store.firstExpertGradient(unit_), expertShape_);
    const size_t apart = store.layout().units()[unit_].expertsApart;
    A* dAct = scratch_->expertAct.data();
    math_->multiplyGroupsBack(groups, expertAct_.data(), grouped, {experts.w2, apart, hidden, dim},
                              gradients.w2, dAct);
    math_->swigluBackward(expertH_.data(), dAct, groups.rows, hidden);
    // The gradient of a group's input replaces that of its output, which has been used.
    math_->multiplyGroupsBack(groups, groupedIn(), expertH_.data(),
                              {experts.w13, apart, dim, 2 * hidden}, gradients.w13, grouped);
    BULKHEAD_RETURN_IF_ERROR(exchange_.fromExperts(grouped, sorted));
    T* dNormed = scratch_->feedForward.dNormed.data();
    swigluLayerBackward(*math_, sharedShape_, w.shared, dw.shared, normed_.data(), sharedH_.data(),
                        sharedAct_.data(), up, scratch_->feedForward.dAct.data(), dNormed, tokens,
                        T(0));
    addRouterGradient(w, dw, sorted, dNormed, tokens);
    math_->normBackward(dNormed, in, w.norm, scale_.data(), dx, rounded, dw.norm, tokens, dim);
    return absl::OkStatus();
}

template <class A>
void Mixture<A>::addRouterGradient(const MixtureWeights<const A>& w, const MixtureWeights<T>& dw,
                                   const A* dRows, T* dNormed, size_t tokens) {
    const size_t dim = config_.dim, k = config_.topK, experts = config_.experts;
    A* dLogits = scratch_->dLogits.of(scratch_->logits.data());
    math_->routeBackward(dRows, exchange_.place(), normed_.data(), chosen_, gates_.data(), dLogits,
                         dNormed, tokens, experts, k, dim);
    math_->addSurplus(chosen_, dw.balance, tokens * k, experts);
    addWeightGradient(*math_, normed_.data(), dLogits, dw.router, tokens, dim, experts);
    multiplyBack(*math_, dLogits, w.router, dNormed, tokens, dim, experts, T(1));
}

BULKHEAD_FOR_NUMBERS(Mixture)

}  // namespace bulkhead::llama_moe
