// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "backend/cli/plan_files.h"
#include "backend/cli/text.h"
#include "backend/model/json.h"
#include "backend/planner/evaluate/latency.h"
#include "backend/planner/evaluate/migration.h"
#include "backend/planner/solve/held_out.h"
#include "backend/planner/solve/simulate.h"

namespace bulkhead::cli {

using namespace planner;  // NOLINT: this file is nothing but a verb of the planner

namespace {

struct Judged {
    HeldOut held;
    StepTime step;
    ServingOutcome serving;
};

absl::StatusOr<Judged> judge(const Plan& plan, const Routing& routing, const PlanOptions& options) {
    HeldOutOptions wanted{options.prefix, options.homeCap, 1, 0.02, !options.staticDispatch};
    if (plan.origin.objective == "copies") {
        wanted.sends = 0;
        wanted.copies = 1;
    }
    const RoutingView whole = wholeOf(routing);
    auto held = heldOut(whole, plan, wanted);
    if (!held.ok()) return held.status();
    Judged judged{*std::move(held), {}, {}};
    StepModel step;
    step.bytesPerCopy = judged.held.outcome.bytesPerCopy;
    judged.step = predictStep(judged.held.layers, plan, step);
    if (!options.simulate) return judged;
    ServingOptions serving;
    serving.prefix = options.prefix;
    serving.homeCap = options.homeCap;
    serving.requestsPerSecond = options.rate;
    serving.step = step;
    serving.sends = wanted.sends;
    serving.copies = wanted.copies;
    serving.seed = options.seed;
    auto served = simulateServing(whole, plan, serving);
    if (!served.ok()) return served.status();
    judged.serving = *served;
    return judged;
}

model::Json jsonOf(const Judged& judged, bool simulated) {
    model::Json json = model::toJson(judged.held.outcome);
    json["step"] = model::toJson(judged.step);
    if (simulated) json["serving"] = model::toJson(judged.serving);
    return json;
}

void addRow(std::vector<std::vector<std::string>>& rows, const char* name, const char* format,
            const std::vector<double>& values) {
    std::vector<std::string> row{name};
    for (double value : values) {
        char text[40];
        std::snprintf(text, sizeof text, format, value);
        row.push_back(text);
    }
    rows.push_back(std::move(row));
}

void printJudged(const std::vector<std::pair<std::string, Judged>>& plans, bool simulated) {
    std::vector<std::vector<std::string>> rows{{""}};
    for (const auto& [name, _] : plans) rows[0].push_back(name);
    const auto row = [&](const char* name, const char* format, auto&& value) {
        std::vector<double> values;
        for (const auto& [_, judged] : plans) values.push_back(value(judged));
        addRow(rows, name, format, values);
    };
    const auto outcome = [&](const char* name, double Outcome::*field) {
        row(name, "%.3f", [&](const Judged& j) { return j.held.outcome.*field; });
    };
    outcome("copies per token", &Outcome::copiesPerToken);
    outcome("sends per token", &Outcome::sendsPerToken);
    outcome("node load max/mean", &Outcome::nodeLoadMaxOverMean);
    outcome("GPU load max/mean", &Outcome::gpuLoadMaxOverMean);
    outcome("balancedness", &Outcome::balancedness);
    outcome("home load max/mean", &Outcome::homeLoadMaxOverMean);
    for (size_t i = 0; i < plans[0].second.held.outcome.bytesByLevel.size(); ++i) {
        const std::string level = plans[0].second.held.outcome.bytesByLevel[i].level;
        row(("KB per token, " + level).c_str(), "%.1f", [&](const Judged& j) {
            const auto& levels = j.held.outcome.bytesByLevel;
            return i < levels.size() ? levels[i].copies / 1e3 : 0;
        });
        row(("KB per token, " + level + ", deduplicated").c_str(), "%.1f", [&](const Judged& j) {
            const auto& levels = j.held.outcome.bytesByLevel;
            return i < levels.size() ? levels[i].sends / 1e3 : 0;
        });
    }
    row("step ms", "%.3f", [](const Judged& j) { return j.step.stepSeconds * 1e3; });
    row("step ms, padded", "%.3f", [](const Judged& j) { return j.step.stepPaddedSeconds * 1e3; });
    if (simulated) {
        row("served: KB per output token", "%.1f",
            [](const Judged& j) { return j.serving.bytesPerOutputToken / 1e3; });
        row("served: ms per output token", "%.3f",
            [](const Judged& j) { return j.serving.secondsPerOutputToken * 1e3; });
        row("served: queue ms", "%.1f",
            [](const Judged& j) { return j.serving.queueSeconds * 1e3; });
    }
    std::printf("%s", table(rows).c_str());
}

int evaluatePlans(const Cli& cli, const PlanOptions& options) {
    auto recording = readTokens(options);
    if (!recording.ok()) return fail(cli, recording.failure());
    const Routing* routing = &*recording.value().routing;
    std::vector<std::pair<std::string, Judged>> plans;
    for (const std::string& path : {options.plan, options.against}) {
        if (path.empty()) continue;
        auto plan = readPlan(path);
        if (!plan.ok())
            return refusePlan(cli, "Cannot read the plan", plan.status(),
                              "Make one with: bulkheadctl plan solve");
        auto judged = judge(*plan, *routing, options);
        if (!judged.ok())
            return refusePlan(cli, "Cannot evaluate the plan", judged.status(),
                              "Use a recording of the model that the plan is for.");
        plans.emplace_back(path, *std::move(judged));
    }
    if (cli.json) {
        model::Json json = jsonOf(plans[0].second, options.simulate);
        if (plans.size() > 1) json["against"] = jsonOf(plans[1].second, options.simulate);
        std::printf("%s\n", model::dumpJson(json).c_str());
        return kOk;
    }
    printJudged(plans, options.simulate);
    return kOk;
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
    model::Json layers = model::Json::array();
    const std::vector<uint32_t> before = gpuOfSlots(from->firstSlot),
                                after = gpuOfSlots(to->firstSlot);
    for (uint32_t layer = 0; layer < to->shape.layers; ++layer) {
        std::vector<std::vector<uint32_t>> was(to->shape.experts), is(to->shape.experts);
        for (uint32_t s = 0; s < from->slots(); ++s)
            was[from->layers[layer].expertOfSlot[s]].push_back(before[s]);
        for (uint32_t s = 0; s < to->slots(); ++s)
            is[to->layers[layer].expertOfSlot[s]].push_back(after[s]);
        model::Json moved = model::Json::array();
        for (uint32_t e = 0; e < to->shape.experts; ++e)
            if (was[e] != is[e]) moved.push_back({{"expert", e}, {"from", was[e]}, {"to", is[e]}});
        if (!moved.empty()) layers.push_back({{"layer", layer}, {"experts", std::move(moved)}});
    }
    if (cli.json) {
        model::Json json = model::toJson(*migration);
        json["layers"] = std::move(layers);
        std::printf("%s\n", model::dumpJson(json).c_str());
        return kOk;
    }
    std::printf(
        "%llu experts move in %zu layers; %llu slots fetch %.1f MB%s, %.1f MB from another "
        "node; %.3f s on the slowest GPU\n",
        static_cast<unsigned long long>(migration->experts), layers.size(),
        static_cast<unsigned long long>(migration->slots), migration->bytes / 1e6,
        migration->bytesAssumed ? " (expert size assumed)" : "", migration->bytesAcross / 1e6,
        migration->seconds);
    return kOk;
}

}  // namespace

void addPlanEvaluate(CLI::App& plan, Cli& cli) {
    auto o = std::make_shared<PlanOptions>();
    CLI::App* verb = plan.add_subcommand("evaluate", "What a plan does with recorded requests");
    verb->add_option("--plan", o->plan, "plan file")->required();
    verb->add_option("--against", o->against, "another plan, for comparison");
    addRoutingOptions(*verb, o->recording);
    verb->add_option("--home-cap", o->homeCap, "tokens at home on a node, max/mean")
        ->check(CLI::Range(1.0, 100.0))
        ->capture_default_str();
    verb->add_option("--prefix", o->prefix, "homes are chosen from this part, the rest is scored")
        ->check(CLI::Range(0.01, 0.99))
        ->capture_default_str();
    verb->add_flag("--static-dispatch", o->staticDispatch,
                   "replicas by the plan's own weights, not token by token");
    verb->add_flag("--simulate", o->simulate,
                   "also serve the requests: queues, steps, time a token");
    verb->add_option("--rate", o->rate, "requests a second when serving")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    verb->add_option("--seed", o->seed, "of the arrivals")->capture_default_str();
    verb->callback([&cli, o] { cli.chosen = [&cli, o] { return evaluatePlans(cli, *o); }; });
}

void addPlanDiff(CLI::App& plan, Cli& cli) {
    auto o = std::make_shared<PlanOptions>();
    CLI::App* verb =
        plan.add_subcommand("diff", "Which experts move between two plans, and the price");
    verb->add_option("--plan", o->plan, "the plan in use")->required();
    verb->add_option("--with", o->against, "the plan to go to")->required();
    verb->callback([&cli, o] { cli.chosen = [&cli, o] { return diff(cli, *o); }; });
}

}  // namespace bulkhead::cli
