// SPDX-License-Identifier: Apache-2.0
#include "plugins/llama_moe/attention.h"

#include <algorithm>
#include <cmath>

#include "plugins/llama_moe/blas.h"
#include "plugins/llama_moe/kernels.h"

namespace bulkhead::llama_moe {
namespace {

/// Query rows taken at once: large enough for the matrix product, small enough that little is
/// computed above the diagonal.
constexpr size_t kTileRows = 64;

}  // namespace

template <class T>
absl::Status Attention<T>::open(const ModelConfig& config, bool full, const Device& device,
                                size_t samples, size_t sequence, AttentionScratch<T>* scratch) {
    config_ = config;
    full_ = full;
    sequence_ = sequence;
    chunk_ = full ? sequence : std::min(sequence, config.attentionChunk);
    scratch_ = scratch;
    const size_t tokens = samples * sequence;
    const size_t half = config.headDim() / 2;
    BULKHEAD_RETURN_IF_ERROR(scale_.reserve(device, tokens));
    BULKHEAD_RETURN_IF_ERROR(normed_.reserve(device, tokens * config.dim));
    BULKHEAD_RETURN_IF_ERROR(qkv_.reserve(device, tokens * config.qkvWidth()));
    BULKHEAD_RETURN_IF_ERROR(mixed_.reserve(device, tokens * config.dim));
    BULKHEAD_RETURN_IF_ERROR(probabilities_.reserve(device, tokens * config.heads * chunk_));
    BULKHEAD_RETURN_IF_ERROR(scratch->dOut.reserve(device, tokens * config.dim));
    BULKHEAD_RETURN_IF_ERROR(scratch->dQkv.reserve(device, tokens * config.qkvWidth()));
    BULKHEAD_RETURN_IF_ERROR(scratch->dScores.reserve(device, kTileRows * sequence));
    BULKHEAD_RETURN_IF_ERROR(scratch->dNormed.reserve(device, tokens * config.dim));
    BULKHEAD_RETURN_IF_ERROR(scratch->cosine.reserve(device, sequence * half));
    BULKHEAD_RETURN_IF_ERROR(scratch->sine.reserve(device, sequence * half));
    ropeTable(scratch->cosine.data(), scratch->sine.data(), sequence, config.headDim(),
              config.ropeTheta);
    return absl::OkStatus();
}

template <class T>
template <class Visit>
void Attention<T>::forTiles(Visit&& visit) const {
    for (size_t chunk = 0; chunk < sequence_; chunk += chunk_) {
        const size_t end = std::min(chunk + chunk_, sequence_);
        for (size_t row = chunk; row < end; row += kTileRows) {
            const size_t rows = std::min(kTileRows, end - row);
            visit(row, rows, chunk, row + rows - chunk);
        }
    }
}

template <class T>
void Attention<T>::forward(const AttentionWeights<const T>& w, const T* in, T* out,
                           size_t samples) {
    const size_t dim = config_.dim, head = config_.headDim(), width = config_.qkvWidth();
    const size_t tokens = samples * sequence_, group = config_.heads / config_.kvHeads;
    normForward(in, w.norm, normed_.data(), scale_.data(), tokens, dim,
                static_cast<T>(config_.normEpsilon));
    multiply(normed_.data(), w.wqkv, qkv_.data(), tokens, dim, width, T(0));
    if (!full_)
        rope(qkv_.data(), tokens, width, config_.heads + config_.kvHeads, head, sequence_,
             scratch_->cosine.data(), scratch_->sine.data(), T(1));
    const T scale = T(1) / std::sqrt(static_cast<T>(head));
    for (size_t s = 0; s < samples; ++s)
        for (size_t h = 0; h < config_.heads; ++h) {
            const T* q = qkv_.data() + s * sequence_ * width + h * head;
            const T* k = q - h * head + (config_.heads + h / group) * head;
            const T* v = k + config_.kvHeads * head;
            T* o = mixed_.data() + s * sequence_ * dim + h * head;
            forTiles([&](size_t row, size_t rows, size_t key, size_t keys) {
                T* p = scores(s, h, row);
                gemm(Turn::kNo, Turn::kYes, rows, keys, head, scale, q + row * width, width,
                     k + key * width, width, T(0), p, chunk_);
                causalSoftmax(p, rows, keys, chunk_, keys - rows + 1);
                gemm(Turn::kNo, Turn::kNo, rows, head, keys, T(1), p, chunk_, v + key * width,
                     width, T(0), o + row * dim, dim);
            });
        }
    std::copy_n(in, tokens * dim, out);
    multiply(mixed_.data(), w.wo, out, tokens, dim, dim, T(1));
}

template <class T>
void Attention<T>::backward(const AttentionWeights<const T>& w, const AttentionWeights<T>& dw,
                            const T* in, T* dx, size_t samples) {
    const size_t dim = config_.dim, head = config_.headDim(), width = config_.qkvWidth();
    const size_t tokens = samples * sequence_, group = config_.heads / config_.kvHeads;
    T* dOut = scratch_->dOut.data();
    T* dQkv = scratch_->dQkv.data();
    T* dScores = scratch_->dScores.data();
    multiplyBack(dx, w.wo, dOut, tokens, dim, dim, T(0));
    addWeightGradient(mixed_.data(), dx, dw.wo, tokens, dim, dim);
    std::fill_n(dQkv, tokens * width, T(0));
    const T scale = T(1) / std::sqrt(static_cast<T>(head));
    for (size_t s = 0; s < samples; ++s)
        for (size_t h = 0; h < config_.heads; ++h) {
            const size_t atQ = s * sequence_ * width + h * head;
            const size_t atK = s * sequence_ * width + (config_.heads + h / group) * head;
            const size_t atV = atK + config_.kvHeads * head;
            const T* qkv = qkv_.data();
            const T* o = dOut + s * sequence_ * dim + h * head;
            forTiles([&](size_t row, size_t rows, size_t key, size_t keys) {
                const T* p = scores(s, h, row);
                const size_t r = row * width, c = key * width;
                gemm(Turn::kNo, Turn::kYes, rows, keys, head, T(1), o + row * dim, dim,
                     qkv + atV + c, width, T(0), dScores, keys);
                gemm(Turn::kYes, Turn::kNo, keys, head, rows, T(1), p, chunk_, o + row * dim, dim,
                     T(1), dQkv + atV + c, width);
                causalSoftmaxBackward(p, chunk_, dScores, keys, rows, keys, keys - rows + 1);
                gemm(Turn::kNo, Turn::kNo, rows, head, keys, scale, dScores, keys, qkv + atK + c,
                     width, T(0), dQkv + atQ + r, width);
                gemm(Turn::kYes, Turn::kNo, keys, head, rows, scale, dScores, keys, qkv + atQ + r,
                     width, T(1), dQkv + atK + c, width);
            });
        }
    if (!full_)
        rope(dQkv, tokens, width, config_.heads + config_.kvHeads, head, sequence_,
             scratch_->cosine.data(), scratch_->sine.data(), T(-1));
    addWeightGradient(normed_.data(), dQkv, dw.wqkv, tokens, dim, width);
    multiplyBack(dQkv, w.wqkv, scratch_->dNormed.data(), tokens, dim, width, T(0));
    normBackward(scratch_->dNormed.data(), in, w.norm, scale_.data(), dx, dw.norm, tokens, dim);
}

template class Attention<float>;
template class Attention<double>;

}  // namespace bulkhead::llama_moe
