// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/export/engine_files.h"

#include <algorithm>
#include <set>

#include "backend/model/json.h"
#include "backend/model/names.h"
#include "backend/planner/plan/plan_json.h"

namespace bulkhead::planner {
namespace {

using model::concat;
using model::Json;

/// Limit on the slots of all layers in one file: a hundred layers of 655,360 slots.
constexpr uint64_t kMostCells = uint64_t{1} << 26;

/// A sound plan whose GPUs hold equally many slots; gives that number.
absl::StatusOr<uint32_t> slotsPerGpu(const Plan& plan, std::string_view engine) {
    if (absl::Status ok = checkPlan(plan); !ok.ok()) return ok;
    const uint32_t gpus = plan.topology.gpus(), first = plan.firstSlot[1];
    for (uint32_t gpu = 0; gpu < gpus; ++gpu)
        if (const uint32_t held = plan.firstSlot[gpu + 1] - plan.firstSlot[gpu]; held != first)
            return absl::FailedPreconditionError(
                concat("GPU ", gpu, " holds ", held, " slots, GPU 0 holds ", first, "; ", engine,
                       " needs equally many: choose redundant experts so that ", gpus,
                       " GPUs divide the slots"));
    return first;
}

void noteLeftBehind(const Plan& plan, Engine engine, EngineFile& out) {
    if (const Router theirs = routerOf(engine);
        plan.redundant() > 0 && theirs != plan.origin.router)
        out.notes.push_back(concat("The plan is made for a ", enumName(plan.origin.router),
                                   " router; ", enumName(engine), " chooses replicas ",
                                   enumName(theirs), ": plan again with --router ",
                                   enumName(theirs), "."));
    if (plan.forecast.blocks > 0)
        out.notes.push_back(concat("Expected of requests not seen, 5 to 95 % in parentheses: ",
                                   forecastText(plan.forecast), "."));
    const bool weights =
        std::any_of(plan.layers.begin(), plan.layers.end(),
                    [](const LayerPlan& layer) { return !layer.dispatch.empty(); });
    if (weights)
        out.notes.push_back(
            "The plan's dispatch weights are not in the file: the engine shares tokens out over "
            "replicas in its own way.");
    if (!plan.homes.empty())
        out.notes.push_back(
            "The homes of domains are not in the file: a router in front of the engine must send "
            "requests there.");
}

void noteNumbers(const Plan& plan, EngineFile& out) {
    if (plan.shape.layerNumbers.empty())
        out.notes.push_back(
            "The plan does not know the model's own layer numbers; layers are numbered from 0. "
            "Name "
            "the model when planning if it has dense layers.");
}

}  // namespace

Router routerOf(Engine engine) {
    switch (engine) {
        case Engine::kSglang:
        case Engine::kAscend:
            return Router::kHomeFirst;
        case Engine::kTrtllm:
        case Engine::kVllm:
            return Router::kUniform;
        case Engine::kBulkhead:
            break;
    }
    return Router::kTokenAware;
}

absl::StatusOr<EngineFile> engineFile(const Plan& plan, Engine engine, uint32_t decoderLayers) {
    switch (engine) {
        case Engine::kSglang:
            return sglangLocation(plan, decoderLayers);
        case Engine::kTrtllm:
            return trtllmBalancer(plan);
        case Engine::kAscend:
            return ascendMap(plan);
        case Engine::kVllm:
            return vllmSettings(plan);
        case Engine::kBulkhead:
            break;
    }
    return EngineFile{formatPlan(plan) + "\n", {}};
}

absl::StatusOr<EngineFile> sglangLocation(const Plan& plan, uint32_t decoderLayers) {
    if (auto held = slotsPerGpu(plan, "SGLang"); !held.ok()) return held.status();
    const auto layers = static_cast<uint32_t>(plan.layers.size());
    const uint32_t least = numberOfLayer(plan.shape, layers - 1) + 1;
    if (decoderLayers != 0 && decoderLayers < least)
        return absl::InvalidArgumentError(concat(decoderLayers, " decoder layers, but layer ",
                                                 least - 1, " routes; give the model's number"));
    const uint64_t cells = std::max(decoderLayers, least) * uint64_t{plan.slots()};
    if (decoderLayers > kMostLayers || cells > kMostCells)
        return absl::InvalidArgumentError(concat(
            std::max(decoderLayers, least), " decoder layers of ", plan.slots(), " slots; at most ",
            kMostLayers, " layers and ", kMostCells, " slots in all are written"));
    std::vector<uint32_t> dense(plan.slots());
    for (uint32_t slot = 0; slot < dense.size(); ++slot) dense[slot] = slot % plan.shape.experts;
    std::vector<std::vector<uint32_t>> rows(std::max(decoderLayers, least), dense);
    for (uint32_t layer = 0; layer < layers; ++layer)
        rows[numberOfLayer(plan.shape, layer)] = plan.layers[layer].expertOfSlot;
    EngineFile out;
    out.text = model::dumpJson({{"physical_to_logical_map", rows}}) + "\n";
    out.notes.push_back(concat("Start SGLang with --ep-size ", plan.topology.gpus(),
                               " --ep-num-redundant-experts ", plan.redundant(), "."));
    noteNumbers(plan, out);
    noteLeftBehind(plan, Engine::kSglang, out);
    return out;
}

absl::StatusOr<EngineFile> trtllmBalancer(const Plan& plan) {
    if (auto held = slotsPerGpu(plan, "TensorRT-LLM"); !held.ok()) return held.status();
    EngineFile out;
    out.text = concat("num_slots: ", plan.slots(),
                      "\nlayer_updates_per_iter: 0\ninitial_global_assignments:\n");
    for (uint32_t layer = 0; layer < plan.layers.size(); ++layer) {
        out.text += concat("  ", numberOfLayer(plan.shape, layer), ": [");
        const std::vector<uint32_t>& row = plan.layers[layer].expertOfSlot;
        for (size_t slot = 0; slot < row.size(); ++slot)
            out.text += concat(slot > 0 ? ", " : "", row[slot]);
        out.text += "]\n";
    }
    out.notes.push_back(concat("For moe_expert_parallel_size ", plan.topology.gpus(), "."));
    noteNumbers(plan, out);
    noteLeftBehind(plan, Engine::kTrtllm, out);
    return out;
}

absl::StatusOr<EngineFile> ascendMap(const Plan& plan) {
    const auto held = slotsPerGpu(plan, "vLLM-Ascend");
    if (!held.ok()) return held.status();
    const uint32_t gpus = plan.topology.gpus();
    Json layers = Json::array();
    for (uint32_t layer = 0; layer < plan.layers.size(); ++layer) {
        Json devices = Json::array();
        for (uint32_t gpu = 0; gpu < gpus; ++gpu) {
            const auto first = plan.layers[layer].expertOfSlot.begin() + plan.firstSlot[gpu];
            const std::vector<uint32_t> experts(first, first + *held);
            if (std::set<uint32_t>(experts.begin(), experts.end()).size() != experts.size())
                return absl::FailedPreconditionError(
                    concat("layer ", layer, ": GPU ", gpu,
                           " holds an expert twice, which vLLM-Ascend cannot say; plan with fewer "
                           "redundant experts"));
            devices.push_back({{"device_id", gpu}, {"device_expert", experts}});
        }
        layers.push_back(
            {{"layer_id", layer}, {"device_count", gpus}, {"device_list", std::move(devices)}});
    }
    EngineFile out;
    out.text = model::dumpJson(
                   {{"moe_layer_count", plan.layers.size()}, {"layer_list", std::move(layers)}}) +
               "\n";
    noteLeftBehind(plan, Engine::kAscend, out);
    return out;
}

absl::StatusOr<EngineFile> vllmSettings(const Plan& plan) {
    if (auto held = slotsPerGpu(plan, "vLLM"); !held.ok()) return held.status();
    EngineFile out;
    out.text = model::dumpJson({{"num_redundant_experts", plan.redundant()}}) + "\n";
    out.notes.push_back(
        "vLLM 0.32 cannot be given this placement: it takes no map of experts, but places them by "
        "--expert-placement-strategy at start and, with --enable-eplb, by the load that it "
        "measures "
        "itself.");
    out.notes.push_back(
        concat("The file is the nearest that it can be told, --eplb-config beside "
               "--enable-expert-parallel "
               "and --enable-eplb: ",
               plan.redundant(),
               " redundant experts, and even load without the sends that the plan saves."));
    noteLeftBehind(plan, Engine::kVllm, out);
    return out;
}

}  // namespace bulkhead::planner
