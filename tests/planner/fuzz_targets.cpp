// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "backend/planner/catalogue/catalogue.h"
#include "backend/planner/evaluate/latency.h"
#include "backend/planner/evaluate/migration.h"
#include "backend/planner/export/engine_files.h"
#include "backend/planner/import/import.h"
#include "backend/planner/import/sglang_recorder.h"
#include "backend/planner/import/zip.h"
#include "backend/planner/plan/plan_json.h"
#include "backend/planner/solve/held_out.h"
#include "backend/planner/topology/topology_toml.h"
#include "tests/planner/samples.h"
#include "tests/planner/torch_writer.h"
#include "tests/support/fuzz/targets.h"

/// The readers of files: backend/planner/import, the engines' placements of backend/planner/export,
/// and what people write themselves: plans, topologies, catalogues of models.
namespace bulkhead::planner {
namespace {

bool importOne(std::string name, std::string_view bytes,
               std::map<std::string, std::string, std::less<>> beside = {}) {
    ImportOptions options;
    ModelShape model;
    model.topK = 2;
    options.model = model;
    const std::string first = beside.empty() ? name : beside.begin()->first;
    beside.emplace(name, std::string(bytes));
    return importFile(first, memoryFiles(std::move(beside)), options).ok();
}

bool npy(std::string_view bytes) {
    return importOne("a.npy", bytes, {{"0.json", samples::requestsMeta()}});
}

bool plainNpy(std::string_view bytes) {
    ImportOptions options;
    ModelShape model;
    model.layers = 2;
    model.experts = 4;
    model.topK = 2;
    options.model = model;
    return importFile("a.npy", memoryFiles({{"a.npy", std::string(bytes)}}), options).ok();
}

bool metaJson(std::string_view bytes) {
    const auto files =
        memoryFiles({{"meta.json", std::string(bytes)}, {"a.npy", samples::npyIds()}});
    return importFile("meta.json", files).ok();
}

bool zip(std::string_view bytes) {
    return openZip(bytes, "a.pt").ok();
}

/// The pickle of a dump whose zip is right: a wrong checksum would end every try early. The
/// storages are those of the three seeds in turn.
bool pickle(std::string_view bytes) {
    static const std::vector<std::map<std::string, std::string>> kStorages = {
        {{"0", bytesOf(std::vector<int32_t>(18, 1))}},
        {{"0", bytesOf<int32_t>({1, 2, 3})}, {"1", bytesOf<int64_t>({0, 1, 0})}},
        {{"0",
          bytesOf<int32_t>({-1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 1, -1, 3, 2, -1, 1, 2, -1})},
         {"1", bytesOf<int32_t>({-1, -1, -1, -1, -1, -1, 2, 3, -1, -1, -1, -1})},
         {"2", bytesOf<int64_t>({0, 1, 2, 0, 0, 1, 2, 0})}}};
    bool read = false;
    for (const auto& storages : kStorages) {
        std::vector<std::pair<std::string, std::string>> entries{
            {"d/data.pkl", std::string(bytes)}};
        for (const auto& [key, data] : storages) entries.emplace_back("d/data/" + key, data);
        const Files files = memoryFiles({{"d.pt", zipOf(entries)}});
        read = readSglang({"d.pt"}, files, {}).ok() || read;
    }
    return read;
}

/// The whole file: zip, pickle and storages.
bool torch(std::string_view bytes) {
    return readSglang({"d.pt"}, memoryFiles({{"d.pt", std::string(bytes)}}), {}).ok();
}

bool safetensors(std::string_view bytes) {
    return importFile("meta_info.json", memoryFiles({{"meta_info.json", samples::metaInfo()},
                                                     {"rank0.safetensors", std::string(bytes)}}))
        .ok();
}

bool metaInfo(std::string_view bytes) {
    return importFile("meta_info.json", memoryFiles({{"meta_info.json", std::string(bytes)},
                                                     {"rank0.safetensors", samples::ranksOf(0)}}))
        .ok();
}

bool topologyToml(std::string_view bytes) {
    return parseTopology(bytes, "topology.toml").ok();
}
bool catalogueToml(std::string_view bytes) {
    return parseCatalogue(bytes, "models.toml").ok();
}

bool json(std::string_view bytes) {
    return importOne("r.json", bytes);
}
bool jsonLines(std::string_view bytes) {
    return importOne("r.jsonl", bytes);
}
bool balanceLog(std::string_view bytes) {
    return importOne("server.log", bytes);
}

bool sglangLocation(std::string_view bytes) {
    return readSglangLocation(bytes, "f").ok();
}
bool trtllmBalancer(std::string_view bytes) {
    return readTrtllmBalancer(bytes, "f").ok();
}
bool ascendMap(std::string_view bytes) {
    return readAscendMap(bytes, "f").ok();
}

/// Two hosts of two GPUs, four experts and a replica of each on the other host; homes of two
/// domains.
std::string planSeed() {
    Plan plan;
    plan.shape.layers = 2;
    plan.shape.experts = 4;
    plan.shape.topK = 2;
    plan.topology = flatTopology(2, 2);
    plan.firstSlot = {0, 2, 4, 6, 8};
    plan.layers.resize(2);
    plan.layers[0].expertOfSlot = {0, 1, 2, 3, 0, 1, 2, 3};
    plan.layers[0].dispatch = {{1, {1, 5}, {1, 0, 0.25, 0.75}}};
    plan.layers[1].expertOfSlot = {3, 2, 1, 0, 0, 1, 2, 3};
    plan.homes = {{"code", {1, 0}}, {"prose", {0.25, 0.75}}};
    return formatPlan(plan);
}

/// Ends the process, which is a finding, unless it holds.
void mustHold(bool holds, std::string_view what) {
    if (holds) return;
    std::fprintf(stderr, "a plan that was read %s\n", std::string(what).c_str());
    std::abort();
}

/// Two requests of four tokens of the plan's own shape.
Routing fittingRouting(const ModelShape& shape) {
    auto builder = RoutingBuilder::create(shape);
    mustHold(builder.ok(), "has a shape that no recording can have");
    std::vector<uint16_t> ids(size_t{shape.topK} * shape.layers);
    for (uint32_t request = 0; request < 2; ++request) {
        builder->beginRequest("", request == 0 ? "code" : "prose");
        for (uint32_t token = 0; token < 4; ++token) {
            for (size_t i = 0; i < ids.size(); ++i)
                ids[i] = static_cast<uint16_t>((i % shape.topK + i / shape.topK + request + token) %
                                               shape.experts);
            mustHold(builder->addTokens(ids).ok(), "does not take its own experts");
        }
    }
    return builder->finish().value();
}

/// An engine's reader finds the plan's own placement in the file.
void exportAndReadBack(const Plan& plan) {
    for (const Engine engine :
         {Engine::kSglang, Engine::kTrtllm, Engine::kAscend, Engine::kBulkhead}) {
        const auto file = engineFile(plan, engine, 0);
        if (!file.ok()) continue;
        if (engine == Engine::kBulkhead) {
            const auto back = parsePlan(file->text, "f");
            mustHold(back.ok() && *back == plan, "is not the same when written");
            continue;
        }
        const auto back = engine == Engine::kSglang   ? readSglangLocation(file->text, "f")
                          : engine == Engine::kTrtllm ? readTrtllmBalancer(file->text, "f")
                                                      : readAscendMap(file->text, "f");
        mustHold(back.ok(), "leaves a file that no engine reads");
        for (uint32_t layer = 0; layer < plan.shape.layers; ++layer) {
            const size_t row = engine == Engine::kSglang ? numberOfLayer(plan.shape, layer) : layer;
            mustHold(back->expertOfSlot[row] == plan.layers[layer].expertOfSlot,
                     "places experts elsewhere in an engine's file");
        }
    }
}

/// Every plan that can be read must also be usable: scored, compared and exported.
bool planJson(std::string_view bytes) {
    const auto plan = parsePlan(bytes, "plan.json");
    if (!plan.ok()) return false;
    static const Plan kSeed = parsePlan(planSeed(), "seed").value();
    const Routing routing = fittingRouting(plan->shape);
    for (const Router router :
         {Router::kTokenAware, Router::kStatic, Router::kHomeFirst, Router::kUniform}) {
        const auto held =
            heldOut(wholeOf(routing), *plan, {.prefix = 0.3, .homeCap = 1.15, .router = router});
        mustHold(held.ok(), "cannot be scored on a recording of its shape");
        StepModel step;
        step.bytesPerCopy = held->outcome.bytesPerCopy;
        mustHold(predictStep(held->layers, *plan, step).stepSeconds >= 0, "has no time for a step");
    }
    for (const Plan* other : {&*plan, &kSeed})
        if (migrationBetween(*plan, *other).ok())
            mustHold(checkPlan(alignedTo(*plan, *other)).ok(), "breaks another when aligned");
    exportAndReadBack(*plan);
    return true;
}

std::string matrixTopology() {
    return "[[level]]\nname = \"host\"\ncount = 2\ngigabytes_per_second = 450\n"
           "microseconds = 2\n[matrix]\ngigabytes_per_second = [[0, 50], [40, 0]]\n"
           "microseconds = [[0, 6], [7, 0]]\n";
}

std::string catalogueSeed() {
    return "[[models]]\nname = \"tiny\"\nlayers = 4\nhidden = 64\nffn = 128\nvocab = 256\n"
           "attention = { heads = 4, kv_heads = 2, head_dim = 16 }\n"
           "moe = { experts = 8, top_k = 2, width = 32, every = 2 }\n";
}

/// The pickle inside a stored torch file.
std::string pickleOf(const std::string& file) {
    return std::string(openZip(file, "seed")->at("dump/data.pkl"));
}

}  // namespace
}  // namespace bulkhead::planner

namespace bulkhead::fuzz {

using namespace planner;

const std::vector<Target>& targets() {
    static const std::vector<Target> kTargets = {
        {"npy", npy, {samples::npyIds()}},
        {"plain_npy",
         plainNpy,
         {samples::npyIds(), npyFile("<i4", "(2, 4)", std::string(32, '\1'))}},
        {"meta_json",
         metaJson,
         {samples::requestsMeta(), samples::domainsMeta(), samples::countsMeta()}},
        {"zip", zip, {statDump(), zipOf({})}},
        {"pickle",
         pickle,
         {pickleOf(statDump()), pickleOf(passDump(0, {1, 2, 3})), pickleOf(tokenDump())}},
        {"torch", torch, {statDump(), passDump(0, {1, 2, 3}), tokenDump()}},
        {"safetensors", safetensors, {samples::ranksOf(0)}},
        {"meta_info", metaInfo, {samples::metaInfo()}},
        {"json",
         json,
         {samples::vllmResponse(), samples::sglangResponse(), samples::npyResponse()}},
        {"json_lines",
         jsonLines,
         {samples::requestLines(), samples::countLines(), samples::headedCountLines(),
          samples::routeLines(), samples::vllmResponse() + "\n" + samples::vllmResponse()}},
        {"sglang_location", sglangLocation, {samples::sglangPlacement()}},
        {"trtllm_balancer", trtllmBalancer, {samples::trtllmPlacement()}},
        {"ascend_map", ascendMap, {samples::ascendPlacement()}},
        {"plan_json", planJson, {planSeed()}},
        {"topology_toml", topologyToml, {formatTopology(flatTopology(4, 8)), matrixTopology()}},
        {"catalogue_toml", catalogueToml, {catalogueSeed()}},
        {"balance_log", balanceLog, {samples::vllmLog(), samples::sglangLog()}},
    };
    return kTargets;
}

}  // namespace bulkhead::fuzz
