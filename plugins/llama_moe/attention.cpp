// SPDX-License-Identifier: Apache-2.0
#include "plugins/llama_moe/attention.h"

#include <algorithm>

#include "plugins/llama_moe/numbers.h"

namespace bulkhead::llama_moe {

template <class A>
absl::Status Attention<A>::open(const ModelConfig& config, bool full, Math<A>* math, size_t samples,
                                size_t sequence, AttentionScratch<A>* scratch) {
    math_ = math;
    scratch_ = scratch;
    epsilon_ = static_cast<T>(config.normEpsilon);
    shape_ = {.samples = samples,
              .sequence = sequence,
              .heads = config.heads,
              .kvHeads = config.kvHeads,
              .headDim = config.headDim(),
              .chunk = full ? sequence : std::min(sequence, config.attentionChunk),
              .rotary = !full};
    const Device& device = math->device();
    const size_t tokens = shape_.tokens(), wide = tokens * config.dim;
    BULKHEAD_RETURN_IF_ERROR(scale_.reserve(device, tokens));
    BULKHEAD_RETURN_IF_ERROR(normed_.reserve(device, wide));
    BULKHEAD_RETURN_IF_ERROR(qkv_.reserve(device, tokens * shape_.width()));
    BULKHEAD_RETURN_IF_ERROR(mixed_.reserve(device, wide));
    BULKHEAD_RETURN_IF_ERROR(kept_.reserve(device, math->keptOfAttention(shape_)));
    BULKHEAD_RETURN_IF_ERROR(scratch->dOut.reserve(device, wide));
    BULKHEAD_RETURN_IF_ERROR(scratch->dQkv.reserve(device, tokens * shape_.width()));
    return scratch->dNormed.reserve(device, wide);
}

template <class A>
void Attention<A>::forward(const AttentionWeights<const A>& w, const T* in, T* out,
                           size_t samples) {
    shape_.samples = samples;
    const size_t tokens = shape_.tokens(), dim = shape_.dim();
    math_->normForward(in, w.norm, normed_.data(), scale_.data(), out, tokens, dim, epsilon_);
    multiply(*math_, normed_.data(), w.wqkv, qkv_.data(), tokens, dim, shape_.width(), T(0));
    math_->attentionForward(shape_, qkv_.data(), kept_.data(), mixed_.data());
    multiply(*math_, mixed_.data(), w.wo, out, tokens, dim, dim, T(1));
}

template <class A>
void Attention<A>::backward(const AttentionWeights<const A>& w, const AttentionWeights<T>& dw,
                            const T* in, T* dx, A* rounded, size_t samples) {
    shape_.samples = samples;
    const size_t tokens = shape_.tokens(), dim = shape_.dim();
    A* dOut = scratch_->dOut.data();
    A* dQkv = scratch_->dQkv.data();
    T* dNormed = scratch_->dNormed.data();
    multiplyBack(*math_, static_cast<const A*>(rounded), w.wo, dOut, tokens, dim, dim, T(0));
    addWeightGradient(*math_, mixed_.data(), static_cast<const A*>(rounded), dw.wo, tokens, dim,
                      dim);
    math_->attentionBackward(shape_, qkv_.data(), kept_.data(), mixed_.data(), dOut, dQkv);
    addWeightGradient(*math_, normed_.data(), dQkv, dw.wqkv, tokens, dim, shape_.width());
    multiplyBack(*math_, dQkv, w.wqkv, dNormed, tokens, dim, shape_.width(), T(0));
    math_->normBackward(dNormed, in, w.norm, scale_.data(), dx, rounded, dw.norm, tokens, dim);
}

BULKHEAD_FOR_NUMBERS(Attention)

}  // namespace bulkhead::llama_moe
