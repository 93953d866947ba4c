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

namespace bulkhead::cli {
namespace {

struct RuleArguments {
    std::string job;
    std::vector<std::string> pins, forbids, frees;
    bool clear = false;
    bool changes() const { return clear || !pins.empty() || !forbids.empty() || !frees.empty(); }
};

/// "LAYER:EXPERT", whatever rules there are of it.
absl::Status freeExpert(const std::string& text, std::vector<model::ExpertRule>& rules) {
    const auto named = model::parseRule(text + "=shard0", true);
    if (!named.ok())
        return absl::InvalidArgumentError(
            absl::StrCat("\"", text, "\": expected LAYER:EXPERT, both from 0"));
    auto left = model::withoutRules(rules, named->layer, named->expert);
    if (left.size() == rules.size())
        return absl::InvalidArgumentError(
            absl::StrCat("expert ", named->expert, " of mixture layer ", named->layer,
                         " is neither pinned nor forbidden anywhere"));
    rules = std::move(left);
    return absl::OkStatus();
}

/// What the job is to keep to; a plan is made with it, so that rules which no layout can keep are
/// refused now and not when routing drifts.
absl::StatusOr<std::vector<model::ExpertRule>> rulesAfter(const RuleArguments& arguments,
                                                          planner::LiveJob job) {
    const auto given = rulesGiven(arguments.pins, arguments.forbids, job);
    if (!given.ok()) return given.status();
    if (arguments.clear) job.rules.clear();
    for (const std::string& text : arguments.frees)
        if (absl::Status s = freeExpert(text, job.rules); !s.ok()) return s;
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
          const std::vector<int32_t>& placement, uint32_t experts) {
    if (cli.json) {
        for (const model::ExpertRule& rule : rules)
            std::printf("%s\n", model::toJsonText(rule).c_str());
        return;
    }
    std::printf("%s", rulesText(rules, placement, experts).c_str());
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
    show(cli, rules, job->expertShard, job->counts.experts);
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
                          "no plan waits for an answer.",
                          "bulkheadctl plan history lists what was proposed.", false});
    model::Action action;
    action.kind = model::ActionKind::kDismissPlan;
    action.step = waiting->plan.step;
    return order(cli, *session.value(), job.value(), action);
}

}  // namespace

void addRuleOptions(CLI::App& verb, std::vector<std::string>& pins,
                    std::vector<std::string>& forbids) {
    verb.add_option("--pin", pins, "LAYER:EXPERT=shardN: the expert is on that shard")
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
            auto rule = model::parseRule(text, texts == &pins);
            if (!rule.ok()) return rule.status();
            rules.push_back(*rule);
        }
    if (absl::Status s = model::checkRules(rules, job.expertShard, job.counts.experts, job.shards);
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
