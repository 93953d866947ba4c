// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "backend/planner/characterise/characterise.h"

namespace bulkhead::planner {

/// Co-activation: two experts of a token in one layer. Affinity: one of a token's experts in a
/// layer and one in the next (as ExFlow, arXiv 2401.08383, means it). For both, over all such pairs
/// of the sampled tokens, in each layer: `information` is their mutual information by the entropy
/// of the second expert, with Miller and Madow's correction for the size of the sample; `lifted`
/// the share of pairs of experts that occur at least twice as often as independent choice would
/// make them. Means over layers. Our own summary numbers.
[[nodiscard]] std::optional<PairLoad> coactivation(const Routing& routing,
                                                   const CharacteriseOptions& options);
[[nodiscard]] std::optional<PairLoad> affinity(const Routing& routing,
                                               const CharacteriseOptions& options);

}  // namespace bulkhead::planner
