// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace bulkhead::llama_moe {

/// Tokens are bytes.
constexpr size_t kVocabulary = 256;

/// The shape of one model. Layer l (from 0) attends over the whole sequence without positions when
/// (l + 1) % 4 == 0 and within chunks with rotary positions otherwise; its feed-forward is a
/// mixture when l is odd and dense when l is even.
struct ModelConfig {
    std::string name;  ///< of the size file, or "custom"
    size_t dim = 0;    ///< width of the residual stream
    size_t layers = 0;
    size_t heads = 0;           ///< query heads; dim / heads is the width of a head
    size_t kvHeads = 0;         ///< key and value heads, each shared by heads / kvHeads
    size_t attentionChunk = 0;  ///< tokens per chunk of chunked attention
    size_t ffnHidden = 0;       ///< of dense SwiGLU layers
    size_t experts = 0;         ///< routed experts per mixture layer
    size_t topK = 1;            ///< routed experts per token
    size_t expertHidden = 0;    ///< of one routed expert
    size_t sharedHidden = 0;    ///< of the shared expert
    double ropeTheta = 10000.0;
    double normEpsilon = 1e-5;
    double balanceRate = 0.01;  ///< step of the router's balancing bias per update; 0: none

    size_t headDim() const { return dim / heads; }
    size_t qkvWidth() const { return (heads + 2 * kvHeads) * headDim(); }
    static bool fullAttention(size_t layer) { return (layer + 1) % 4 == 0; }
    static bool mixture(size_t layer) { return layer % 2 == 1; }
    size_t mixtureLayers() const { return layers / 2; }
};

/// Reads the job's [model] table. `size = "tiny"` takes `<directory>/tiny.toml` as the base, whose
/// keys the table may override; without `size` every key that has no default is needed.
/// InvalidArgument, one line naming the key, what was expected and what to do, for text that is not
/// TOML, unknown keys, wrong types, missing keys, and shapes that cannot be. NotFound for a size
/// without a file.
[[nodiscard]] absl::StatusOr<ModelConfig> readModelConfig(std::string_view toml,
                                                          const std::string& directory);

/// Tells if the model can be cut into `shards` and fed micro-batches of `samples` samples of
/// `sequenceLength` tokens; also refuses what no machine could hold, before any size overflows.
[[nodiscard]] absl::Status checkFits(const ModelConfig& config, size_t shards, size_t samples,
                                     size_t sequenceLength);

}  // namespace bulkhead::llama_moe
