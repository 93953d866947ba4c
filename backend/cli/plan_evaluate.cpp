// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "backend/cli/plan_files.h"
#include "backend/cli/text.h"
#include "backend/model/json.h"
#include "backend/planner/evaluate/counted_load.h"
#include "backend/planner/evaluate/latency.h"
#include "backend/planner/solve/held_out.h"
#include "backend/planner/solve/simulate.h"

namespace bulkhead::cli {

using namespace planner;  // NOLINT: this file is nothing but a verb of the planner

namespace {

constexpr const char* kCountsOnly =
    "the recording has counts only; copies, sends, bytes and times need each token's experts";

struct Judged {
    LoadFigures load;  ///< from tokens: of `held`
    HeldOut held;
    StepTime step;
    ServingOutcome serving;
    bool planDrawn = false;  ///< the plan was made from tokens drawn from counts
    bool own = false;        ///< the plan was made from these requests, as it says itself
    Forecast forecast;       ///< the plan's own
};

absl::StatusOr<Judged> judge(const Plan& plan, const Recording& recording,
                             const PlanOptions& options) {
    if (auto status = checkFit(plan, recording.shape); !status.ok()) return status;
    Judged judged;
    judged.planDrawn = plan.origin.tokensDrawn;
    judged.own = plan.origin.source == recording.source;
    judged.forecast = plan.forecast;
    if (!recording.routing) {
        auto load = loadFromCounts(recording, plan);
        if (!load.ok()) return load.status();
        judged.load = *load;
        return judged;
    }
    HeldOutOptions wanted = homesFor(plan.origin.objective, options.prefix, options.homeCap);
    if (!options.router.empty()) wanted.router = enumFromName<Router>(options.router);
    const RoutingView whole = wholeOf(*recording.routing);
    auto held = heldOut(whole, plan, wanted);
    if (!held.ok()) return held.status();
    judged.held = *std::move(held);
    judged.load = judged.held.outcome;
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

model::Json jsonOf(const Judged& judged, bool counted, bool simulated) {
    model::Json json = model::toJson(judged.held.outcome);
    json["step"] = model::toJson(judged.step);
    if (counted) {
        for (auto& value : json) value = nullptr;
        json.update(model::toJson(judged.load));
        json["not_known"] = kCountsOnly;
    }
    json["scored_on"] = counted ? "counts" : "tokens";
    json["plan_tokens_drawn"] = judged.planDrawn;
    json["own_requests"] = judged.own;
    if (judged.forecast.blocks > 0) json["forecast"] = model::toJson(judged.forecast);
    if (simulated) json["serving"] = model::toJson(judged.serving);
    return json;
}

using Judgements = std::vector<std::pair<std::string, Judged>>;

/// Rows of what is known, a dash where it is not.
class Rows {
  public:
    explicit Rows(const Judgements& plans) : plans_(plans), rows_{{""}} {
        for (const auto& [name, _] : plans) rows_[0].push_back(name);
    }
    template <class Value>
    void add(const std::string& name, const char* format, Value&& value) {
        std::vector<std::string>& row = rows_.emplace_back(1, name);
        for (const auto& [_, judged] : plans_) {
            char text[40];
            std::snprintf(text, sizeof text, format, value(judged));
            row.push_back(text);
        }
    }
    void unknown(const std::string& name) { rows_.emplace_back(plans_.size() + 1, "-")[0] = name; }
    std::string text() const { return table(rows_); }

  private:
    const Judgements& plans_;
    std::vector<std::vector<std::string>> rows_;
};

void addOutcome(Rows& rows, const char* name, double Outcome::*field) {
    rows.add(name, "%.3f", [field](const Judged& j) { return j.held.outcome.*field; });
}

void addLoad(Rows& rows) {
    rows.add("node load max/mean", "%.3f",
             [](const Judged& j) { return j.load.nodeLoadMaxOverMean; });
    rows.add("GPU load max/mean", "%.3f",
             [](const Judged& j) { return j.load.gpuLoadMaxOverMean; });
    rows.add("balancedness", "%.3f", [](const Judged& j) { return j.load.balancedness; });
}

std::string countedText(const Judgements& plans) {
    Rows rows(plans);
    rows.unknown("copies per token");
    rows.unknown("sends per token");
    addLoad(rows);
    rows.unknown("home load max/mean");
    rows.unknown("KB per token");
    rows.unknown("step ms");
    return rows.text() + "-: " + kCountsOnly + "\n";
}

void addBytes(Rows& rows, const LevelBytes& level, size_t i) {
    const auto add = [&](const std::string& name, double LevelBytes::*field) {
        rows.add(name, "%.1f", [=](const Judged& j) {
            const auto& levels = j.held.outcome.bytesByLevel;
            return i < levels.size() ? levels[i].*field / 1e3 : 0;
        });
    };
    add("KB per token, " + level.level, &LevelBytes::copies);
    add("KB per token, " + level.level + ", deduplicated", &LevelBytes::sends);
}

std::string scoredText(const Judgements& plans, bool simulated) {
    Rows rows(plans);
    addOutcome(rows, "copies per token", &Outcome::copiesPerToken);
    addOutcome(rows, "sends per token", &Outcome::sendsPerToken);
    addLoad(rows);
    addOutcome(rows, "home load max/mean", &Outcome::homeLoadMaxOverMean);
    const auto& levels = plans[0].second.held.outcome.bytesByLevel;
    for (size_t i = 0; i < levels.size(); ++i) addBytes(rows, levels[i], i);
    rows.add("step ms", "%.3f", [](const Judged& j) { return j.step.stepSeconds * 1e3; });
    rows.add("step ms, padded", "%.3f",
             [](const Judged& j) { return j.step.stepPaddedSeconds * 1e3; });
    if (simulated) {
        rows.add("served: KB per output token", "%.1f",
                 [](const Judged& j) { return j.serving.bytesPerOutputToken / 1e3; });
        rows.add("served: ms per output token", "%.3f",
                 [](const Judged& j) { return j.serving.secondsPerOutputToken * 1e3; });
        rows.add("served: queue ms", "%.1f",
                 [](const Judged& j) { return j.serving.queueSeconds * 1e3; });
    }
    return rows.text();
}

/// Says what the plan promised of requests like those it was made from, beside what was found.
std::string promiseText(const std::string& name, const Judged& judged) {
    const Forecast& it = judged.forecast;
    if (it.blocks == 0) return "";
    std::string outside;
    const auto look = [&](const char* what, const Range& range, double found) {
        if (found < range.low || found > range.high)
            absl::StrAppend(&outside, outside.empty() ? "" : ", ", what, " ",
                            absl::StrFormat("%.3f", found));
    };
    const auto& e = it.expected;
    if (judged.held.outcome.tokens > 0) {
        look("sends", e.sends, judged.held.outcome.sendsPerToken);
        look("copies", e.copies, judged.held.outcome.copiesPerToken);
    }
    look("node load", e.nodeLoad, judged.load.nodeLoadMaxOverMean);
    look("GPU load", e.gpuLoad, judged.load.gpuLoadMaxOverMean);
    return absl::StrCat(
        name, " promised of ",
        it.byKind ? "kinds of requests that were not recorded" : "requests not seen",
        ", 5 to 95 % in parentheses: ", forecastText(it), "; ",
        outside.empty() ? "all found inside" : "found outside: " + outside, "\n");
}

int evaluatePlans(const Cli& cli, const PlanOptions& options) {
    const auto recording = readRouting(options.recording);
    if (!recording.ok()) return fail(cli, recording.failure());
    const bool counted = !recording.value().routing;
    if (counted && options.simulate)
        return refusePlan(cli, "Cannot serve this recording",
                          absl::InvalidArgumentError(recording.value().source +
                                                     " has counts only, no requests to serve."),
                          "Leave --simulate out, or record routing token by token.");
    Judgements plans;
    std::vector<std::string> paths{options.plan};
    if (!options.against.empty()) paths.push_back(options.against);
    for (const std::string& path : paths) {
        auto plan = readPlan(path);
        if (!plan.ok())
            return refusePlan(cli, "Cannot read the plan", plan.status(),
                              "Make one with: bulkheadctl plan solve");
        auto judged = judge(*plan, recording.value(), options);
        if (!judged.ok())
            return refusePlan(cli, "Cannot evaluate the plan", judged.status(),
                              "Use a recording of the model that the plan is for.");
        plans.emplace_back(path, *std::move(judged));
    }
    if (cli.json) {
        model::Json json = jsonOf(plans[0].second, counted, options.simulate);
        if (plans.size() > 1) json["against"] = jsonOf(plans[1].second, counted, options.simulate);
        std::printf("%s\n", model::dumpJson(json).c_str());
        return kOk;
    }
    std::printf("%s", (counted ? countedText(plans) : scoredText(plans, options.simulate)).c_str());
    for (const auto& [name, judged] : plans) std::printf("%s", promiseText(name, judged).c_str());
    for (const auto& [name, judged] : plans)
        if (judged.own)
            std::printf("%s was made from these requests: expect less of others\n", name.c_str());
    for (const auto& [name, judged] : plans)
        if (judged.planDrawn)
            std::printf(
                "%s was made from tokens drawn from counts: it knows load, not which "
                "experts a token uses together\n",
                name.c_str());
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
        ->check(within(1.0, 100.0))
        ->capture_default_str();
    verb->add_option("--prefix", o->prefix, "homes are chosen from this part, the rest is scored")
        ->check(within(0.01, 0.99))
        ->capture_default_str();
    verb->add_option("--router", o->router,
                     "how replicas are chosen [the router that the plan is made for]")
        ->check(CLI::IsMember({"token-aware", "static", "home-first", "uniform"}));
    verb->add_flag("--simulate", o->simulate,
                   "also serve the requests: queues, steps, time a token");
    verb->add_option("--rate", o->rate, "requests a second when serving")
        ->check(positive())
        ->capture_default_str();
    verb->add_option("--seed", o->seed, "of the arrivals")
        ->check(seedNumber())
        ->capture_default_str();
    verb->callback([&cli, o] { cli.chosen = [&cli, o] { return evaluatePlans(cli, *o); }; });
}

}  // namespace bulkhead::cli
