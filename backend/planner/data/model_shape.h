// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "backend/common/fields.h"

namespace bulkhead::planner {

/// More than any model has; whoever reads a file bounds what it makes of it by these.
inline constexpr uint64_t kMostLayers = 10'000;
inline constexpr uint32_t kMostExperts = 65'536;  ///< of a layer: ids are 16 bits wide

/// Properties of a model that the planner needs. Layers are MoE layers, counted from 0 without the
/// dense ones; experts are routed, logical ones (shared experts run everywhere and are not placed).
/// Thread: a value.
struct ModelShape {
    std::string name;             ///< "" when the recording does not say
    uint32_t layers = 0;          ///< MoE layers
    uint32_t experts = 0;         ///< routed experts of a layer, at most kMostExperts
    uint32_t topK = 0;            ///< routed experts of a token in a layer
    uint32_t hidden = 0;          ///< width of a token's activation, elements; 0: not known
    uint32_t routerGroups = 1;    ///< group-limited routing: experts come in so many equal groups
    uint32_t groupsPerToken = 1;  ///< ... of which a token may use so many
    uint64_t expertBytes = 0;     ///< weights of one expert of one layer; 0: not known
    /// The model's own number of each MoE layer (DeepSeek-V3: 3..60). Empty: not known,
    /// 0..layers-1. Ascending, each below kMostLayers.
    std::vector<uint32_t> layerNumbers;

    bool operator==(const ModelShape&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("name", self.name);
        visit("layers", self.layers);
        visit("experts", self.experts);
        visit("top_k", self.topK);
        visit("hidden", self.hidden);
        visit("router_groups", self.routerGroups);
        visit("groups_per_token", self.groupsPerToken);
        visit("expert_bytes", self.expertBytes);
        visit("layer_numbers", self.layerNumbers);
    }
};

/// InvalidArgument, naming the numbers, unless 1 <= layers <= kMostLayers, 1 <= topK <= experts <=
/// kMostExperts, there are no layer numbers or `layers` ascending ones below kMostLayers, and
/// router groups divide experts, groupsPerToken of them. Thread: any.
[[nodiscard]] absl::Status checkShape(const ModelShape& shape);

/// The model's own number of a layer. Precondition: checkShape, layer < layers.
[[nodiscard]] inline uint32_t numberOfLayer(const ModelShape& shape, uint32_t layer) {
    return shape.layerNumbers.empty() ? layer : shape.layerNumbers[layer];
}

}  // namespace bulkhead::planner
