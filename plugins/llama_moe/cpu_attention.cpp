// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "plugins/llama_moe/blas.h"
#include "plugins/llama_moe/cpu_math.h"
#include "plugins/llama_moe/kernels.h"

namespace bulkhead::llama_moe {
namespace {

/// Query rows taken at once: large enough for the matrix product, small enough that little is
/// computed above the diagonal.
constexpr size_t kTileRows = 64;

/// One head of one sample.
struct Head {
    Head(const AttentionShape& shape, size_t sample, size_t head)
        : q(sample * shape.sequence * shape.width() + head * shape.headDim),
          k(sample * shape.sequence * shape.width() +
            (shape.heads + head / (shape.heads / shape.kvHeads)) * shape.headDim),
          v(k + shape.kvHeads * shape.headDim),
          mixed(sample * shape.sequence * shape.dim() + head * shape.headDim),
          probabilities((sample * shape.heads + head) * shape.sequence * shape.chunk) {}
    size_t q, k, v, mixed, probabilities;  ///< where its first elements are
};

/// Calls visit(head, firstRow, rows, firstKey, keys) for each head of each sample: query rows of a
/// tile and the keys they may see, as tokens of a sample; the first row sees keys - rows + 1.
template <class Visit>
void forTiles(const AttentionShape& shape, Visit&& visit) {
    for (size_t s = 0; s < shape.samples; ++s)
        for (size_t h = 0; h < shape.heads; ++h)
            for (size_t chunk = 0; chunk < shape.sequence; chunk += shape.chunk) {
                const size_t end = std::min(chunk + shape.chunk, shape.sequence);
                for (size_t row = chunk; row < end; row += kTileRows) {
                    const size_t rows = std::min(kTileRows, end - row);
                    visit(Head(shape, s, h), row, rows, chunk, row + rows - chunk);
                }
            }
}

}  // namespace

template <class T>
absl::Status CpuMath<T>::open(const ModelConfig& config, size_t, size_t sequence) {
    const Device& device = this->device();
    const size_t half = config.headDim() / 2;
    BULKHEAD_RETURN_IF_ERROR(dScores_.reserve(device, kTileRows * sequence));
    BULKHEAD_RETURN_IF_ERROR(cosine_.reserve(device, sequence * half));
    BULKHEAD_RETURN_IF_ERROR(sine_.reserve(device, sequence * half));
    ropeTable(cosine_.data(), sine_.data(), sequence, config.headDim(), config.ropeTheta);
    return absl::OkStatus();
}

template <class T>
void CpuMath<T>::turn(const AttentionShape& shape, T* qkv, T sign) const {
    if (shape.rotary)
        rope(qkv, shape.tokens(), shape.width(), shape.heads + shape.kvHeads, shape.headDim,
             shape.sequence, cosine_.data(), sine_.data(), sign);
}

template <class T>
void CpuMath<T>::attentionForward(const AttentionShape& shape, T* qkv, T* probabilities, T* mixed) {
    const size_t head = shape.headDim, width = shape.width(), dim = shape.dim();
    turn(shape, qkv, T(1));
    const T scale = T(1) / std::sqrt(static_cast<T>(head));
    forTiles(shape, [&](const Head& at, size_t row, size_t rows, size_t key, size_t keys) {
        T* p = probabilities + at.probabilities + row * shape.chunk;
        gemm(Turn::kNo, Turn::kYes, rows, keys, head, scale, qkv + at.q + row * width, width,
             qkv + at.k + key * width, width, T(0), p, shape.chunk);
        causalSoftmax(p, rows, keys, shape.chunk, keys - rows + 1);
        gemm(Turn::kNo, Turn::kNo, rows, head, keys, T(1), p, shape.chunk, qkv + at.v + key * width,
             width, T(0), mixed + at.mixed + row * dim, dim);
    });
}

template <class T>
void CpuMath<T>::attentionBackward(const AttentionShape& shape, const T* qkv,
                                   const T* probabilities, const T*, const T* dMixed, T* dQkv) {
    const size_t head = shape.headDim, width = shape.width(), dim = shape.dim();
    T* dScores = dScores_.data();
    std::fill_n(dQkv, shape.tokens() * width, T(0));
    const T scale = T(1) / std::sqrt(static_cast<T>(head));
    forTiles(shape, [&](const Head& at, size_t row, size_t rows, size_t key, size_t keys) {
        const T* p = probabilities + at.probabilities + row * shape.chunk;
        const T* up = dMixed + at.mixed + row * dim;
        const size_t r = row * width, c = key * width;
        gemm(Turn::kNo, Turn::kYes, rows, keys, head, T(1), up, dim, qkv + at.v + c, width, T(0),
             dScores, keys);
        gemm(Turn::kYes, Turn::kNo, keys, head, rows, T(1), p, shape.chunk, up, dim, T(1),
             dQkv + at.v + c, width);
        causalSoftmaxBackward(p, shape.chunk, dScores, keys, rows, keys, keys - rows + 1);
        gemm(Turn::kNo, Turn::kNo, rows, head, keys, scale, dScores, keys, qkv + at.k + c, width,
             T(0), dQkv + at.q + r, width);
        gemm(Turn::kYes, Turn::kNo, keys, head, rows, scale, dScores, keys, qkv + at.q + r, width,
             T(1), dQkv + at.k + c, width);
    });
    turn(shape, dQkv, T(-1));
}

template class CpuMath<float>;
template class CpuMath<double>;

}  // namespace bulkhead::llama_moe
