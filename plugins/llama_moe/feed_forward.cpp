// SPDX-License-Identifier: Apache-2.0
#include "plugins/llama_moe/feed_forward.h"

#include "plugins/llama_moe/numbers.h"

namespace bulkhead::llama_moe {

template <class A>
absl::Status FeedForward<A>::open(const ModelConfig& config, Math<A>* math, size_t tokens,
                                  FeedForwardScratch<A>* scratch) {
    math_ = math;
    epsilon_ = static_cast<T>(config.normEpsilon);
    shape_ = {config.dim, config.ffnHidden};
    scratch_ = scratch;
    const Device& device = math->device();
    BULKHEAD_RETURN_IF_ERROR(scale_.reserve(device, tokens));
    BULKHEAD_RETURN_IF_ERROR(normed_.reserve(device, tokens * shape_.dim));
    BULKHEAD_RETURN_IF_ERROR(h_.reserve(device, tokens * 2 * shape_.hidden));
    BULKHEAD_RETURN_IF_ERROR(act_.reserve(device, tokens * shape_.hidden));
    BULKHEAD_RETURN_IF_ERROR(scratch->dAct.reserve(device, tokens * shape_.hidden));
    return scratch->dNormed.reserve(device, tokens * shape_.dim);
}

template <class A>
void FeedForward<A>::forward(const FeedForwardWeights<const A>& w, const T* in, T* out,
                             size_t tokens) {
    math_->normForward(in, w.norm, normed_.data(), scale_.data(), out, tokens, shape_.dim,
                       epsilon_);
    swigluLayer(*math_, shape_, w.swiglu, normed_.data(), h_.data(), act_.data(), out, tokens,
                T(1));
}

template <class A>
void FeedForward<A>::backward(const FeedForwardWeights<const A>& w, const FeedForwardWeights<T>& dw,
                              const T* in, T* dx, A* rounded, size_t tokens) {
    T* dNormed = scratch_->dNormed.data();
    const A* up = rounded;
    swigluLayerBackward(*math_, shape_, w.swiglu, dw.swiglu, normed_.data(), h_.data(), act_.data(),
                        up, scratch_->dAct.data(), dNormed, tokens, T(0));
    math_->normBackward(dNormed, in, w.norm, scale_.data(), dx, rounded, dw.norm, tokens,
                        shape_.dim);
}

BULKHEAD_FOR_NUMBERS(FeedForward)

}  // namespace bulkhead::llama_moe
