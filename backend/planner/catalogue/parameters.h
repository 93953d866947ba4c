// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "backend/planner/catalogue/model_spec.h"

namespace bulkhead::planner {

/// Weights by where they are. Counted from the architecture; norms have one weight an element.
struct Parameters {
    uint64_t embeddings = 0;  ///< input, and output unless tied
    uint64_t attention = 0;
    uint64_t dense = 0;   ///< feed-forward of the dense layers
    uint64_t routed = 0;  ///< all routed experts
    uint64_t shared = 0;
    uint64_t router = 0;
    uint64_t norms = 0;
    uint64_t routedUsed = 0;  ///< of `routed`, what one token uses

    uint64_t total() const {
        return embeddings + attention + dense + routed + shared + router + norms;
    }
    /// Parameters that one token uses, embeddings included (as DeepSeek and Meta count it).
    uint64_t active() const { return total() - routed + routedUsed; }
};

[[nodiscard]] Parameters parametersOf(const ModelSpec& model);

/// Weights of one routed expert.
[[nodiscard]] uint64_t expertParameters(const ModelSpec& model);

/// Number of layers that route.
[[nodiscard]] uint32_t moeLayers(const ModelSpec& model);

}  // namespace bulkhead::planner
