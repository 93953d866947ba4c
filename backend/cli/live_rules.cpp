// SPDX-License-Identifier: Apache-2.0
#include "backend/cli/live_rules.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "backend/cli/live_text.h"
#include "backend/cli/plan_files.h"
#include "backend/cli/session.h"
#include "backend/model/expert_rules.h"
#include "backend/model/json.h"
#include "backend/planner/data/layer_names.h"

namespace bulkhead::cli {
namespace {

struct RuleArguments {
    std::string job;
    std::vector<std::string> pins, forbids, frees;
    bool clear = false;
    bool changes() const { return clear || !pins.empty() || !forbids.empty() || !frees.empty(); }
};

/// A rule as typed, under the model's own layer numbers, to one under mixtures from 0.
absl::StatusOr<model::ExpertRule> ruleGiven(const std::string& text, bool pins,
                                            const planner::LiveJob& job) {
    auto rule = model::parseRule(text, pins);
    if (!rule.ok()) return rule;
    const auto layer = planner::layerNamed(rule->layer, job.counts.layers, job.layerNumbers);
    if (!layer.ok())
        return absl::InvalidArgumentError(
            absl::StrCat("\"", text, "\": ", layer.status().message()));
    rule->layer = *layer;
    return rule;
}

/// "LAYER:EXPERT", whatever rules there are of it.
absl::Status freeExpert(const std::string& text, planner::LiveJob& job) {
    if (!model::parseRule(text + "=shard0", true).ok())
        return absl::InvalidArgumentError(
            absl::StrCat("\"", text, "\": expected LAYER:EXPERT, the layer under its own number"));
    const auto named = ruleGiven(text + "=shard0", true, job);
    if (!named.ok()) return named.status();
    auto left = model::withoutRules(job.rules, named->layer, named->expert);
    if (left.size() == job.rules.size())
        return absl::InvalidArgumentError(
            absl::StrCat(text, " is neither pinned nor forbidden anywhere"));
    job.rules = std::move(left);
    return absl::OkStatus();
}

/// The rules that the job keeps to; a plan is made with it, so that rules which no layout can keep
/// are refused now and not when routing drifts.
absl::StatusOr<std::vector<model::ExpertRule>> rulesAfter(const RuleArguments& arguments,
                                                          planner::LiveJob job) {
    const auto given = rulesGiven(arguments.pins, arguments.forbids, job);
    if (!given.ok()) return given.status();
    if (arguments.clear) job.rules.clear();
    for (const std::string& text : arguments.frees)
        if (absl::Status s = freeExpert(text, job); !s.ok()) return s;
    for (const model::ExpertRule& rule : *given)
        job.rules = model::withRule(std::move(job.rules), rule);
    if (const auto plan = planner::recommendPlan(job, {}); !plan.ok()) return plan.status();
    return job.rules;
}

int order(const Cli& cli, Session& session, const std::string& job, const model::Action& action) {
    const auto done = session.await<model::JobInfo>([&](client::Client& c, auto reply) {
        c.act(job, action, {"", 0}, std::move(reply));
    });
    return done.ok() ? kOk : fail(cli, done.failure());
}

void show(const Cli& cli, const std::vector<model::ExpertRule>& rules,
          const planner::LiveJob& job) {
    if (!cli.json) {
        std::printf("%s", rulesText(rules, job).c_str());
        return;
    }
    for (const model::ExpertRule& rule : rules) {
        model::Json json = model::toJson(rule);
        json["mixture"] = rule.layer;
        json["layer"] = job.layerNumbers.empty() ? rule.layer : job.layerNumbers[rule.layer];
        std::printf("%s\n", model::dumpJson(json).c_str());
    }
}

int planRules(const Cli& cli, const RuleArguments& arguments) {
    auto session = Session::open(cli);
    if (!session.ok()) return fail(cli, session.failure());
    const auto name = session.value()->job(arguments.job);
    if (!name.ok()) return fail(cli, name.failure());
    const auto state = session.value()->stateOfJob(name.value());
    if (!state.ok()) return fail(cli, state.failure());
    const auto job = planner::liveJob(*state.value());
    if (!job.ok())
        return refusePlan(cli, "Cannot pin experts of job " + name.value(), job.status(),
                          "Try again later.");
    std::vector<model::ExpertRule> rules = job->rules;
    if (arguments.changes()) {
        auto wanted = rulesAfter(arguments, *job);
        if (!wanted.ok())
            return refusePlan(cli, "Cannot pin experts of job " + name.value(), wanted.status(),
                              "Check --pin, --forbid and --free.");
        model::Action action;
        action.kind = model::ActionKind::kRuleExperts;
        action.rules = rules = *std::move(wanted);
        if (const int code = order(cli, *session.value(), name.value(), action); code != kOk)
            return code;
    }
    show(cli, rules, *job);
    return kOk;
}

int planDismiss(const Cli& cli, const std::string& wanted) {
    auto session = Session::open(cli);
    if (!session.ok()) return fail(cli, session.failure());
    const auto job = session.value()->job(wanted);
    if (!job.ok()) return fail(cli, job.failure());
    const auto state = session.value()->stateOfJob(job.value());
    if (!state.ok()) return fail(cli, state.failure());
    const model::ProposalView* waiting = model::openProposal(*state.value());
    if (waiting == nullptr)
        return fail(cli, {client::FailureCode::kRefused, "Nothing to dismiss",
                          "no plan is ready for review.",
                          "bulkheadctl plan history lists what was proposed.", false});
    model::Action action;
    action.kind = model::ActionKind::kDismissPlan;
    action.step = waiting->plan.step;
    return order(cli, *session.value(), job.value(), action);
}

}  // namespace

void addRuleOptions(CLI::App& verb, std::vector<std::string>& pins,
                    std::vector<std::string>& forbids) {
    verb.add_option(
            "--pin", pins,
            "LAYER:EXPERT=shardN, LAYER the model's own number: the expert is on that shard")
        ->type_name("RULE")
        ->expected(1)
        ->take_all();
    verb.add_option("--forbid", forbids, "LAYER:EXPERT=shardN: it is on any other")
        ->type_name("RULE")
        ->expected(1)
        ->take_all();
}

absl::StatusOr<std::vector<model::ExpertRule>> rulesGiven(const std::vector<std::string>& pins,
                                                          const std::vector<std::string>& forbids,
                                                          const planner::LiveJob& job) {
    std::vector<model::ExpertRule> rules;
    for (const auto* texts : {&pins, &forbids})
        for (const std::string& text : *texts) {
            auto rule = ruleGiven(text, texts == &pins, job);
            if (!rule.ok()) return rule.status();
            rules.push_back(*rule);
        }
    if (absl::Status s = model::checkRules(rules, job.expertShard, job.counts.experts, job.shards,
                                           job.layerNumbers);
        !s.ok())
        return s;
    return rules;
}

void addPlanRules(CLI::App& plan, Cli& cli) {
    auto a = std::make_shared<RuleArguments>();
    CLI::App* verb = plan.add_subcommand(
        "rules", "Experts of the running job that are pinned to a shard or forbidden on one");
    verb->add_option("-j,--job", a->job, "id of the job [the only one running]");
    addRuleOptions(*verb, a->pins, a->forbids);
    verb->add_option("--free", a->frees, "LAYER:EXPERT: neither pinned nor forbidden any more")
        ->type_name("EXPERT")
        ->expected(1)
        ->take_all();
    verb->add_flag("--clear", a->clear, "free all of them");
    verb->callback([&cli, a] { cli.chosen = [&cli, a] { return planRules(cli, *a); }; });

    auto job = std::make_shared<std::string>();
    CLI::App* dismiss = plan.add_subcommand("dismiss", "The plan that was proposed is not wanted");
    dismiss->add_option("-j,--job", *job, "id of the job [the only one running]");
    dismiss->callback([&cli, job] { cli.chosen = [&cli, job] { return planDismiss(cli, *job); }; });
}

}  // namespace bulkhead::cli
