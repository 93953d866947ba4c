// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "plugins/llama_moe/gpu/gpu_math.h"
#include "plugins/llama_moe/gpu/grid.h"
#include "plugins/llama_moe/kernels.h"

namespace bulkhead::llama_moe {
namespace {

/// What cuBLAS asks for on Hopper.
constexpr size_t kWorkspace = size_t{32} << 20;
/// Query rows taken at once: above the diagonal half a tile is computed in vain.
constexpr size_t kTileRows = 512;

/// Where chunks divide samples each is one, so that more is done at once.
AttentionShape folded(AttentionShape shape) {
    if (shape.sequence % shape.chunk != 0) return shape;
    shape.samples *= shape.sequence / shape.chunk;
    shape.sequence = shape.chunk;
    return shape;
}

/// One head of all samples: where its first elements are.
struct Head {
    Head(const AttentionShape& shape, size_t head)
        : q(head * shape.headDim),
          k((shape.heads + head / (shape.heads / shape.kvHeads)) * shape.headDim),
          v(k + shape.kvHeads * shape.headDim),
          probabilities(head * shape.sequence * shape.chunk) {}
    size_t q, k, v;
    size_t probabilities;
};

/// Products of one head's tiles with operands in three layouts: rows of qkv, rows of mixed, and
/// rows of scores (of one head) or probabilities (of all).
class Tiles {
  public:
    /// A matrix that lies in every sample alike.
    template <class V>
    struct Matrix {
        V* at;
        size_t row, sample;  ///< strides
    };

    Tiles(const AttentionShape& shape, const gpu::MachineApi* api, gpu::Machine* machine)
        : shape_(shape), api_(api), machine_(machine) {}

    template <class V>
    Matrix<V> inQkv(V* at) const {
        return {at, shape_.width(), shape_.sequence * shape_.width()};
    }
    template <class V>
    Matrix<V> inMixed(V* at) const {
        return {at, shape_.dim(), shape_.sequence * shape_.dim()};
    }
    template <class V>
    Matrix<V> inScores(V* at) const {
        return {at, shape_.chunk, shape_.sequence * shape_.chunk};
    }
    template <class V>
    Matrix<V> inProbabilities(V* at) const {
        return {at, shape_.chunk, shape_.heads * shape_.sequence * shape_.chunk};
    }

    /// scores[rows, keys] = scale * x[rows] y[keys]^T
    void outer(const Matrix<const Bf16>& x, const Matrix<const Bf16>& y,
               const Matrix<float>& scores, float scale) const {
        forTiles([&](size_t row, size_t rows, size_t key, size_t keys) {
            put(false, true, rows, keys, shape_.headDim, from(x, row), from(y, key),
                from(scores, row), scale, 0);
        });
    }
    /// to[rows] = scale * scores[rows, keys] x[keys]
    template <class C>
    void down(const Matrix<const Bf16>& scores, const Matrix<const Bf16>& x, const Matrix<C>& to,
              float scale) const {
        forTiles([&](size_t row, size_t rows, size_t key, size_t keys) {
            put(false, false, rows, shape_.headDim, keys, from(scores, row), from(x, key),
                from(to, row), scale, 0);
        });
    }
    /// to[keys] += scale * scores[rows, keys]^T x[rows]
    void across(const Matrix<const Bf16>& scores, const Matrix<const Bf16>& x,
                const Matrix<float>& to, float scale) const {
        forTiles([&](size_t row, size_t rows, size_t key, size_t keys) {
            put(true, false, keys, shape_.headDim, rows, from(scores, row), from(x, row),
                from(to, key), scale, 1);
        });
    }

  private:
    template <class V>
    static Matrix<V> from(const Matrix<V>& matrix, size_t row) {
        return {matrix.at + row * matrix.row, matrix.row, matrix.sample};
    }
    /// Calls visit(firstRow, rows, firstKey, keys): rows of a tile and the keys they may see.
    template <class Visit>
    void forTiles(Visit&& visit) const {
        for (size_t chunk = 0; chunk < shape_.sequence; chunk += shape_.chunk) {
            const size_t end = std::min(chunk + shape_.chunk, shape_.sequence);
            for (size_t row = chunk; row < end; row += kTileRows) {
                const size_t rows = std::min(kTileRows, end - row);
                visit(row, rows, chunk, row + rows - chunk);
            }
        }
    }
    template <class C>
    void put(bool turnA, bool turnB, size_t m, size_t n, size_t k, const Matrix<const Bf16>& a,
             const Matrix<const Bf16>& b, const Matrix<C>& c, float alpha, float beta) const {
        if (shape_.samples == 0) return;
        const gpu::BatchedProduct product{turnA, turnB, std::is_same_v<C, float>,
                                          m,     n,     k,
                                          a.at,  a.row, a.sample,
                                          b.at,  b.row, b.sample,
                                          c.at,  c.row, c.sample,
                                          alpha, beta,  shape_.samples};
        api_->product(machine_, &product);
    }

    const AttentionShape shape_;
    const gpu::MachineApi* api_;
    gpu::Machine* machine_;
};

gpu::HeadRows rowsOf(const AttentionShape& shape) {
    return {shape.samples, shape.sequence, shape.chunk, shape.heads * shape.sequence * shape.chunk};
}

float scaleOf(const AttentionShape& shape) {
    return 1.0f / std::sqrt(static_cast<float>(shape.headDim));
}

}  // namespace

absl::Status GpuMath::open(const ModelConfig& config, size_t samples, size_t sequence) {
    BULKHEAD_RETURN_IF_ERROR(workspace_.reserve(device(), kWorkspace));
    BULKHEAD_RETURN_IF_ERROR(
        fromDevice(api_->open(host_, workspace_.data(), kWorkspace, &machine_), "opening"));
    const size_t half = config.headDim() / 2, tokens = samples * sequence;
    BULKHEAD_RETURN_IF_ERROR(cosine_.reserve(device(), sequence * half));
    BULKHEAD_RETURN_IF_ERROR(sine_.reserve(device(), sequence * half));
    BULKHEAD_RETURN_IF_ERROR(scores_.reserve(device(), tokens * sequence));
    BULKHEAD_RETURN_IF_ERROR(dScores_.reserve(device(), tokens * sequence));
    BULKHEAD_RETURN_IF_ERROR(dQkv_.reserve(device(), tokens * config.qkvWidth()));
    BULKHEAD_RETURN_IF_ERROR(parts_.reserve(device(), (kParts + kParts / kPartsEach) * config.dim));
    BULKHEAD_RETURN_IF_ERROR(squares_.reserve(device(), kParts));
    BULKHEAD_RETURN_IF_ERROR(squaresOnHost_.reserve(device(), kParts));
    std::vector<float> cosine(sequence * half), sine(cosine.size());
    ropeTable(cosine.data(), sine.data(), sequence, config.headDim(), config.ropeTheta);
    copy(cosine_.data(), cosine.data(), cosine.size());
    copy(sine_.data(), sine.data(), sine.size());
    return finish();
}

void GpuMath::rotate(const AttentionShape& shape, Bf16* qkv) {
    launch(gpu::Rotate{qkv, cosine_.data(), sine_.data(), shape.tokens(), shape.width(),
                       shape.sequence, static_cast<uint32_t>(shape.heads + shape.kvHeads),
                       static_cast<uint32_t>(shape.headDim / 2)},
           blocksOfRows(shape.tokens()));
}

void GpuMath::attentionForward(const AttentionShape& whole, Bf16* qkv, Bf16* probabilities,
                               Bf16* mixed) {
    if (whole.rotary) rotate(whole, qkv);
    const AttentionShape shape = folded(whole);
    const Tiles tiles(shape, api_, machine_);
    const Bf16* in = qkv;
    for (size_t h = 0; h < shape.heads; ++h) {
        const Head at(shape, h);
        Bf16* p = probabilities + at.probabilities;
        tiles.outer(tiles.inQkv(in + at.q), tiles.inQkv(in + at.k), tiles.inScores(scores_.data()),
                    scaleOf(shape));
        launch(gpu::CausalSoftmax{scores_.data(), p, rowsOf(shape)}, blocksOfRows(shape.tokens()));
        tiles.down(tiles.inProbabilities<const Bf16>(p), tiles.inQkv(in + at.v),
                   tiles.inMixed(mixed + h * shape.headDim), 1);
    }
}

void GpuMath::attentionBackward(const AttentionShape& whole, const Bf16* qkv,
                                const Bf16* probabilities, const Bf16* dMixed, Bf16* dQkv) {
    const AttentionShape shape = folded(whole);
    const Tiles tiles(shape, api_, machine_);
    float* wide = dQkv_.data();
    const auto dScores = tiles.inScores<const Bf16>(dScores_.data());
    zero(wide, shape.tokens() * shape.width());
    for (size_t h = 0; h < shape.heads; ++h) {
        const Head at(shape, h);
        const Bf16* p = probabilities + at.probabilities;
        const auto up = tiles.inMixed(dMixed + h * shape.headDim);
        tiles.outer(up, tiles.inQkv(qkv + at.v), tiles.inScores(scores_.data()), 1);
        tiles.across(tiles.inProbabilities(p), up, tiles.inQkv(wide + at.v), 1);
        launch(gpu::CausalSoftmaxBackward{p, scores_.data(), dScores_.data(), rowsOf(shape)},
               blocksOfRows(shape.tokens()));
        tiles.down(dScores, tiles.inQkv(qkv + at.k), tiles.inQkv(wide + at.q), scaleOf(shape));
        tiles.across(dScores, tiles.inQkv(qkv + at.q), tiles.inQkv(wide + at.k), scaleOf(shape));
    }
    launch(gpu::RotateBack{wide, dQkv, cosine_.data(), sine_.data(), whole.tokens(), whole.sequence,
                           static_cast<uint32_t>(whole.heads + 2 * whole.kvHeads),
                           static_cast<uint32_t>(whole.rotary ? whole.heads + whole.kvHeads : 0),
                           static_cast<uint32_t>(whole.headDim / 2)},
           blocksOfRows(whole.tokens()));
}

}  // namespace bulkhead::llama_moe
