// SPDX-License-Identifier: Apache-2.0
#include "backend/model/expert_rules.h"

#include <algorithm>

#include "backend/model/names.h"
#include "backend/model/parse_number.h"
#include "backend/model/run_views.h"

namespace bulkhead::model {
namespace {

bool sameExpert(const ExpertRule& a, const ExpertRule& b) {
    return a.layer == b.layer && a.expert == b.expert;
}

bool contradicts(const ExpertRule& a, const ExpertRule& b) {
    if (!sameExpert(a, b)) return false;
    if (a.pins && b.pins) return a.shard != b.shard;
    return a.pins != b.pins && a.shard == b.shard;
}

}  // namespace

absl::StatusOr<ExpertRule> parseRule(std::string_view text, bool pins) {
    const size_t colon = text.find(':'), equals = text.find('=');
    if (colon != text.npos && equals != text.npos && colon < equals) {
        std::string_view shard = text.substr(equals + 1);
        if (shard.substr(0, 5) == "shard") shard.remove_prefix(5);
        const auto layer = parseNumber<uint32_t>(text.substr(0, colon));
        const auto expert = parseNumber<uint32_t>(text.substr(colon + 1, equals - colon - 1));
        const auto at = parseNumber<uint32_t>(shard);
        if (layer && expert && at) return ExpertRule{*layer, *expert, *at, pins};
    }
    return absl::InvalidArgumentError(
        concat("\"", shortened(text, 60), "\": expected LAYER:EXPERT=shardN, all from 0"));
}

std::string formatRule(const ExpertRule& rule) {
    return concat(rule.layer, ":", rule.expert, "=shard", rule.shard);
}

std::string ruleText(const ExpertRule& rule, std::span<const uint32_t> layerNumbers) {
    const bool numbered = rule.layer < layerNumbers.size();
    return concat("expert ", rule.expert, numbered ? " of layer " : " of mixture layer ",
                  numbered ? layerNumbers[rule.layer] : rule.layer,
                  rule.pins ? " is pinned to shard " : " is forbidden on shard ", rule.shard);
}

std::vector<ExpertRule> withRule(std::vector<ExpertRule> rules, const ExpertRule& rule) {
    std::erase_if(rules, [&](const ExpertRule& r) { return r == rule || contradicts(r, rule); });
    rules.push_back(rule);
    return rules;
}

std::vector<ExpertRule> withoutRules(std::vector<ExpertRule> rules, uint32_t layer,
                                     uint32_t expert) {
    std::erase_if(rules,
                  [&](const ExpertRule& r) { return r.layer == layer && r.expert == expert; });
    return rules;
}

absl::Status checkRules(std::span<const ExpertRule> rules, std::span<const int32_t> placement,
                        uint32_t experts, uint32_t shards, std::span<const uint32_t> layerNumbers) {
    const auto refused = [&](const ExpertRule& rule, const auto&... why) {
        return absl::InvalidArgumentError(concat(ruleText(rule, layerNumbers), ": ", why...));
    };
    if (rules.size() > Limits::kExpertRules)
        return absl::InvalidArgumentError(
            concat(rules.size(), " pins and bans; expected at most ", Limits::kExpertRules));
    const size_t layers = experts == 0 ? 0 : placement.size() / experts;
    for (const ExpertRule& rule : rules) {
        if (rule.layer >= layers) return refused(rule, "the model has ", layers, " mixture layers");
        if (rule.expert >= experts) return refused(rule, "a layer has ", experts, " experts");
        if (rule.shard >= shards) return refused(rule, "a replica has ", shards, " shards");
    }
    for (const ExpertRule& rule : rules) {
        const auto count = [&](auto&& holds) {
            return static_cast<size_t>(std::count_if(rules.begin(), rules.end(), holds));
        };
        for (const ExpertRule& other : rules)
            if (contradicts(rule, other))
                return refused(rule, "and ", ruleText(other, layerNumbers),
                               "; keep one of the two");
        const size_t bans =
            count([&](const ExpertRule& r) { return !r.pins && sameExpert(r, rule); });
        if (bans >= shards)
            return refused(rule, "and on all the others; an expert must be on one of the ", shards,
                           " shards, so allow it somewhere");
        const size_t pins = count([&](const ExpertRule& r) {
            return r.pins && r.layer == rule.layer && r.shard == rule.shard;
        });
        const auto row = placement.subspan(size_t{rule.layer} * experts, experts);
        const auto holds = std::count(row.begin(), row.end(), static_cast<int32_t>(rule.shard));
        if (rule.pins && pins > static_cast<size_t>(holds))
            return refused(rule, "with it ", pins, " are, and the shard holds ", holds,
                           " experts of the layer; free one of them");
    }
    return absl::OkStatus();
}

const std::vector<ExpertRule>* rulesOf(const Action& action) {
    const bool brings = action.kind == ActionKind::kRuleExperts ||
                        (action.kind == ActionKind::kChangeLayout && !action.rules.empty());
    return brings ? &action.rules : nullptr;
}

const ExpertRule* brokenRule(std::span<const ExpertRule> rules, std::span<const int32_t> placement,
                             uint32_t experts) {
    for (const ExpertRule& rule : rules) {
        const size_t at = size_t{rule.layer} * experts + rule.expert;
        if (at >= placement.size()) continue;
        if ((placement[at] == static_cast<int32_t>(rule.shard)) != rule.pins) return &rule;
    }
    return nullptr;
}

}  // namespace bulkhead::model
