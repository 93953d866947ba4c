// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "backend/cli/plan_files.h"
#include "backend/cli/text.h"
#include "backend/model/json.h"
#include "backend/planner/evaluate/migration.h"

namespace bulkhead::cli {

using namespace planner;  // NOLINT: this file is nothing but a verb of the planner

namespace {

constexpr size_t kShownMoves = 40;

/// An expert that other GPUs hold after than before.
struct Move {
    uint32_t layer = 0;  ///< the model's number
    uint32_t expert = 0;
    std::vector<uint32_t> from, to;  ///< GPUs
};

/// GPUs of each expert of a layer, ascending.
std::vector<std::vector<uint32_t>> holders(const Plan& plan, uint32_t layer) {
    const std::vector<uint32_t> gpuOf = gpuOfSlots(plan.firstSlot);
    std::vector<std::vector<uint32_t>> made(plan.shape.experts);
    for (uint32_t s = 0; s < plan.slots(); ++s)
        made[plan.layers[layer].expertOfSlot[s]].push_back(gpuOf[s]);
    return made;
}

std::vector<Move> movesBetween(const Plan& from, const Plan& to) {
    const ModelShape& shape = to.shape.layerNumbers.empty() ? from.shape : to.shape;
    std::vector<Move> moves;
    for (uint32_t layer = 0; layer < shape.layers; ++layer) {
        const auto was = holders(from, layer), is = holders(to, layer);
        for (uint32_t e = 0; e < shape.experts; ++e)
            if (was[e] != is[e]) moves.push_back({numberOfLayer(shape, layer), e, was[e], is[e]});
    }
    return moves;
}

size_t layersOf(const std::vector<Move>& moves) {
    size_t layers = 0;
    for (size_t i = 0; i < moves.size(); ++i)
        layers += i == 0 || moves[i].layer != moves[i - 1].layer;
    return layers;
}

model::Json movesJson(const std::vector<Move>& moves) {
    model::Json layers = model::Json::array();
    for (size_t i = 0; i < moves.size(); ++i) {
        if (i == 0 || moves[i].layer != moves[i - 1].layer)
            layers.push_back({{"layer", moves[i].layer}, {"experts", model::Json::array()}});
        layers.back()["experts"].push_back(
            {{"expert", moves[i].expert}, {"from", moves[i].from}, {"to", moves[i].to}});
    }
    return layers;
}

std::string movesText(const std::vector<Move>& moves) {
    if (moves.empty()) return "";
    std::vector<std::vector<std::string>> rows{{"LAYER", "EXPERT", "FROM GPU", "TO GPU"}};
    for (size_t i = 0; i < std::min(moves.size(), kShownMoves); ++i)
        rows.push_back({absl::StrCat(moves[i].layer), absl::StrCat(moves[i].expert),
                        absl::StrJoin(moves[i].from, ", "), absl::StrJoin(moves[i].to, ", ")});
    std::string text = table(rows);
    if (moves.size() > kShownMoves)
        absl::StrAppend(&text, "and ", moves.size() - kShownMoves,
                        " more; --json has all of them\n");
    return text;
}

/// With the unit that leaves digits to see.
std::string secondsText(double seconds) {
    if (seconds < 1e-3) return absl::StrFormat("%.1f us", seconds * 1e6);
    if (seconds < 1) return absl::StrFormat("%.1f ms", seconds * 1e3);
    return absl::StrFormat("%.1f s", seconds);
}

int diff(const Cli& cli, const PlanOptions& options) {
    auto from = readPlan(options.plan);
    if (!from.ok()) return refusePlan(cli, "Cannot read the plan", from.status(), "Check --plan.");
    auto to = readPlan(options.against);
    if (!to.ok())
        return refusePlan(cli, "Cannot read the other plan", to.status(), "Check --with.");
    auto migration = migrationBetween(*from, *to);
    if (!migration.ok())
        return refusePlan(cli, "Cannot compare the plans", migration.status(),
                          "Both must be for one model and topology.");
    const std::vector<Move> moves = movesBetween(*from, *to);
    if (cli.json) {
        model::Json json = model::toJson(*migration);
        json["layers"] = movesJson(moves);
        std::printf("%s\n", model::dumpJson(json).c_str());
        return kOk;
    }
    std::printf(
        "%s%zu experts move in %zu layers; %llu slots fetch %.1f MB%s, %.1f MB of it from another "
        "node; %s on the slowest GPU\n",
        movesText(moves).c_str(), moves.size(), layersOf(moves),
        static_cast<unsigned long long>(migration->slots), migration->bytes / 1e6,
        migration->bytesAssumed ? " (an expert's size is assumed)" : "",
        migration->bytesAcross / 1e6, secondsText(migration->seconds).c_str());
    return kOk;
}

}  // namespace

void addPlanDiff(CLI::App& plan, Cli& cli) {
    auto o = std::make_shared<PlanOptions>();
    CLI::App* verb =
        plan.add_subcommand("diff", "Which experts move between two plans, and the price");
    verb->add_option("--plan", o->plan, "the plan in use")->required();
    verb->add_option("--with", o->against, "the plan to go to")->required();
    verb->callback([&cli, o] { cli.chosen = [&cli, o] { return diff(cli, *o); }; });
}

}  // namespace bulkhead::cli
