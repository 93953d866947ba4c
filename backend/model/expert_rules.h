// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/model/command.h"

/// An operator's rules for single experts of a running job. Pure; thread: any.
namespace bulkhead::model {

/// "0:3=shard1" or "0:3=1": mixture layer, expert, shard. InvalidArgument saying what was expected.
[[nodiscard]] absl::StatusOr<ExpertRule> parseRule(std::string_view text, bool pins);
/// Formats a rule as parseRule reads it.
[[nodiscard]] std::string formatRule(const ExpertRule& rule);
/// "expert 3 of mixture layer 0 is pinned to shard 1"; with `layerNumbers`, the model's own number
/// of each mixture, "expert 3 of layer 1 ...".
[[nodiscard]] std::string ruleText(const ExpertRule& rule,
                                   std::span<const uint32_t> layerNumbers = {});

/// `rules` with one more. What it contradicts goes: another pin of the expert, or a pin to where it
/// is now forbidden and the other way round.
[[nodiscard]] std::vector<ExpertRule> withRule(std::vector<ExpertRule> rules,
                                               const ExpertRule& rule);
/// `rules` without those of one expert.
[[nodiscard]] std::vector<ExpertRule> withoutRules(std::vector<ExpertRule> rules, uint32_t layer,
                                                   uint32_t expert);

/// InvalidArgument naming expert, layer and shard, and what to do instead: a number out of range,
/// an expert pinned twice or where it is forbidden, forbidden on every shard, or more experts
/// pinned to a shard than it holds of the layer. Layers are named as in ruleText. `placement` is
/// [layer][expert], the shard, of `experts` each, in use. Rules that pass may still contradict each
/// other in combination; a planner says so.
[[nodiscard]] absl::Status checkRules(std::span<const ExpertRule> rules,
                                      std::span<const int32_t> placement, uint32_t experts,
                                      uint32_t shards, std::span<const uint32_t> layerNumbers = {});

/// The rules that an action brings instead of those before; null: those before stay. A layout that
/// brings none leaves them.
[[nodiscard]] const std::vector<ExpertRule>* rulesOf(const Action& action);

/// The first rule that `placement` does not keep, as in checkRules; null: it keeps all.
[[nodiscard]] const ExpertRule* brokenRule(std::span<const ExpertRule> rules,
                                           std::span<const int32_t> placement, uint32_t experts);

}  // namespace bulkhead::model
