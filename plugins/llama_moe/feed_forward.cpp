// SPDX-License-Identifier: Apache-2.0
#include "plugins/llama_moe/feed_forward.h"

#include <algorithm>

namespace bulkhead::llama_moe {

template <class T>
absl::Status FeedForward<T>::open(const ModelConfig& config, const Device& device, size_t tokens,
                                  FeedForwardScratch<T>* scratch) {
    config_ = config;
    shape_ = {config.dim, config.ffnHidden};
    scratch_ = scratch;
    BULKHEAD_RETURN_IF_ERROR(scale_.reserve(device, tokens));
    BULKHEAD_RETURN_IF_ERROR(normed_.reserve(device, tokens * shape_.dim));
    BULKHEAD_RETURN_IF_ERROR(h_.reserve(device, tokens * 2 * shape_.hidden));
    BULKHEAD_RETURN_IF_ERROR(act_.reserve(device, tokens * shape_.hidden));
    BULKHEAD_RETURN_IF_ERROR(scratch->dAct.reserve(device, tokens * shape_.hidden));
    return scratch->dNormed.reserve(device, tokens * shape_.dim);
}

template <class T>
void FeedForward<T>::forward(const FeedForwardWeights<const T>& w, const T* in, T* out,
                             size_t tokens) {
    normForward(in, w.norm, normed_.data(), scale_.data(), tokens, shape_.dim,
                static_cast<T>(config_.normEpsilon));
    std::copy_n(in, tokens * shape_.dim, out);
    swigluLayer(shape_, w.swiglu, normed_.data(), h_.data(), act_.data(), out, tokens, T(1));
}

template <class T>
void FeedForward<T>::backward(const FeedForwardWeights<const T>& w, const FeedForwardWeights<T>& dw,
                              const T* in, T* dx, size_t tokens) {
    T* dNormed = scratch_->dNormed.data();
    swigluLayerBackward(shape_, w.swiglu, dw.swiglu, normed_.data(), h_.data(), act_.data(), dx,
                        scratch_->dAct.data(), dNormed, tokens, T(0));
    normBackward(dNormed, in, w.norm, scale_.data(), dx, dw.norm, tokens, shape_.dim);
}

template class FeedForward<float>;
template class FeedForward<double>;

}  // namespace bulkhead::llama_moe
