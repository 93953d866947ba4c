// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "plugins/llama_moe/config.h"

/// Tensors of a model and their offsets. A unit is gathered and reduced at once: unit 0 is the
/// embedding, unit l + 1 layer l, the last unit the final norm and the head. A unit's dense tensors
/// lie one behind the other in one run; so do the tensors of one expert.
namespace bulkhead::llama_moe {

enum class TensorKind : uint8_t {
    kMatrix,     ///< weight decay
    kEmbedding,  ///< no weight decay
    kGain,       ///< of a norm: starts at one, no weight decay
    kBalance,  ///< the router's balancing bias: starts at zero, moves by the sign of its "gradient"
    kPadding,  ///< no tensor: keeps slices of a unit equal, stays zero
};

struct Tensor {
    std::string name;  ///< within the layer, e.g. "attention.wqkv"
    TensorKind kind = TensorKind::kMatrix;
    size_t rows = 1;
    size_t cols = 0;
    size_t offset = 0;     ///< elements, within the dense run or the expert
    double initScale = 0;  ///< standard deviation at the start
    size_t count() const { return rows * cols; }
};

struct Unit {
    int layer = -1;
    int mixture = -1;  ///< index among the mixture layers, -1: none
    std::vector<Tensor> dense;
    std::vector<Tensor> expert;  ///< the tensors of one routed expert
    size_t denseCount = 0;
    size_t expertCount = 0;
    /// "layers.3.", or "" for the outer units.
    std::string prefix() const;
};

struct ModelSpec {
    ModelConfig config;
    std::vector<Unit> units;

    uint64_t parameters() const;
    /// Parameters that one token uses: all dense ones and top-k experts; of the embedding, one row.
    uint64_t activeParameters() const;
};

ModelSpec describeModel(const ModelConfig& config);

/// Offset of the dense (or expert) tensor called `name`; it must exist.
size_t offsetOf(const std::vector<Tensor>& tensors, const std::string& name);

}  // namespace bulkhead::llama_moe
