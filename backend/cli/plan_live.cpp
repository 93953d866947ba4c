// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "backend/cli/confirm.h"
#include "backend/cli/live_rules.h"
#include "backend/cli/live_text.h"
#include "backend/cli/plan_files.h"
#include "backend/cli/session.h"
#include "backend/model/expert_rules.h"
#include "backend/model/json.h"

namespace bulkhead::cli {
namespace {

enum class LiveVerb { kPreview, kApply, kRollback };

struct LiveArguments {
    planner::LiveOptions options;
    std::string job, plan;
    std::vector<std::string> pins, forbids;  ///< LAYER:EXPERT=shardN
    bool noGrouping = false;
    bool proposed = false;
    bool yes = false;
};

absl::StatusOr<planner::LivePlan> planFor(LiveVerb verb, const model::RunState& state,
                                          const LiveArguments& arguments) {
    if (verb == LiveVerb::kRollback) return planner::planBefore(state);
    if (arguments.proposed) return planner::planProposed(state);
    absl::StatusOr<planner::Plan> plan;
    if (!arguments.plan.empty()) {
        plan = readPlan(arguments.plan);
        if (!plan.ok()) return plan.status();
    }
    absl::StatusOr<planner::LiveJob> job = planner::liveJob(state);
    if (!job.ok()) return job.status();
    const auto given = rulesGiven(arguments.pins, arguments.forbids, *job);
    if (!given.ok()) return given.status();
    for (const model::ExpertRule& rule : *given)
        job->rules = model::withRule(std::move(job->rules), rule);
    auto made = arguments.plan.empty() ? planner::recommendPlan(*job, arguments.options)
                                       : planner::planFromFile(*job, *plan, arguments.options);
    if (made.ok() && !given->empty()) made->action.rules = job->rules;
    return made;
}

void showPreview(const Cli& cli, const planner::LivePreview& preview) {
    // With --json, apply says what became of the job instead.
    if (cli.json)
        std::printf("%s\n", model::toJsonText(preview).c_str());
    else
        std::printf("%s", previewText(preview).c_str());
}

int carryOutPlan(const Cli& cli, Session& session, const std::string& job,
                 const planner::LivePlan& plan, bool yes) {
    const auto preflight = session.await<model::Preflight>(
        [&](client::Client& c, auto reply) { c.preflight(job, plan.action, std::move(reply)); });
    if (!preflight.ok()) return fail(cli, preflight.failure());
    const model::Preflight& p = preflight.value();
    if (!p.allowed) return fail(cli, notAllowed(p));
    if (!cli.json) {
        showPreview(cli, plan.preview);
        printPreflight(p);
    }
    if (!confirmed(yes)) return fail(cli, notConfirmed(p));
    const auto done = session.await<model::JobInfo>([&](client::Client& c, auto reply) {
        c.act(job, plan.action, {"", p.revision}, std::move(reply));
    });
    if (!done.ok()) return fail(cli, done.failure());
    if (cli.json)
        std::printf("%s\n", model::toJsonText(done.value()).c_str());
    else
        std::printf("ordered; bulkheadctl plan history says what came of it\n");
    return kOk;
}

int planLive(const Cli& cli, LiveVerb verb, LiveArguments arguments) {
    arguments.options.group = !arguments.noGrouping;
    auto session = Session::open(cli);
    if (!session.ok()) return fail(cli, session.failure());
    const auto job = session.value()->job(arguments.job);
    if (!job.ok()) return fail(cli, job.failure());
    const auto state = session.value()->stateOfJob(job.value());
    if (!state.ok()) return fail(cli, state.failure());
    const absl::StatusOr<planner::LivePlan> plan = planFor(verb, *state.value(), arguments);
    if (!plan.ok()) {
        const bool notNow = plan.status().code() == absl::StatusCode::kFailedPrecondition;
        return fail(
            cli, {notNow ? client::FailureCode::kRefused : client::FailureCode::kInvalid,
                  "Cannot plan for job " + job.value(), std::string(plan.status().message()) + ".",
                  notNow ? "Try again later." : "Check --plan, --pin and --forbid.", false});
    }
    if (verb != LiveVerb::kPreview)
        return carryOutPlan(cli, *session.value(), job.value(), *plan, arguments.yes);
    showPreview(cli, plan->preview);
    return kOk;
}

int planHistory(const Cli& cli, const std::string& wanted) {
    auto session = Session::open(cli);
    if (!session.ok()) return fail(cli, session.failure());
    client::Result<client::StatePtr> state = [&]() -> client::Result<client::StatePtr> {
        if (!cli.file.empty())
            return session.value()->await<client::StatePtr>([&](client::Client& c, auto reply) {
                c.getState(wanted.empty() ? "latest" : wanted, 0, std::move(reply));
            });
        const auto job = session.value()->job(wanted, true);
        if (!job.ok()) return job.failure();
        return session.value()->stateOfJob(job.value());
    }();
    if (!state.ok()) return fail(cli, state.failure());
    if (!cli.json) {
        std::printf("%s", layoutsText(*state.value()).c_str());
        return kOk;
    }
    for (size_t i = 0; i < state.value()->proposals.size(); ++i) {
        const model::ProposalView& view = state.value()->proposals[i];
        model::Json row = model::toJson(view.plan);
        row["fate"] = proposalFate(*state.value(), i);
        row["proposed_ns"] = view.timeNs;
        std::printf("%s\n", model::dumpJson(row).c_str());
    }
    for (const model::LayoutView& view : state.value()->layouts) {
        model::Json row = model::toJson(view);
        row["before"]["remote_share"] = view.before.remoteShare();
        row["after"]["remote_share"] = view.after.remoteShare();
        std::printf("%s\n", model::dumpJson(row).c_str());
    }
    return kOk;
}

void addLiveVerb(CLI::App& plan, Cli& cli, const char* name, const char* help, LiveVerb kind) {
    auto a = std::make_shared<LiveArguments>();
    CLI::App* verb = plan.add_subcommand(name, help);
    verb->add_option("-j,--job", a->job, "id of the job [the only one running]");
    if (kind != LiveVerb::kRollback) {
        verb->add_option("--plan", a->plan, "a plan file [planned from the job's own counts]");
        verb->add_flag("--proposed", a->proposed, "the plan that the backend proposed last")
            ->excludes("--plan");
        verb->add_flag("--no-grouping", a->noGrouping,
                       "move experts only; samples of any domain go to any shard");
        verb->add_option("--load-cap", a->options.loadCap,
                         "tokens that reach a shard's experts, max/mean")
            ->check(within(1.0, 100.0))
            ->capture_default_str();
        verb->add_option("--seed", a->options.seed, "the same seed gives the same plan")
            ->check(seedNumber())
            ->capture_default_str();
        verb->add_option("--effort", a->options.effort, "how long to search, 1 is usual")
            ->check(within(1.0, 1000.0))
            ->capture_default_str();
    }
    if (kind != LiveVerb::kRollback) {
        addRuleOptions(*verb, a->pins, a->forbids);
        for (const char* option : {"--pin", "--forbid"})
            verb->get_option(option)->excludes("--proposed");
    }
    if (kind != LiveVerb::kPreview) verb->add_flag("-y,--yes", a->yes, "do not ask");
    verb->callback(
        [&cli, kind, a] { cli.chosen = [&cli, kind, a] { return planLive(cli, kind, *a); }; });
}

}  // namespace

void addPlanLive(CLI::App& plan, Cli& cli) {
    addLiveVerb(plan, cli, "preview",
                "What a plan from the running job's own routing would move and save",
                LiveVerb::kPreview);
    addLiveVerb(plan, cli, "apply", "Move the running job's experts and group its samples",
                LiveVerb::kApply);
    addLiveVerb(plan, cli, "rollback",
                "Back to where experts and samples were before the last move", LiveVerb::kRollback);
    addPlanRules(plan, cli);
    auto job = std::make_shared<std::string>();
    CLI::App* verb =
        plan.add_subcommand("history", "The moves of a job, predicted beside measured");
    verb->add_option("job,-j,--job", *job, "id of the job or run [the only one, or the last]");
    verb->add_option("-f,--file", cli.file, "read this run file instead of asking a daemon");
    verb->callback([&cli, job] { cli.chosen = [&cli, job] { return planHistory(cli, *job); }; });
}

}  // namespace bulkhead::cli
