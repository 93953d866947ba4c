// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/planner/data/counts.h"
#include "backend/planner/plan/plan.h"

/// Placement rules that an operator sets for single experts, which override a search. Pure; any
/// thread.
namespace bulkhead::planner {

/// One expert of one layer, and a GPU or a node (GPU and node numbers as in Topology; layers as in
/// the plan, from 0). Pinned: one of its replicas is there; others may be elsewhere. Forbidden:
/// none is.
struct PlaceRule {
    uint32_t layer = 0;
    uint32_t expert = 0;
    bool pins = true;  ///< else forbids
    bool node = true;  ///< `place` is a node, else a GPU
    uint32_t place = 0;
    bool operator==(const PlaceRule&) const = default;
};

/// "3:17=gpu5" or "3:17=node1". InvalidArgument saying what was expected.
[[nodiscard]] absl::StatusOr<PlaceRule> parsePlaceRule(std::string_view text, bool pins);

/// The same in words: "layer 3, expert 17 pinned to gpu5"; the layer under its number in
/// `layerNumbers` (ModelShape's) where that is given.
[[nodiscard]] std::string placeRuleText(const PlaceRule& rule,
                                        std::span<const uint32_t> layerNumbers = {});

/// InvalidArgument naming the rule, its layer by the model's number: a number out of range, an
/// expert pinned where it is forbidden, or forbidden everywhere.
[[nodiscard]] absl::Status checkPlaceRules(std::span<const PlaceRule> rules,
                                           const ModelShape& shape, const Topology& topology);

/// Changes `plan`, made by whatever algorithm, until every rule holds: each expert that breaks one
/// goes where it may by the shortest chain of exchanges, on its own node where there is a choice
/// and then with experts of like load (`counts`). Everybody else stays. How many replicas an expert
/// has does not change; dispatch follows. InvalidArgument as checkPlaceRules, and naming the expert
/// for which no slot is left or that is pinned to more places than it has replicas; the plan is
/// then as it was.
[[nodiscard]] absl::Status honourPlaceRules(Plan& plan, std::span<const PlaceRule> rules,
                                            const Counts& counts);

/// Exchanges experts between the GPUs of a node so that no GPU holds two replicas of one expert,
/// which are worth no more than one, where another GPU of the node can take one; of several
/// exchanges the one that leaves the fuller of the two GPUs emptiest, when load (`counts`) splits
/// evenly over replicas. Nodes keep their experts, replicas their shares in dispatch.
void partReplicas(Plan& plan, const Counts& counts);

}  // namespace bulkhead::planner
