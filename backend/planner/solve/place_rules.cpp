// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/solve/place_rules.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "backend/planner/plan/node_routes.h"

namespace bulkhead::planner {

namespace {

constexpr uint32_t kNone = UINT32_MAX;

/// Returns whether the rule's GPU or node contains the GPU.
bool covers(const PlaceRule& rule, uint32_t gpu, const Topology& topology) {
    return rule.place == (rule.node ? gpu / topology.gpusPerNode() : gpu);
}

/// One layer: an instance is a replica of an expert, and begins in the slot of its own number.
class LayerFit {
  public:
    LayerFit(Plan& plan, uint32_t layer, std::span<const PlaceRule> rules, const Counts& counts)
        : plan_(plan), layer_(layer), gpuOf_(gpuOfSlots(plan.firstSlot)) {
        for (const PlaceRule& rule : rules)
            if (rule.layer == layer) rules_.push_back(rule);
        for (uint32_t e = 0; e < plan.shape.experts; ++e)
            load_.push_back(static_cast<double>(counts.at(layer, e)));
        expertOf_ = plan.layers[layer].expertOfSlot;
        pinOf_.resize(expertOf_.size(), kNone);
        slotOf_.resize(expertOf_.size());
        std::iota(slotOf_.begin(), slotOf_.end(), 0);
        holder_ = slotOf_;
    }

    absl::Status fit() {
        if (rules_.empty()) return absl::OkStatus();
        if (auto status = sharePins(); !status.ok()) return status;
        std::vector<uint32_t> homeless;
        for (uint32_t i = 0; i < expertOf_.size(); ++i)
            if (!mayUse(i, slotOf_[i])) homeless.push_back(i);
        if (homeless.empty()) return absl::OkStatus();
        for (uint32_t i : homeless) holder_[slotOf_[i]] = kNone;
        for (uint32_t i : homeless)
            if (!settle(i))
                return absl::InvalidArgumentError(
                    absl::StrCat("layer ", layer_, ": no slot is left for expert ", expertOf_[i],
                                 "; what is pinned and forbidden there asks for more slots than "
                                 "there are; free one of them"));
        write();
        return absl::OkStatus();
    }

  private:
    /// Assigns a replica to each pin: one that is already there, else any without a pin.
    absl::Status sharePins() {
        std::vector<size_t> open;
        // GPUs first: the replica of one may answer for its node as well.
        std::stable_sort(rules_.begin(), rules_.end(),
                         [](const PlaceRule& a, const PlaceRule& b) { return a.node < b.node; });
        for (size_t r = 0; r < rules_.size(); ++r) {
            if (!rules_[r].pins || answered(r)) continue;
            if (!take(r, true)) open.push_back(r);
        }
        for (size_t r : open)
            if (!answered(r) && !take(r, false))
                return absl::InvalidArgumentError(
                    absl::StrCat(placeRuleText(rules_[r]), ": every one of its ",
                                 std::count(expertOf_.begin(), expertOf_.end(), rules_[r].expert),
                                 " replicas is pinned elsewhere"));
        return absl::OkStatus();
    }

    bool answered(size_t r) const {
        for (uint32_t i = 0; i < expertOf_.size(); ++i) {
            if (expertOf_[i] != rules_[r].expert || pinOf_[i] == kNone) continue;
            const PlaceRule& other = rules_[pinOf_[i]];
            const uint32_t gpus = plan_.topology.gpusPerNode();
            if (other == rules_[r] ||
                (rules_[r].node && !other.node && other.place / gpus == rules_[r].place))
                return true;
        }
        return false;
    }

    bool take(size_t r, bool there) {
        for (uint32_t i = 0; i < expertOf_.size(); ++i)
            if (expertOf_[i] == rules_[r].expert && pinOf_[i] == kNone &&
                (!there || covers(rules_[r], gpuOf_[i], plan_.topology))) {
                pinOf_[i] = static_cast<uint32_t>(r);
                return true;
            }
        return false;
    }

    bool mayUse(uint32_t instance, uint32_t slot) const {
        if (pinOf_[instance] != kNone &&
            !covers(rules_[pinOf_[instance]], gpuOf_[slot], plan_.topology))
            return false;
        return std::none_of(rules_.begin(), rules_.end(), [&](const PlaceRule& rule) {
            return !rule.pins && rule.expert == expertOf_[instance] &&
                   covers(rule, gpuOf_[slot], plan_.topology);
        });
    }

    /// All slots, best first: the instance's own node, then whoever has a load like its own.
    std::vector<uint32_t> slotsFor(uint32_t instance) const {
        std::vector<uint32_t> slots(expertOf_.size());
        std::iota(slots.begin(), slots.end(), 0);
        const uint32_t gpus = plan_.topology.gpusPerNode();
        const auto key = [&](uint32_t slot) {
            return std::pair(gpuOf_[slot] / gpus != gpuOf_[instance] / gpus,
                             std::abs(load_[expertOf_[slot]] - load_[expertOf_[instance]]));
        };
        std::stable_sort(slots.begin(), slots.end(),
                         [&](uint32_t a, uint32_t b) { return key(a) < key(b); });
        return slots;
    }

    /// The shortest chain in which each takes the slot of the next and the last a free one.
    bool settle(uint32_t instance) {
        std::vector<uint32_t> queue{instance}, takenBy(expertOf_.size(), kNone);
        for (size_t next = 0; next < queue.size(); ++next)
            for (uint32_t slot : slotsFor(queue[next])) {
                if (takenBy[slot] != kNone || !mayUse(queue[next], slot)) continue;
                takenBy[slot] = queue[next];
                if (holder_[slot] != kNone) {
                    queue.push_back(holder_[slot]);
                    continue;
                }
                for (uint32_t at = slot;;) {
                    const uint32_t mover = takenBy[at], left = slotOf_[mover];
                    holder_[at] = mover;
                    slotOf_[mover] = at;
                    if (mover == instance) return true;
                    at = left;
                }
            }
        return false;
    }

    void write() {
        const uint32_t nodes = plan_.topology.nodes(), experts = plan_.shape.experts;
        std::vector<uint16_t> route = routesOf(plan_).layers[layer_];
        LayerPlan& layer = plan_.layers[layer_];
        std::vector<uint32_t> nodeOfSlot;
        std::vector<std::set<uint16_t>> nodesOf(experts);
        for (uint32_t s = 0; s < holder_.size(); ++s) {
            layer.expertOfSlot[s] = expertOf_[holder_[s]];
            nodeOfSlot.push_back(gpuOf_[s] / plan_.topology.gpusPerNode());
            nodesOf[layer.expertOfSlot[s]].insert(static_cast<uint16_t>(nodeOfSlot[s]));
        }
        if (layer.dispatch.empty()) return;
        for (size_t i = 0; i < route.size(); ++i) {
            const std::set<uint16_t>& at = nodesOf[i % experts];
            const auto home = static_cast<uint16_t>(i / experts);
            if (!at.contains(route[i])) route[i] = at.contains(home) ? home : *at.begin();
        }
        layer.dispatch = dispatchFor(route, layer.expertOfSlot, nodeOfSlot, experts, nodes);
    }

    Plan& plan_;
    uint32_t layer_;
    std::vector<uint32_t> gpuOf_;
    std::vector<PlaceRule> rules_;    ///< of this layer
    std::vector<double> load_;        ///< [expert]
    std::vector<uint32_t> expertOf_;  ///< [instance]
    std::vector<uint32_t> pinOf_;     ///< [instance] rule, or kNone
    std::vector<uint32_t> slotOf_;    ///< [instance]
    std::vector<uint32_t> holder_;    ///< [slot] instance, or kNone
};

/// The exchanges of partReplicas() in one layer.
class ReplicaParting {
  public:
    ReplicaParting(const Plan& plan, LayerPlan& layer, std::span<const uint64_t> counts)
        : plan_(plan),
          layer_(layer),
          first_(plan.firstSlot),
          came_(layer.expertOfSlot.size()),
          load_(plan.shape.experts, 0) {
        std::iota(came_.begin(), came_.end(), 0);
        for (uint32_t expert : layer.expertOfSlot) load_[expert] += 1;
        for (size_t e = 0; e < load_.size(); ++e)
            load_[e] = load_[e] > 0 ? static_cast<double>(counts[e]) / load_[e] : 0;
    }

    void run() {
        bool changed = false;
        for (uint32_t gpu = 0; gpu + 1 < first_.size(); ++gpu)
            for (uint32_t slot = first_[gpu]; slot < first_[gpu + 1]; ++slot)
                if (holds(gpu, expertAt(slot), slot)) changed = part(gpu, slot) || changed;
        if (changed) followInDispatch();
    }

  private:
    uint32_t expertAt(uint32_t slot) const { return layer_.expertOfSlot[slot]; }

    /// In another slot than `except`.
    bool holds(uint32_t gpu, uint32_t expert, uint32_t except) const {
        for (uint32_t s = first_[gpu]; s < first_[gpu + 1]; ++s)
            if (s != except && expertAt(s) == expert) return true;
        return false;
    }

    double loadOf(uint32_t gpu) const {
        double sum = 0;
        for (uint32_t s = first_[gpu]; s < first_[gpu + 1]; ++s) sum += load_[expertAt(s)];
        return sum;
    }

    bool part(uint32_t gpu, uint32_t slot) {
        const uint32_t perNode = plan_.topology.gpusPerNode(), node = gpu / perNode;
        const uint32_t expert = expertAt(slot);
        uint32_t best = kNone;
        double least = INFINITY;
        for (uint32_t other = node * perNode; other < (node + 1) * perNode; ++other) {
            if (other == gpu || holds(other, expert, kNone)) continue;
            for (uint32_t s = first_[other]; s < first_[other + 1]; ++s) {
                if (holds(gpu, expertAt(s), slot)) continue;
                const double shift = load_[expert] - load_[expertAt(s)];
                const double fuller = std::max(loadOf(gpu) - shift, loadOf(other) + shift);
                if (fuller >= least) continue;
                least = fuller;
                best = s;
            }
        }
        if (best == kNone) return false;
        std::swap(layer_.expertOfSlot[slot], layer_.expertOfSlot[best]);
        std::swap(came_[slot], came_[best]);
        return true;
    }

    void followInDispatch() {
        std::vector<uint32_t> now(came_.size());
        for (uint32_t slot = 0; slot < came_.size(); ++slot) now[came_[slot]] = slot;
        for (Dispatch& dispatch : layer_.dispatch) {
            const size_t count = dispatch.slots.size();
            std::vector<std::pair<uint32_t, size_t>> order;
            for (size_t i = 0; i < count; ++i) order.emplace_back(now[dispatch.slots[i]], i);
            std::sort(order.begin(), order.end());
            const auto before = dispatch.weights;
            for (size_t i = 0; i < count; ++i) {
                dispatch.slots[i] = order[i].first;
                for (size_t at = 0; at < before.size(); at += count)
                    dispatch.weights[at + i] = before[at + order[i].second];
            }
        }
    }

    const Plan& plan_;
    LayerPlan& layer_;
    const std::vector<uint32_t>& first_;
    std::vector<uint32_t> came_;  ///< [slot] in which its replica was before
    std::vector<double> load_;    ///< [expert] of each of its replicas
};

}  // namespace

absl::StatusOr<PlaceRule> parsePlaceRule(std::string_view text, bool pins) {
    PlaceRule rule;
    rule.pins = pins;
    const size_t colon = text.find(':'), equals = text.find('=');
    if (colon != text.npos && equals != text.npos && colon < equals) {
        std::string_view place = text.substr(equals + 1);
        rule.node = place.starts_with("node");
        if (rule.node || place.starts_with("gpu")) {
            place.remove_prefix(rule.node ? 4 : 3);
            const auto number = [](std::string_view digits, uint32_t& value) {
                return digits.find_first_not_of("0123456789") == digits.npos &&
                       absl::SimpleAtoi({digits.data(), digits.size()}, &value);
            };
            if (number(text.substr(0, colon), rule.layer) &&
                number(text.substr(colon + 1, equals - colon - 1), rule.expert) &&
                number(place, rule.place))
                return rule;
        }
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "'", std::string(text), "': expected LAYER:EXPERT=gpuN or LAYER:EXPERT=nodeN, from 0"));
}

std::string placeRuleText(const PlaceRule& rule, std::span<const uint32_t> layerNumbers) {
    const bool numbered = rule.layer < layerNumbers.size();
    return absl::StrCat("layer ", numbered ? layerNumbers[rule.layer] : rule.layer, ", expert ",
                        rule.expert, rule.pins ? " pinned to " : " forbidden on ",
                        rule.node ? "node" : "gpu", rule.place);
}

absl::Status checkPlaceRules(std::span<const PlaceRule> rules, const ModelShape& shape,
                             const Topology& topology) {
    const auto refused = [&](const PlaceRule& rule, const auto&... why) {
        return absl::InvalidArgumentError(
            absl::StrCat(placeRuleText(rule, shape.layerNumbers), ": ", why...));
    };
    const uint32_t perNode = topology.gpusPerNode();
    for (const PlaceRule& rule : rules) {
        if (rule.layer >= shape.layers) return refused(rule, "there are ", shape.layers, " layers");
        if (rule.expert >= shape.experts)
            return refused(rule, "a layer has ", shape.experts, " experts");
        if (rule.place >= (rule.node ? topology.nodes() : topology.gpus()))
            return refused(rule, "there are ", topology.nodes(), " nodes and ", topology.gpus(),
                           " GPUs");
        const auto forbids = [&](uint32_t gpu) {
            return std::any_of(rules.begin(), rules.end(), [&](const PlaceRule& other) {
                return !other.pins && other.layer == rule.layer && other.expert == rule.expert &&
                       covers(other, gpu, topology);
            });
        };
        const uint32_t first = !rule.pins ? 0 : rule.node ? rule.place * perNode : rule.place;
        const uint32_t last = !rule.pins  ? topology.gpus()
                              : rule.node ? first + perNode
                                          : first + 1;
        bool somewhere = false;
        for (uint32_t gpu = first; gpu < last; ++gpu) somewhere |= !forbids(gpu);
        if (!somewhere)
            return refused(rule, rule.pins ? "the expert is forbidden there"
                                           : "the expert is forbidden everywhere");
    }
    return absl::OkStatus();
}

absl::Status honourPlaceRules(Plan& plan, std::span<const PlaceRule> rules, const Counts& counts) {
    if (auto status = checkPlaceRules(rules, plan.shape, plan.topology); !status.ok())
        return status;
    if (rules.empty()) return absl::OkStatus();
    Plan made = plan;
    std::set<uint32_t> layers;
    for (const PlaceRule& rule : rules) layers.insert(rule.layer);
    for (uint32_t layer : layers)
        if (auto status = LayerFit(made, layer, rules, counts).fit(); !status.ok()) return status;
    plan = std::move(made);
    return absl::OkStatus();
}

void partReplicas(Plan& plan, const Counts& counts) {
    for (uint32_t layer = 0; layer < plan.shape.layers; ++layer)
        ReplicaParting(plan, plan.layers[layer], counts.row(layer)).run();
}

}  // namespace bulkhead::planner
