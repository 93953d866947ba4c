// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/plan/plan.h"

#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace bulkhead::planner {

namespace {

constexpr double kSumTolerance = 1e-4;
constexpr double kMostFigure = 1e12;

absl::Status checkDispatch(const Dispatch& dispatch, const std::vector<uint32_t>& holding,
                           uint32_t nodes, const std::string& where) {
    if (dispatch.slots != holding)
        return absl::InvalidArgumentError(absl::StrCat(
            where, ": the slots of its dispatch are not those that hold it, in ascending order"));
    if (dispatch.weights.size() != size_t{nodes} * holding.size())
        return absl::InvalidArgumentError(absl::StrCat(where, ": ", dispatch.weights.size(),
                                                       " dispatch weights, expected ", nodes,
                                                       " nodes x ", holding.size(), " slots"));
    for (uint32_t n = 0; n < nodes; ++n) {
        double sum = 0;
        for (size_t i = 0; i < holding.size(); ++i) {
            const double weight = dispatch.weights[n * holding.size() + i];
            if (!(weight >= 0 && weight <= 1 + 1e-6))
                return absl::InvalidArgumentError(
                    absl::StrCat(where, ": a dispatch weight of node ", n, " is not in 0..1"));
            sum += weight;
        }
        if (std::abs(sum - 1) > kSumTolerance)
            return absl::InvalidArgumentError(absl::StrCat(where, ": the dispatch weights of node ",
                                                           n, " sum to ", sum, ", expected 1"));
    }
    return absl::OkStatus();
}

absl::Status checkLayer(const Plan& plan, uint32_t index) {
    const LayerPlan& layer = plan.layers[index];
    const std::string where = absl::StrCat("layer ", index);
    if (layer.expertOfSlot.size() != plan.slots())
        return absl::InvalidArgumentError(absl::StrCat(where, ": ", layer.expertOfSlot.size(),
                                                       " slots, but the GPUs have ", plan.slots()));
    std::vector<std::vector<uint32_t>> holding(plan.shape.experts);
    for (uint32_t s = 0; s < plan.slots(); ++s) {
        if (layer.expertOfSlot[s] >= plan.shape.experts)
            return absl::InvalidArgumentError(
                absl::StrCat(where, ", slot ", s, ": expert ", layer.expertOfSlot[s],
                             " does not exist; the layer has ", plan.shape.experts));
        holding[layer.expertOfSlot[s]].push_back(s);
    }
    for (uint32_t e = 0; e < plan.shape.experts; ++e)
        if (holding[e].empty())
            return absl::InvalidArgumentError(
                absl::StrCat(where, ": expert ", e, " is in no slot; its tokens would be lost"));
    for (size_t i = 0; i < layer.dispatch.size(); ++i) {
        const Dispatch& dispatch = layer.dispatch[i];
        if (i > 0 && dispatch.expert <= layer.dispatch[i - 1].expert)
            return absl::InvalidArgumentError(
                absl::StrCat(where, ": dispatch entries are not ascending by expert"));
        const std::string expert = absl::StrCat(where, ", expert ", dispatch.expert);
        if (dispatch.expert >= plan.shape.experts)
            return absl::InvalidArgumentError(
                absl::StrCat(expert, ": has dispatch weights and does not exist"));
        if (auto status =
                checkDispatch(dispatch, holding[dispatch.expert], plan.topology.nodes(), expert);
            !status.ok())
            return status;
    }
    return absl::OkStatus();
}

absl::Status checkHomes(const Plan& plan) {
    std::set<std::string> domains;
    for (const DomainHome& home : plan.homes) {
        const auto refuse = [&](const auto&... words) {
            return absl::InvalidArgumentError(
                absl::StrCat("homes of domain \"", home.domain, "\": ", words...));
        };
        if (!domains.insert(home.domain).second) return refuse("they are given twice");
        if (home.share.size() != plan.topology.nodes())
            return refuse(home.share.size(), " shares for ", plan.topology.nodes(), " nodes");
        double sum = 0;
        for (double share : home.share) {
            if (!(share >= 0 && share <= 1 + kSumTolerance))
                return refuse("a share of ", share, ", expected 0 to 1");
            sum += share;
        }
        if (std::abs(sum - 1) > kSumTolerance) return refuse("they sum to ", sum, ", expected 1");
    }
    return absl::OkStatus();
}

absl::Status checkOrigin(const PlanOrigin& origin) {
    const auto refuse = [](const char* field, double found, const char* expected) {
        return absl::InvalidArgumentError(
            absl::StrCat("origin.", field, ": ", found, ", expected ", expected));
    };
    if (!(origin.prefix >= 0 && origin.prefix < 1))
        return refuse("prefix", origin.prefix, "0 or more and less than 1");
    for (const auto& [field, value] : {std::pair{"load_cap", origin.loadCap},
                                       {"home_cap", origin.homeCap},
                                       {"bytes_per_copy", origin.bytesPerCopy}})
        if (!(value >= 0 && value <= kMostFigure))
            return refuse(field, value, "0 (not known) to 1e12");
    return absl::OkStatus();
}

absl::Status checkForecast(const Forecast& forecast) {
    if (forecast.blocks == 0) return absl::OkStatus();
    const auto& e = forecast.expected;
    for (const auto& [figure, range] : {std::pair{"sends", &e.sends},
                                        {"copies", &e.copies},
                                        {"node_load", &e.nodeLoad},
                                        {"gpu_load", &e.gpuLoad}})
        if (!(range->low <= range->high && std::abs(range->low) <= kMostFigure &&
              std::abs(range->mean) <= kMostFigure && std::abs(range->high) <= kMostFigure))
            return absl::InvalidArgumentError(
                absl::StrCat("forecast.expected.", figure, ": p5 ", range->low, ", mean ",
                             range->mean, ", p95 ", range->high, ", expected p5 no more than p95"));
    return absl::OkStatus();
}

}  // namespace

std::string forecastText(const Forecast& forecast) {
    if (forecast.blocks == 0) return "";
    const auto text = [](const char* name, const Range& range) {
        return absl::StrFormat("%s %.3f (%.3f to %.3f)", name, range.mean, range.low, range.high);
    };
    const auto& e = forecast.expected;
    return absl::StrCat(text("sends", e.sends), ", ", text("copies", e.copies), " a token, ",
                        text("node load", e.nodeLoad), ", ", text("GPU load", e.gpuLoad));
}

std::vector<std::string> forecastNotes(const Forecast& forecast, uint64_t tokens) {
    std::vector<std::string> notes;
    if (forecast.blocks == 0) return notes;
    if (forecast.tokensPerExpert < kFewPerExpert)
        notes.push_back(absl::StrFormat(
            "the recording is small for this model: %.0f tokens for each expert of a layer, at "
            "least %.0f are wanted; ranges half as wide take three times as many requests more, %d "
            "tokens where they are as long as these",
            forecast.tokensPerExpert, kFewPerExpert, 3 * tokens));
    if (forecast.byKind)
        notes.push_back(absl::StrFormat(
            "the ranges are for kinds of requests that were not recorded, from %d domains, each "
            "left out in turn",
            forecast.folds));
    if (forecast.byTime)
        notes.push_back(
            "too few requests are marked to leave some out: the ranges are those of stretches of "
            "time, and other requests, of the same kinds too, may lie far outside; record 8 or "
            "more, longer ones do not help");
    return notes;
}

absl::StatusOr<std::vector<uint32_t>> shareSlots(const Topology& topology, uint32_t experts,
                                                 uint32_t redundant) {
    const uint32_t nodes = topology.nodes();
    const uint64_t slots = uint64_t{experts} + redundant;
    const uint64_t most = std::min(uint64_t{topology.gpus()} * experts, kMostSlots);
    if (slots > most)
        return absl::InvalidArgumentError(absl::StrCat(
            redundant, " redundant experts; at most ", most > experts ? most - experts : 0,
            most < kMostSlots ? ", which is every expert on every GPU" : ""));
    if (slots % nodes != 0) {
        const uint64_t more = redundant + nodes - slots % nodes;
        const uint64_t less = redundant >= slots % nodes ? redundant - slots % nodes : more + nodes;
        return absl::InvalidArgumentError(absl::StrCat(
            experts, " experts and ", redundant, " redundant ones do not divide over ", nodes,
            " nodes; choose ", std::min(less, more), " or ", std::max(less, more), " redundant"));
    }
    const auto perNode = static_cast<uint32_t>(slots / nodes);
    const uint32_t gpus = topology.gpusPerNode();
    std::vector<uint32_t> first{0};
    for (uint32_t g = 0; g < topology.gpus(); ++g)
        first.push_back(first.back() + perNode / gpus + (g % gpus < perNode % gpus ? 1 : 0));
    return first;
}

std::vector<uint32_t> gpuOfSlots(std::span<const uint32_t> firstSlot) {
    std::vector<uint32_t> gpus;
    for (uint32_t g = 0; g + 1 < firstSlot.size(); ++g) gpus.resize(firstSlot[g + 1], g);
    return gpus;
}

absl::Status checkPlan(const Plan& plan) {
    if (auto status = checkTopology(plan.topology); !status.ok()) return status;
    if (auto status = checkShape(plan.shape); !status.ok())
        return absl::InvalidArgumentError(absl::StrCat("shape.", status.message()));
    if (plan.firstSlot.size() != plan.topology.gpus() + 1 || plan.firstSlot[0] != 0)
        return absl::InvalidArgumentError(absl::StrCat("first_slot has ", plan.firstSlot.size(),
                                                       " entries, expected one for each of ",
                                                       plan.topology.gpus(), " GPUs and one more"));
    for (size_t g = 0; g + 1 < plan.firstSlot.size(); ++g)
        if (plan.firstSlot[g + 1] < plan.firstSlot[g])
            return absl::InvalidArgumentError(absl::StrCat("first_slot falls at GPU ", g));
    if (plan.layers.size() != plan.shape.layers)
        return absl::InvalidArgumentError(absl::StrCat("the plan has ", plan.layers.size(),
                                                       " layers, the model ", plan.shape.layers));
    for (uint32_t l = 0; l < plan.shape.layers; ++l)
        if (auto status = checkLayer(plan, l); !status.ok()) return status;
    if (auto status = checkHomes(plan); !status.ok()) return status;
    if (auto status = checkForecast(plan.forecast); !status.ok()) return status;
    return checkOrigin(plan.origin);
}

absl::Status checkFit(const Plan& plan, const ModelShape& recorded) {
    const ModelShape& shape = plan.shape;
    if (shape.layers != recorded.layers || shape.experts != recorded.experts)
        return absl::InvalidArgumentError(absl::StrCat(
            "the plan is for ", shape.layers, " layers of ", shape.experts,
            " experts, the recording has ", recorded.layers, " of ", recorded.experts));
    if (recorded.topK != 0 && shape.topK != recorded.topK)
        return absl::InvalidArgumentError(absl::StrCat("top_k: the plan is for ", shape.topK,
                                                       " experts a token, the recording has ",
                                                       recorded.topK));
    for (size_t i = 0; i < shape.layerNumbers.size() && i < recorded.layerNumbers.size(); ++i)
        if (shape.layerNumbers[i] != recorded.layerNumbers[i])
            return absl::InvalidArgumentError(absl::StrCat(
                "layer_numbers: MoE layer ", i, " is the model's layer ", shape.layerNumbers[i],
                " in the plan and ", recorded.layerNumbers[i], " in the recording"));
    return absl::OkStatus();
}

Plan dispatchedBy(Plan plan, Router router) {
    if (router == Router::kTokenAware || router == Router::kStatic) return plan;
    const uint32_t nodes = plan.topology.nodes(), perNode = plan.topology.gpusPerNode();
    const std::vector<uint32_t> gpuOf = gpuOfSlots(plan.firstSlot);
    for (LayerPlan& layer : plan.layers) {
        layer.dispatch.clear();
        if (router == Router::kUniform) continue;
        std::vector<std::vector<uint32_t>> slots(plan.shape.experts);
        for (uint32_t s = 0; s < layer.expertOfSlot.size(); ++s)
            slots[layer.expertOfSlot[s]].push_back(s);
        for (uint32_t e = 0; e < slots.size(); ++e) {
            if (slots[e].size() < 2) continue;
            Dispatch dispatch{e, slots[e], {}};
            for (uint32_t home = 0; home < nodes; ++home) {
                const auto isHome = [&](uint32_t s) { return gpuOf[s] / perNode == home; };
                const auto there = std::count_if(slots[e].begin(), slots[e].end(), isHome);
                const auto share = 1.0 / static_cast<double>(there > 0 ? static_cast<size_t>(there)
                                                                       : slots[e].size());
                for (uint32_t s : slots[e])
                    dispatch.weights.push_back(there == 0 || isHome(s) ? share : 0.0);
            }
            layer.dispatch.push_back(std::move(dispatch));
        }
    }
    return plan;
}

}  // namespace bulkhead::planner
