// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "backend/cli/follow.h"
#include "backend/cli/plan_files.h"
#include "backend/cli/plan_front.h"
#include "backend/cli/text.h"
#include "backend/common/file_system.h"
#include "backend/model/json.h"
#include "backend/planner/data/layer_names.h"
#include "backend/planner/export/engine_files.h"
#include "backend/planner/solve/baselines.h"

namespace bulkhead::cli {

using namespace planner;  // NOLINT: this file is nothing but a verb of the planner

namespace {

model::Json moreJson(double part) {
    return part >= 0 ? model::Json(part) : model::Json(nullptr);
}

int showFront(const Cli& cli, const Front& front, const PlanOptions& options) {
    const std::vector<std::string> notes = planNotes(front.points[front.recommended].plan);
    if (cli.json) {
        model::Json points = model::Json::array();
        for (const FrontPoint& p : front.points) {
            points.push_back(pointJson(p));
            points.back()["on_front"] = p.onFront;
        }
        const model::Json json{
            {"points", std::move(points)},
            {"recommended", front.points[front.recommended].name},
            {"forecast", model::toJson(front.points[front.recommended].plan.forecast)},
            {"reason", front.reason},
            {"stopped", front.stopped},
            {"more_time_brings", moreJson(front.more)},
            {"notes", notes},
            {"out", options.out}};
        std::printf("%s\n", model::dumpJson(json).c_str());
        return kOk;
    }
    std::vector<std::string> marks;
    for (size_t i = 0; i < front.points.size(); ++i)
        marks.emplace_back(i == front.recommended    ? "recommended"
                           : front.points[i].onFront ? "on the front"
                                                     : "");
    std::printf("on the requests the plans were made from:\n%s\n%s\n%s\n",
                pointsTable(front.points, marks).c_str(),
                forecastTable(front.points[front.recommended].plan).c_str(), front.reason.c_str());
    if (front.more >= 0)
        std::printf("searching for twice as long would make what is minimised about %.1f%% less\n",
                    front.more * 100);
    for (const std::string& note : notes) std::printf("note: %s\n", note.c_str());
    if (!options.out.empty()) std::printf("written to %s\n", options.out.c_str());
    return kOk;
}

/// --pin and --forbid; layers are typed under the model's own numbers.
absl::StatusOr<std::vector<PlaceRule>> chosenRules(const PlanOptions& options,
                                                   const ModelShape& shape) {
    std::vector<PlaceRule> rules;
    for (const auto* texts : {&options.pins, &options.forbids})
        for (const std::string& text : *texts) {
            auto rule = parsePlaceRule(text, texts == &options.pins);
            if (!rule.ok()) return rule.status();
            const auto layer = layerNamed(rule->layer, shape.layers, shape.layerNumbers);
            if (!layer.ok())
                return absl::InvalidArgumentError(
                    absl::StrCat("\"", text, "\": ", layer.status().message()));
            rule->layer = *layer;
            rules.push_back(*rule);
        }
    return rules;
}

/// Options that one of the others leaves without effect.
struct Clash {
    const char* given;
    std::vector<const char*> without;
    const char* why;
};

const std::vector<Clash>& clashes() {
    static const std::vector<Clash> all{
        {"--current",
         {"--nodes", "--gpus-per-node", "--topology", "--redundant"},
         "the plan in use says which GPUs there are and how many slots they have"},
        {"--current",
         {"--keep-groups", "--per-domain", "--algorithm", "--router", "--engine", "--mix",
          "--time-limit"},
         "experts of the plan in use are exchanged one by one, as far as that pays"},
        {"--topology",
         {"--nodes", "--gpus-per-node"},
         "the topology says how many hosts and GPUs there are"},
        {"--algorithm",
         {"--keep-groups", "--per-domain", "--load-cap", "--effort", "--confidence", "--mix",
          "--time-limit"},
         "only the joint search knows it"},
        {"--per-domain", {"--pin", "--forbid"}, "a domain's own plan knows no rules"},
        {"--per-domain", {"--mix", "--time-limit"}, "each plan is for one domain"},
        {"--router", {"--engine"}, "the router says how replicas are chosen"},
    };
    return all;
}

/// ValidationError, with what to do, for the first option that would be ignored.
void refuseClashes(const CLI::App& verb) {
    const auto given = [&](const std::string& name) {
        const CLI::Option* option = verb.get_option(name);
        return option->count() > 0 &&
               (name != "--algorithm" || option->as<std::string>() != "joint");
    };
    for (const Clash& clash : clashes())
        for (const char* without : clash.without)
            if (given(clash.given) && given(without))
                throw CLI::ValidationError(
                    without, absl::StrCat("has no effect beside ", clash.given, ", as ", clash.why,
                                          "; give one or the other"));
}

constexpr uint64_t kMostMixBytes = 1 << 20;

/// --mix: nothing, "recorded", "worst" or a file.
absl::StatusOr<std::vector<Mixture>> chosenMixtures(const std::string& mix,
                                                    const RoutingView& view) {
    if (mix.empty()) return std::vector<Mixture>();
    if (mix == "recorded") return std::vector<Mixture>{recordedMixture(view)};
    if (mix != "worst") {
        const auto text = readAtMost(mix, kMostMixBytes);
        if (!text.ok()) return text.status();
        return parseMixtures(*text, mix, view);
    }
    std::vector<Mixture> made = worstMixtures(view);
    if (made.empty())
        return absl::InvalidArgumentError(
            "the recording has one domain, and no other mixture of it to plan for");
    return made;
}

/// A second replica of an expert on one node is of no use to a joint plan.
absl::Status checkRedundant(const PlanOptions& options, uint32_t experts, uint32_t nodes) {
    const uint64_t most = uint64_t{experts} * (nodes - 1);
    if (options.algorithm != "joint" || options.redundant <= most) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(options.redundant,
                                                   " redundant experts; at most ", most,
                                                   ", which is every expert on every node"));
}

/// --router, else that of --engine, else token by token.
Router chosenRouter(const PlanOptions& options) {
    if (!options.router.empty()) return *enumFromName<Router>(options.router);
    if (!options.engine.empty()) return routerOf(*enumFromName<Engine>(options.engine));
    return Router::kTokenAware;
}

/// Shows how far a search is on standard error, a line whenever something is new, and ends it at
/// SIGINT (a second one ends the program) or when the time is over.
class SolveProgress {
  public:
    SolveProgress(const Cli& cli, const PlanOptions& options)
        : json_(cli.json), limit_(options.timeLimit), objective_(options.objective) {}

    bool goOn(const FrontProgress& at) {
        const double seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
        if (at.part != last_.part || at.done != last_.done || at.more != last_.more)
            show(at, seconds);
        last_ = at;
        const bool on = interrupts_->count() == 0 && (limit_ <= 0 || seconds < limit_);
        if (!on) interrupts_.reset();  // it is not asked again; SIGINT ends the program
        return on;
    }

  private:
    void show(const FrontProgress& at, double seconds) const {
        if (json_) {
            model::Json json{{"event", "progress"},
                             {"part", at.part},
                             {"done", at.done},
                             {"of", at.of},
                             {"seconds", seconds},
                             {"best", nullptr},
                             {"more_time_brings", moreJson(at.more)}};
            if (at.best > 0) json["best"] = at.best;
            std::fprintf(stderr, "%s\n", model::dumpJson(json).c_str());
        } else {
            std::fprintf(
                stderr, "%u of %u plans, %.1f s: %s%s%s\n", at.done, at.of, seconds,
                at.part.c_str(),
                at.best > 0 ? absl::StrCat(", best ", objective_, " ", at.best).c_str() : "",
                at.more >= 0
                    ? absl::StrFormat("; as long again would bring about %.1f%%", at.more * 100)
                          .c_str()
                    : "");
        }
    }

    bool json_;
    double limit_;
    std::string objective_;
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
    FrontProgress last_;
    std::optional<Interrupts> interrupts_{std::in_place, /*secondEnds=*/true};
};

int solve(const Cli& cli, const PlanOptions& options) {
    if (auto status = checkNotRead(options.out, options.recording); !status.ok())
        return refuseOut(cli, status);
    if (auto status = checkOut(options.out); !status.ok()) return refuseOut(cli, status);
    auto recording = readOrDrawTokens(options);
    if (!recording.ok()) return fail(cli, recording.failure());
    const Routing* routing = &*recording.value().routing;
    auto rules = chosenRules(options, routing->shape());
    if (!rules.ok())
        return refusePlan(cli, "Cannot read this rule", rules.status(),
                          "Check --pin and --forbid.");
    FrontOptions wanted;
    wanted.objective = enumFromName<Objective>(options.objective).value();
    wanted.algorithm = options.algorithm;
    wanted.homeCap = options.homeCap;
    wanted.rules = *rules;
    wanted.joint.prefix = options.prefix;
    wanted.joint.confidence = options.confidence;
    if (!options.current.empty()) return solveFromCurrent(cli, options, recording.value(), wanted);
    auto topology = chosenTopology(options);
    if (!topology.ok())
        return refusePlan(cli, "Cannot use this topology", topology.status(),
                          "Give --nodes and --gpus-per-node, a built-in name, or a TOML file.");
    if (auto status = checkRedundant(options, routing->shape().experts, topology->nodes());
        !status.ok())
        return refusePlan(cli, "Cannot plan", status, "Change the redundancy or the topology.");
    const Router router = wanted.joint.router = chosenRouter(options);
    wanted.joint.otherKinds = options.mix == "unrecorded";
    auto mixtures = chosenMixtures(wanted.joint.otherKinds ? "" : options.mix, wholeOf(*routing));
    if (!mixtures.ok())
        return refusePlan(cli, "Cannot use this mixture", mixtures.status(),
                          options.mix == "worst"
                              ? "Leave --mix out, or record requests of other domains."
                              : "Give recorded, worst, unrecorded, or a JSON file like [{\"code\": "
                                "3, \"chat\": 1}] of domains that the recording has.");
    wanted.joint.mixtures = *std::move(mixtures);
    wanted.joint.redundant = options.redundant;
    wanted.joint.loadCap = options.loadCap > 0 ? options.loadCap
                           : options.redundant > 0 && router == Router::kTokenAware ? 1.08
                                                                                    : 1.15;
    wanted.joint.keepGroups = options.keepGroups;
    wanted.joint.seed = options.seed;
    wanted.joint.effort = options.effort;
    if (options.perDomain) {
        if (options.objective != "sends" && options.objective != "copies")
            return refusePlan(cli, "Cannot plan for each domain",
                              absl::InvalidArgumentError("a domain's own plan is made for sends or "
                                                         "copies, not for " +
                                                         options.objective),
                              "Give --objective sends or copies.");
        wanted.joint.homeCap = options.homeCap;
        if (options.objective == "copies") {
            wanted.joint.sends = 0;
            wanted.joint.copies = 1;
        }
        return solveByDomain(cli, options, *routing, *topology, wanted.joint);
    }
    SolveProgress progress(cli, options);
    wanted.onProgress = [&progress](const FrontProgress& at) { return progress.goOn(at); };
    auto front = solveFront(wholeOf(*routing), *topology, wanted);
    if (!front.ok())
        return refusePlan(
            cli, "Cannot plan", front.status(),
            absl::StrCat(wanted.joint.otherKinds ? "Leave --mix out, or: " : "",
                         absl::IsFailedPrecondition(front.status())
                             ? "Record more requests, or longer ones."
                             : absl::StrCat("Change ", rules->empty() ? "" : "--pin, --forbid, ",
                                            "the redundancy or the topology.")));
    Plan& plan = front->points[front->recommended].plan;
    plan.origin.source = recording.value().source;
    plan.origin.tokensDrawn = recording.value().tokensDrawn;
    if (!options.out.empty())
        if (auto status = writePlan(plan, options.out); !status.ok()) return refuseOut(cli, status);
    return showFront(cli, *front, options);
}

}  // namespace

void addPlanSolve(CLI::App& plan, Cli& cli) {
    auto o = std::make_shared<PlanOptions>();
    CLI::App* verb =
        plan.add_subcommand("solve", "Where experts should live, from recorded routing");
    addRoutingOptions(*verb, o->recording);
    verb->add_option("--nodes", o->nodes, "hosts; a joint plan is made for at most 255")
        ->check(CLI::Range(1, 4096));
    verb->add_option("--gpus-per-node", o->gpusPerNode, "GPUs of a host")
        ->check(CLI::Range(1, 4096))
        ->capture_default_str();
    verb->add_option("--topology", o->topology, "built-in name or TOML file, instead of --nodes");
    verb->add_option("--redundant", o->redundant, "extra expert slots of a layer, over all nodes");
    std::vector<std::string> algorithms{"joint"};
    for (const BaselineName& baseline : baselineNames()) algorithms.emplace_back(baseline.name);
    verb->add_option("--algorithm", o->algorithm, "joint, ours, or what others do, to compare with")
        ->check(CLI::IsMember(algorithms))
        ->capture_default_str();
    verb->add_option("--objective", o->objective,
                     "what the recommended plan is best in; bytes: what a token sends to other "
                     "nodes, each link's bytes times how much slower it is than the fastest one "
                     "between nodes")
        ->check(CLI::IsMember({"balance", "copies", "sends", "bytes", "latency"}))
        ->capture_default_str();
    verb->add_option("--load-cap", o->loadCap,
                     "node load max/mean wished for on new requests [1.15; 1.08 with --redundant]")
        ->check(within(1.0, 100.0));
    verb->add_option("--router", o->router,
                     "how redundant experts' replicas will be chosen: token by token, where a "
                     "token goes anyway; by the plan's weights; on the home node first; or any "
                     "[token-aware, or what --engine does]")
        ->check(CLI::IsMember({"token-aware", "static", "home-first", "uniform"}));
    verb->add_option("--engine", o->engine, "that will serve the plan: plans for its router")
        ->check(CLI::IsMember({"sglang", "trtllm", "ascend", "vllm", "bulkhead"}));
    verb->add_option("--mix", o->mix,
                     "keep the load cap for given mixtures of the domains instead of requests "
                     "that come by lot: recorded, worst (each alone as well), or a JSON file: "
                     "[{\"DOMAIN\": PART, ...}, ...]; unrecorded: for kinds of "
                     "requests that were not recorded keep node load near linear's, which costs "
                     "most of what a plan saves; takes longer")
        ->check([](const std::string& mix) {
            return mix.empty() ? "must be recorded, worst, unrecorded or a file" : "";
        });
    verb->add_option("--time-limit", o->timeLimit,
                     "seconds after which the search ends with the best plan so far, as at SIGINT")
        ->check(positive());
    verb->add_option("--confidence", o->confidence,
                     "part of what comes for which the load cap is kept, as far as the recording "
                     "can tell")
        ->check(within(0.5, 0.99))
        ->capture_default_str();
    verb->add_option("--home-cap", o->homeCap, "tokens at home on a node, max/mean")
        ->check(within(1.0, 100.0))
        ->capture_default_str();
    verb->add_option("--prefix", o->prefix, "part of a request that its home is chosen from")
        ->check(within(0.01, 0.99))
        ->capture_default_str();
    verb->add_option("--seed", o->seed, "the same seed gives the same plan")
        ->check(seedNumber())
        ->capture_default_str();
    verb->add_option("--effort", o->effort, "how long to search, 1 is usual")
        ->check(within(0.01, 1000.0))
        ->capture_default_str();
    verb->add_flag("--keep-groups", o->keepGroups, "router groups stay whole on a node");
    verb->add_option(
            "--pin", o->pins,
            "LAYER:EXPERT=gpuN or =nodeN, LAYER the model's own number: a replica is there")
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
    verb->add_option("--out", o->out,
                     "write the recommended plan here; with --per-domain the shared one, and "
                     "PLAN.DOMAIN.json beside it");
    verb->callback([&cli, o, verb] {
        refuseClashes(*verb);
        cli.chosen = [&cli, o] { return solve(cli, *o); };
    });
}

}  // namespace bulkhead::cli
