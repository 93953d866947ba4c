// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/data/model_shape.h"

#include "backend/model/names.h"

namespace bulkhead::planner {

absl::Status checkShape(const ModelShape& shape) {
    const auto refuse = [](const auto&... words) {
        return absl::InvalidArgumentError(model::concat(words...));
    };
    if (shape.layers == 0 || shape.layers > kMostLayers)
        return refuse("layers: MoE layers must be 1 to ", kMostLayers, ", found ", shape.layers);
    if (shape.experts == 0 || shape.experts > kMostExperts)
        return refuse("experts: must be 1 to ", kMostExperts, ", found ", shape.experts);
    if (shape.topK == 0 || shape.topK > shape.experts)
        return refuse("top_k: must be 1 to the ", shape.experts, " experts, found ", shape.topK);
    if (shape.routerGroups == 0 || shape.experts % shape.routerGroups != 0)
        return refuse("router_groups: ", shape.routerGroups, " do not divide ", shape.experts,
                      " experts");
    if (shape.groupsPerToken == 0 || shape.groupsPerToken > shape.routerGroups)
        return refuse("groups_per_token: must be 1 to ", shape.routerGroups, ", found ",
                      shape.groupsPerToken);
    const auto& numbers = shape.layerNumbers;
    if (!numbers.empty() && numbers.size() != shape.layers)
        return refuse("layer_numbers: ", numbers.size(), " for ", shape.layers, " layers");
    for (size_t i = 0; i < numbers.size(); ++i) {
        if (numbers[i] >= kMostLayers)
            return refuse("layer_numbers: ", numbers[i], ", expected less than ", kMostLayers);
        if (i > 0 && numbers[i] <= numbers[i - 1])
            return refuse("layer_numbers: ", numbers[i], " after ", numbers[i - 1],
                          ", expected ascending ones");
    }
    return absl::OkStatus();
}

}  // namespace bulkhead::planner
