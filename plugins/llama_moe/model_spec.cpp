// SPDX-License-Identifier: Apache-2.0
#include "plugins/llama_moe/model_spec.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace bulkhead::llama_moe {
namespace {

size_t append(std::vector<Tensor>& run, Tensor tensor) {
    tensor.offset = run.empty() ? 0 : run.back().offset + run.back().count();
    run.push_back(std::move(tensor));
    return run.back().offset + run.back().count();
}

/// A weight of `in` x `out`: variance 1 / in, so that every layer keeps the scale of its input.
Tensor matrix(std::string name, size_t in, size_t out, double factor = 1.0) {
    return {std::move(name),
            TensorKind::kMatrix,
            in,
            out,
            0,
            factor / std::sqrt(static_cast<double>(in))};
}

Tensor gain(std::string name, size_t dim) {
    return {std::move(name), TensorKind::kGain, 1, dim, 0, 0};
}

Unit layerUnit(const ModelConfig& c, size_t layer) {
    // Matrices that add to the residual stream start smaller, the more such additions there are.
    const double residual = 1.0 / std::sqrt(2.0 * static_cast<double>(c.layers));
    Unit unit;
    unit.layer = static_cast<int>(layer);
    auto& d = unit.dense;
    append(d, gain("attention.norm", c.dim));
    append(d, matrix("attention.wqkv", c.dim, c.qkvWidth()));
    append(d, matrix("attention.wo", c.dim, c.dim, residual));
    unit.denseCount = append(d, gain("ffn.norm", c.dim));
    if (!ModelConfig::mixture(layer)) {
        append(d, matrix("ffn.w13", c.dim, 2 * c.ffnHidden));
        unit.denseCount = append(d, matrix("ffn.w2", c.ffnHidden, c.dim, residual));
        return unit;
    }
    unit.mixture = static_cast<int>(layer / 2);
    append(d, matrix("moe.router", c.dim, c.experts));
    append(d, {"moe.balance", TensorKind::kBalance, 1, c.experts, 0, 0});
    append(d, matrix("moe.shared.w13", c.dim, 2 * c.sharedHidden));
    unit.denseCount = append(d, matrix("moe.shared.w2", c.sharedHidden, c.dim, residual));
    append(unit.expert, matrix("w13", c.dim, 2 * c.expertHidden));
    unit.expertCount = append(unit.expert, matrix("w2", c.expertHidden, c.dim, residual));
    return unit;
}

}  // namespace

std::string Unit::prefix() const {
    return layer < 0 ? "" : absl::StrCat("layers.", layer, ".");
}

uint64_t ModelSpec::parameters() const {
    uint64_t sum = 0;
    for (const Unit& unit : units) sum += unit.denseCount + unit.expertCount * config.experts;
    return sum;
}

uint64_t ModelSpec::activeParameters() const {
    uint64_t sum = config.dim;
    for (size_t u = 1; u < units.size(); ++u)
        sum += units[u].denseCount + units[u].expertCount * config.topK;
    return sum;
}

ModelSpec describeModel(const ModelConfig& config) {
    ModelSpec spec;
    spec.config = config;
    Unit& embedding = spec.units.emplace_back();
    embedding.denseCount = append(
        embedding.dense, {"embedding", TensorKind::kEmbedding, kVocabulary, config.dim, 0, 0.5});
    for (size_t layer = 0; layer < config.layers; ++layer)
        spec.units.push_back(layerUnit(config, layer));
    Unit& head = spec.units.emplace_back();
    append(head.dense, gain("head.norm", config.dim));
    head.denseCount = append(head.dense, matrix("head.w", config.dim, kVocabulary, 0.5));
    return spec;
}

size_t offsetOf(const std::vector<Tensor>& tensors, const std::string& name) {
    const auto found = std::find_if(tensors.begin(), tensors.end(),
                                    [&](const Tensor& t) { return t.name == name; });
    assert(found != tensors.end());
    return found->offset;
}

}  // namespace bulkhead::llama_moe
