// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "absl/strings/str_format.h"
#include "backend/cli/plan_files.h"
#include "backend/cli/text.h"
#include "backend/model/json.h"
#include "backend/planner/solve/front.h"
#include "backend/planner/solve/replan.h"

namespace bulkhead::cli {

using namespace planner;  // NOLINT: this file is nothing but a verb of the planner

namespace {

std::vector<std::string> pointRow(const FrontPoint& p, bool recommended) {
    return {p.name,
            absl::StrFormat("%.3f", p.outcome.sendsPerToken),
            absl::StrFormat("%.3f", p.outcome.copiesPerToken),
            absl::StrFormat("%.3f", p.outcome.nodeLoadMaxOverMean),
            absl::StrFormat("%.3f", p.outcome.balancedness),
            absl::StrFormat("%.3f", p.time.stepSeconds * 1e3),
            absl::StrFormat("%.3f", p.time.stepPaddedSeconds * 1e3),
            std::string(recommended ? "recommended"
                        : p.onFront ? "on the front"
                                    : "")};
}

int showFront(const Cli& cli, const Front& front, const PlanOptions& options) {
    if (cli.json) {
        model::Json points = model::Json::array();
        for (const FrontPoint& p : front.points) {
            model::Json json = model::toJson(p.outcome);
            json["name"] = p.name;
            json["on_front"] = p.onFront;
            json["step"] = model::toJson(p.time);
            points.push_back(std::move(json));
        }
        const model::Json json{{"points", std::move(points)},
                               {"recommended", front.points[front.recommended].name},
                               {"reason", front.reason},
                               {"out", options.out}};
        std::printf("%s\n", model::dumpJson(json).c_str());
        return kOk;
    }
    std::vector<std::vector<std::string>> rows{{"PLAN", "SENDS/TOKEN", "COPIES/TOKEN", "NODE LOAD",
                                                "BALANCEDNESS", "STEP MS", "PADDED MS", ""}};
    for (size_t i = 0; i < front.points.size(); ++i)
        rows.push_back(pointRow(front.points[i], i == front.recommended));
    std::printf("%s%s\n", table(rows).c_str(), front.reason.c_str());
    if (!options.out.empty()) std::printf("written to %s\n", options.out.c_str());
    return kOk;
}

absl::StatusOr<std::vector<PlaceRule>> chosenRules(const PlanOptions& options) {
    std::vector<PlaceRule> rules;
    for (const auto* texts : {&options.pins, &options.forbids})
        for (const std::string& text : *texts) {
            auto rule = parsePlaceRule(text, texts == &options.pins);
            if (!rule.ok()) return rule.status();
            rules.push_back(*rule);
        }
    return rules;
}

int replanned(const Cli& cli, const PlanOptions& options, const Routing& routing,
              const std::vector<PlaceRule>& rules) {
    auto current = readPlan(options.current);
    if (!current.ok())
        return refusePlan(cli, "Cannot read the plan in use", current.status(), "Check --current.");
    ReplanOptions wanted;
    wanted.seed = options.seed;
    wanted.rules = rules;
    wanted.homeCap = options.homeCap;
    wanted.loadCap = options.loadCap > 0 ? options.loadCap : wanted.loadCap;
    wanted.sampleTokens = 40000;
    wanted.sweeps = 20;
    wanted.proposalsPerUnit = 2000;
    if (options.objective == "copies") {
        wanted.sends = 0;
        wanted.copies = 1;
    }
    auto made = replan(*current, wholeOf(routing), wanted);
    if (!made.ok())
        return refusePlan(cli, "Cannot replan", made.status(),
                          "Check --current, --routing, --pin and --forbid.");
    if (!options.out.empty())
        if (auto status = writePlan(made->plan, options.out); !status.ok())
            return refusePlan(cli, "Cannot write the plan", status,
                              "Choose another place with --out.");
    if (cli.json) {
        const model::Json json{{"changes", made->changes},
                               {"before", made->before},
                               {"after", made->after},
                               {"layers_changed", made->layersChanged},
                               {"migration", model::toJson(made->migration)},
                               {"reason", made->reason},
                               {"out", options.out}};
        std::printf("%s\n", model::dumpJson(json).c_str());
    } else {
        std::printf("%s; %.3f -> %.3f a token and layer; %llu slots to fetch, %.1f MB\n",
                    made->reason.c_str(), made->before, made->after,
                    static_cast<unsigned long long>(made->migration.slots),
                    made->migration.bytes / 1e6);
    }
    return kOk;
}

int solve(const Cli& cli, const PlanOptions& options) {
    auto recording = readOrDrawTokens(options);
    if (!recording.ok()) return fail(cli, recording.failure());
    const Routing* routing = &*recording.value().routing;
    auto rules = chosenRules(options);
    if (!rules.ok())
        return refusePlan(cli, "Cannot read this rule", rules.status(),
                          "Check --pin and --forbid.");
    if (!options.current.empty()) return replanned(cli, options, *routing, *rules);
    auto topology = chosenTopology(options);
    if (!topology.ok())
        return refusePlan(cli, "Cannot use this topology", topology.status(),
                          "Give --nodes and --gpus-per-node, a built-in name, or a TOML file.");
    FrontOptions wanted;
    wanted.objective = enumFromName<Objective>(options.objective).value();
    wanted.homeCap = options.homeCap;
    wanted.rules = *rules;
    wanted.joint.redundant = options.redundant;
    wanted.joint.loadCap = options.loadCap > 0     ? options.loadCap
                           : options.redundant > 0 ? 1.08
                                                   : 1.15;
    wanted.joint.prefix = options.prefix;
    wanted.joint.keepGroups = options.keepGroups;
    wanted.joint.seed = options.seed;
    wanted.joint.effort = options.effort;
    if (options.perDomain) {
        wanted.joint.homeCap = options.homeCap;
        if (options.objective == "copies") {
            wanted.joint.sends = 0;
            wanted.joint.copies = 1;
        }
        return solveByDomain(cli, options, *routing, *topology, wanted.joint);
    }
    auto front = solveFront(wholeOf(*routing), *topology, wanted);
    if (!front.ok())
        return refusePlan(cli, "Cannot plan", front.status(),
                          rules->empty()
                              ? "Change the redundancy or the topology."
                              : "Change --pin, --forbid, the redundancy or the topology.");
    Plan& plan = front->points[front->recommended].plan;
    plan.origin.source = recording.value().source;
    if (!options.out.empty())
        if (auto status = writePlan(plan, options.out); !status.ok())
            return refusePlan(cli, "Cannot write the plan", status,
                              "Choose another place with --out.");
    return showFront(cli, *front, options);
}

}  // namespace

void addPlanSolve(CLI::App& plan, Cli& cli) {
    auto o = std::make_shared<PlanOptions>();
    CLI::App* verb =
        plan.add_subcommand("solve", "Where experts should live, from recorded routing");
    addRoutingOptions(*verb, o->recording);
    verb->add_option("--nodes", o->nodes, "hosts")->check(CLI::Range(1, 4096));
    verb->add_option("--gpus-per-node", o->gpusPerNode, "GPUs of a host")
        ->check(CLI::Range(1, 4096))
        ->capture_default_str();
    verb->add_option("--topology", o->topology, "built-in name or TOML file, instead of --nodes");
    verb->add_option("--redundant", o->redundant, "extra expert slots of a layer, over all nodes");
    verb->add_option("--objective", o->objective, "what the recommended plan is best in")
        ->check(CLI::IsMember({"balance", "copies", "sends", "bytes", "latency"}))
        ->capture_default_str();
    verb->add_option("--load-cap", o->loadCap,
                     "node load max/mean wished for on new requests [1.15; 1.08 with --redundant]")
        ->check(CLI::Range(1.0, 100.0));
    verb->add_option("--home-cap", o->homeCap, "tokens at home on a node, max/mean")
        ->check(CLI::Range(1.0, 100.0))
        ->capture_default_str();
    verb->add_option("--prefix", o->prefix, "part of a request that its home is chosen from")
        ->check(CLI::Range(0.01, 0.99))
        ->capture_default_str();
    verb->add_option("--seed", o->seed, "the same seed gives the same plan")->capture_default_str();
    verb->add_option("--effort", o->effort, "how long to search, 1 is usual")
        ->check(CLI::Range(0.01, 1000.0))
        ->capture_default_str();
    verb->add_flag("--keep-groups", o->keepGroups, "router groups stay whole on a node");
    verb->add_option("--pin", o->pins, "LAYER:EXPERT=gpuN or =nodeN: a replica is there")
        ->type_name("RULE")
        ->expected(1)
        ->take_all();
    verb->add_option("--forbid", o->forbids, "LAYER:EXPERT=gpuN or =nodeN: none is there")
        ->type_name("RULE")
        ->expected(1)
        ->take_all();
    verb->add_option("--current", o->current, "plan in use: move only what pays for its move");
    verb->add_flag(
        "--per-domain", o->perDomain,
        "a plan for each domain beside a shared one, what each saves on its own requests "
        "and what a switch costs");
    for (const char* option : {"--pin", "--forbid", "--current"})
        verb->get_option("--per-domain")->excludes(option);
    verb->add_option("--out", o->out,
                     "write the recommended plan here; with --per-domain the shared one, and "
                     "PLAN.DOMAIN.json beside it");
    verb->callback([&cli, o] { cli.chosen = [&cli, o] { return solve(cli, *o); }; });
}

}  // namespace bulkhead::cli
