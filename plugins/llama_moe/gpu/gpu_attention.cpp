// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plugins/llama_moe/gpu/gpu_math.h"
#include "plugins/llama_moe/gpu/grid.h"
#include "plugins/llama_moe/kernels.h"

namespace bulkhead::llama_moe {
namespace {

/// cuBLAS asks for this on Hopper.
constexpr size_t kWorkspace = size_t{32} << 20;
constexpr size_t kWidestHead = 128;

gpu::AttentionTiles tilesOf(const AttentionShape& shape, const Bf16* qkv) {
    return {qkv,
            shape.samples,
            shape.sequence,
            shape.chunk,
            static_cast<uint32_t>(shape.heads),
            static_cast<uint32_t>(shape.kvHeads),
            static_cast<uint32_t>(shape.headDim),
            std::numbers::log2e_v<float> / std::sqrt(static_cast<float>(shape.headDim))};
}

}  // namespace

absl::Status GpuMath::open(const ModelConfig& config, size_t samples, size_t sequence) {
    if (config.headDim() > kWidestHead)
        return absl::InvalidArgumentError(absl::StrCat("[model]: dim / heads must be at most ",
                                                       kWidestHead, " on a GPU, but is ",
                                                       config.headDim(), "; use more heads"));
    if (config.experts > gpu::kMostExperts)
        return absl::InvalidArgumentError(absl::StrCat("[model]: experts must be at most ",
                                                       gpu::kMostExperts, " on a GPU, but is ",
                                                       config.experts));
    BULKHEAD_RETURN_IF_ERROR(workspace_.reserve(device(), kWorkspace));
    BULKHEAD_RETURN_IF_ERROR(
        fromDevice(api_->open(host_, workspace_.data(), kWorkspace, &machine_), "opening"));
    const size_t half = config.headDim() / 2;
    BULKHEAD_RETURN_IF_ERROR(cosine_.reserve(device(), sequence * half));
    BULKHEAD_RETURN_IF_ERROR(sine_.reserve(device(), sequence * half));
    BULKHEAD_RETURN_IF_ERROR(along_.reserve(device(), samples * config.heads * sequence));
    BULKHEAD_RETURN_IF_ERROR(parts_.reserve(device(), kParts * config.dim));
    BULKHEAD_RETURN_IF_ERROR(choiceCounts_.reserve(
        device(),
        std::max<size_t>(blocksOfThreads(samples * sequence * config.topK), 1) * config.experts));
    BULKHEAD_RETURN_IF_ERROR(squares_.reserve(device(), kParts));
    BULKHEAD_RETURN_IF_ERROR(squaresOnHost_.reserve(device(), kParts));
    std::vector<float> cosine(sequence * half), sine(cosine.size());
    ropeTable(cosine.data(), sine.data(), sequence, config.headDim(), config.ropeTheta);
    copy(cosine_.data(), cosine.data(), cosine.size());
    copy(sine_.data(), sine.data(), sine.size());
    return finish();
}

void GpuMath::attentionForward(const AttentionShape& shape, Bf16* qkv, float* kept, Bf16* mixed) {
    if (shape.rotary)
        launch(gpu::Rotate{qkv, cosine_.data(), sine_.data(), shape.tokens(), shape.width(),
                           shape.sequence, static_cast<uint32_t>(shape.heads + shape.kvHeads),
                           static_cast<uint32_t>(shape.headDim / 2)},
               blocksOfRows(shape.tokens()));
    const gpu::AttentionTiles tiles = tilesOf(shape, qkv);
    const size_t jobs = tiles.jobs(tiles.heads);
    if (shape.headDim <= 32)
        launch(gpu::AttentionForward32{tiles, mixed, kept}, jobs);
    else if (shape.headDim <= 64)
        launch(gpu::AttentionForward64{tiles, mixed, kept}, jobs);
    else
        launch(gpu::AttentionForward128{tiles, mixed, kept}, jobs);
}

void GpuMath::attentionBackward(const AttentionShape& shape, const Bf16* qkv, const float* kept,
                                const Bf16* mixed, const Bf16* dMixed, Bf16* dQkv) {
    const gpu::AttentionTiles tiles = tilesOf(shape, qkv);
    const gpu::AttentionBack back{tiles,
                                  mixed,
                                  dMixed,
                                  kept,
                                  along_.data(),
                                  dQkv,
                                  shape.rotary ? cosine_.data() : nullptr,
                                  shape.rotary ? sine_.data() : nullptr};
    const size_t queries = tiles.jobs(tiles.heads), keys = tiles.jobs(tiles.kvHeads);
    if (shape.headDim <= 32) {
        launch(gpu::AttentionBackQueries32{back}, queries);
        launch(gpu::AttentionBackKeys32{back}, keys);
    } else if (shape.headDim <= 64) {
        launch(gpu::AttentionBackQueries64{back}, queries);
        launch(gpu::AttentionBackKeys64{back}, keys);
    } else {
        launch(gpu::AttentionBackQueries128{back}, queries);
        launch(gpu::AttentionBackKeys128{back}, keys);
    }
}

}  // namespace bulkhead::llama_moe
