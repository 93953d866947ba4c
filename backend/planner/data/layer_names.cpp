// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/data/layer_names.h"

#include "backend/model/names.h"

namespace bulkhead::planner {

using model::concat;

std::string layerList(uint32_t layers, std::span<const uint32_t> layerNumbers) {
    const auto numberOf = [&](uint32_t i) { return layerNumbers.empty() ? i : layerNumbers[i]; };
    std::string out;
    for (uint32_t first = 0, last; first < layers; first = last + 1) {
        for (last = first; last + 1 < layers && numberOf(last + 1) == numberOf(last) + 1;) ++last;
        out += concat(out.empty() ? "" : ", ", numberOf(first));
        if (last > first) out += concat(last > first + 1 ? ".." : ", ", numberOf(last));
    }
    return out;
}

absl::StatusOr<uint32_t> layerNamed(uint32_t number, uint32_t layers,
                                    std::span<const uint32_t> layerNumbers) {
    for (uint32_t i = 0; i < layers; ++i)
        if ((layerNumbers.empty() ? i : layerNumbers[i]) == number) return i;
    return absl::InvalidArgumentError(concat(
        "layer ", number, " has no experts; those that do are ", layerList(layers, layerNumbers)));
}

}  // namespace bulkhead::planner
