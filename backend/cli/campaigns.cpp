// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>

#include "backend/campaign/judge.h"
#include "backend/campaign/report.h"
#include "backend/cli/cli.h"
#include "backend/cli/confirm.h"
#include "backend/cli/follow.h"
#include "backend/cli/session.h"
#include "backend/cli/text.h"
#include "backend/common/file_system.h"
#include "backend/common/output_file.h"
#include "backend/model/command_text.h"
#include "backend/model/json.h"
#include "backend/model/units.h"

namespace bulkhead::cli {
namespace {

struct RunOptions {
    std::string file;
    std::string job;
    std::string duration;
    std::optional<uint64_t> seed;
    bool allowLasting = false;
    bool yes = false;
    bool dryRun = false;
    bool detach = false;
};

int64_t nowNs() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
}

constexpr uint64_t kMostCampaignBytes = 1 << 20;

client::Result<model::CampaignText> readCampaign(const RunOptions& options) {
    const auto unusable = [&](const std::string& why) {
        return localFailure(client::FailureCode::kInvalid, "Cannot use this campaign", why);
    };
    model::CampaignText out;
    auto text = readAtMost(options.file, kMostCampaignBytes);
    if (!text.ok())
        return unusable(std::string(text.status().message()) +
                        "; name a campaign file, such as resources/campaigns/storm.toml");
    out.text = *std::move(text);
    out.fileName = options.file;
    out.seed = options.seed;
    out.allowLasting = options.allowLasting;
    if (options.duration.empty()) return out;
    const auto ms = model::parseDuration(options.duration);
    if (!ms)
        return unusable("--duration " + options.duration +
                        ": expected a duration such as 60s or 15m");
    out.durationMs = *ms;
    return out;
}

std::string_view wordOf(const model::CampaignView& campaign) {
    return campaign.ended ? enumName(campaign.ended->outcome) : "in_progress";
}

model::Json verdictsJson(const std::vector<model::CampaignVerdict>& verdicts) {
    model::Json out = model::Json::array();
    for (const model::CampaignVerdict& v : verdicts) out.push_back(model::toJson(v));
    return out;
}

model::Json campaignJson(const model::RunState& state, const model::CampaignView& campaign) {
    const auto progress = campaign::progressOf(state, campaign, nowNs());
    return {{"type", "campaign"},
            {"campaign", campaign.started.campaign},
            {"name", campaign.started.name},
            {"outcome", wordOf(campaign)},
            {"why", campaign.ended ? campaign.ended->why : ""},
            {"seed", campaign.started.seed},
            {"elapsed_ms", progress.elapsedMs},
            {"duration_ms", campaign.started.durationMs},
            {"planned", progress.planned},
            {"injected", progress.injected},
            {"skipped", progress.skipped},
            {"open_incidents", progress.openIncidents},
            {"effective_time", progress.effectiveTime},
            {"verdicts", verdictsJson(campaign::judge(state, campaign, nowNs()))}};
}

std::string progressLine(const model::RunState& state, const model::CampaignView& campaign) {
    const auto p = campaign::progressOf(state, campaign, nowNs());
    char text[256];
    std::snprintf(text, sizeof text,
                  "%s of %s  %zu of %zu faults, %zu skipped, %zu acting, %zu incidents open  "
                  "ett %.1f %%  %u/%u replicas",
                  model::humanDuration(p.elapsedMs).c_str(),
                  model::humanDuration(static_cast<double>(campaign.started.durationMs)).c_str(),
                  p.injected, p.planned, p.skipped, p.acting, p.openIncidents,
                  p.effectiveTime * 100, model::contributors(state), state.spec.replicas);
    return (p.stage == campaign::Stage::kSettling ? "settling  " : "") + std::string(text);
}

std::string verdictsText(const std::vector<model::CampaignVerdict>& verdicts) {
    std::vector<std::vector<std::string>> rows{{"CRITERION", "VERDICT", "MEASURED"}};
    for (const model::CampaignVerdict& v : verdicts)
        rows.push_back({std::string(enumName(v.check)), std::string(enumName(v.state)), v.words});
    return table(rows);
}

std::string endText(const model::RunState& state, const model::CampaignView& campaign) {
    const auto p = campaign::progressOf(state, campaign, nowNs());
    char figures[160];
    std::snprintf(figures, sizeof figures, "%zu of %zu faults, effective training time %.1f %%, %s",
                  p.injected, p.planned, p.effectiveTime * 100,
                  model::humanDuration(p.elapsedMs).c_str());
    std::string out = verdictsText(campaign::judge(state, campaign, nowNs())) + "campaign " +
                      std::to_string(campaign.started.campaign) + " (" + campaign.started.name +
                      ") " + std::string(wordOf(campaign)) + ": " + figures + "\n";
    if (campaign.ended && !campaign.ended->why.empty()) out += campaign.ended->why + "\n";
    return out;
}

int codeOf(const model::CampaignView& campaign) {
    const bool failed =
        campaign.ended && campaign.ended->outcome != model::CampaignOutcome::kPassed;
    return failed ? kRunFailed : kOk;
}

/// Until its end; the first Ctrl-C stops the campaign, the second leaves it to the daemon.
int follow(const Cli& cli, Session& session, const std::string& job, uint64_t id) {
    const Interrupts interrupts;
    Follower follower(session.client(), {.job = job, .replay = ""}, cli.json, Shows::kNotable);
    follower.awaitFirst();
    bool stopped = false;
    for (bool over = false;;) {
        if (const auto failure = follower.failure()) return fail(cli, *failure);
        const model::RunState state = follower.state();
        const model::CampaignView* campaign = model::findCampaign(state, id);
        if (campaign != nullptr && campaign->ended) {
            std::printf("%s", cli.json
                                  ? (model::dumpJson(campaignJson(state, *campaign)) + "\n").c_str()
                                  : endText(state, *campaign).c_str());
            return codeOf(*campaign);
        }
        if (over)
            return fail(cli, {client::FailureCode::kServer, "The campaign did not end",
                              "The job is over and its history tells no verdict.",
                              "See bulkheadctl campaign show.", false});
        if (campaign != nullptr && !cli.json) {
            std::printf("%s\n", progressLine(state, *campaign).c_str());
            std::fflush(stdout);
        }
        if (interrupts.count() > 1) return kInterrupted;
        if (interrupts.count() == 1 && !stopped) {
            stopped = true;
            std::fprintf(stderr, "bulkheadctl: stopping the campaign; again to leave it alone\n");
            const auto done = session.await<client::Done>([&](client::Client& c, auto reply) {
                c.stopCampaign(job, id, {}, std::move(reply));
            });
            if (!done.ok()) return fail(cli, done.failure());
        }
        over = follower.tick();
    }
}

int run(const Cli& cli, const RunOptions& options) {
    const auto text = readCampaign(options);
    if (!text.ok()) return fail(cli, text.failure());
    auto session = Session::open(cli);
    if (!session.ok()) return fail(cli, session.failure());
    const auto job = session.value()->job(options.job);
    if (!job.ok()) return fail(cli, job.failure());
    const auto check =
        session.value()->await<model::CampaignPreflight>([&](client::Client& c, auto reply) {
            c.preflight(job.value(), text.value(), std::move(reply));
        });
    if (!check.ok()) return fail(cli, check.failure());
    const model::Preflight& p = check.value().preflight;
    if (options.dryRun && cli.json) std::printf("%s\n", model::toJsonText(check.value()).c_str());
    if (options.dryRun && !cli.json)
        for (const model::PlannedFault& fault : check.value().campaign.plan)
            std::printf("%10s  %s\n", model::humanDuration(static_cast<double>(fault.atMs)).c_str(),
                        model::describe(fault.spec).c_str());
    if (!p.allowed) {
        client::Failure refused = notAllowed(p);
        if (!options.allowLasting && p.refusal.starts_with("not all of it can be undone"))
            refused.remedy = "Add --allow-lasting to accept that, or take it out of the file.";
        return fail(cli, refused);
    }
    if (!cli.json) printPreflight(p);
    if (options.dryRun) return kOk;
    if (!confirmed(options.yes)) return fail(cli, notConfirmed(p));
    const auto id = session.value()->await<uint64_t>([&](client::Client& c, auto reply) {
        c.startCampaign(job.value(), text.value(), {"", p.revision}, std::move(reply));
    });
    if (!id.ok()) return fail(cli, id.failure());
    if (options.detach) {
        if (cli.json)
            std::printf("{\"campaign\":%llu}\n", static_cast<unsigned long long>(id.value()));
        else
            std::printf("campaign %llu goes on in the daemon\n",
                        static_cast<unsigned long long>(id.value()));
        return kOk;
    }
    return follow(cli, *session.value(), job.value(), id.value());
}

int stop(const Cli& cli, const std::string& wanted) {
    auto session = Session::open(cli);
    if (!session.ok()) return fail(cli, session.failure());
    const auto job = session.value()->job(wanted);
    if (!job.ok()) return fail(cli, job.failure());
    const auto state = session.value()->stateOfJob(job.value());
    if (!state.ok()) return fail(cli, state.failure());
    const auto& campaigns = state.value()->campaigns;
    const uint64_t id =
        campaigns.empty() || campaigns.back().ended ? 0 : campaigns.back().started.campaign;
    if (id == 0)
        return fail(
            cli, {client::FailureCode::kNotFound, "There is no campaign to stop",
                  "None goes on in " + job.value() + ".", "See bulkheadctl campaign list.", false});
    const auto done = session.value()->await<client::Done>([&](client::Client& c, auto reply) {
        c.stopCampaign(job.value(), id, {}, std::move(reply));
    });
    if (!done.ok()) return fail(cli, done.failure());
    if (!cli.json) std::printf("campaign %llu stopped\n", static_cast<unsigned long long>(id));
    return kOk;
}

client::Result<client::StatePtr> stateOf(Session& session, const std::string& run) {
    return session.await<client::StatePtr>(
        [&](client::Client& c, auto reply) { c.getState(run, 0, std::move(reply)); });
}

int list(const Cli& cli, const std::string& run) {
    auto session = Session::open(cli);
    if (!session.ok()) return fail(cli, session.failure());
    const auto state = stateOf(*session.value(), run);
    if (!state.ok()) return fail(cli, state.failure());
    std::vector<std::vector<std::string>> rows{
        {"CAMPAIGN", "NAME", "STARTED", "TOOK", "FAULTS", "ETT", "OUTCOME"}};
    for (const model::CampaignView& c : state.value()->campaigns) {
        if (cli.json) {
            std::printf("%s\n", model::dumpJson(campaignJson(*state.value(), c)).c_str());
            continue;
        }
        const auto p = campaign::progressOf(*state.value(), c, nowNs());
        char ett[16];
        std::snprintf(ett, sizeof ett, "%.1f %%", p.effectiveTime * 100);
        rows.push_back({std::to_string(c.started.campaign), c.started.name, dateTime(c.startedNs),
                        model::humanDuration(p.elapsedMs),
                        std::to_string(p.injected) + "/" + std::to_string(p.planned), ett,
                        std::string(wordOf(c))});
    }
    if (!cli.json) std::printf("%s", rows.size() > 1 ? table(rows).c_str() : "no campaigns\n");
    return kOk;
}

int show(const Cli& cli, const std::string& run, uint64_t id, const std::string& html) {
    auto session = Session::open(cli);
    if (!session.ok()) return fail(cli, session.failure());
    const auto found = stateOf(*session.value(), run);
    if (!found.ok()) return fail(cli, found.failure());
    const model::RunState& state = *found.value();
    const model::CampaignView* campaign = id != 0                   ? model::findCampaign(state, id)
                                          : state.campaigns.empty() ? nullptr
                                                                    : &state.campaigns.back();
    if (campaign == nullptr)
        return fail(cli, {client::FailureCode::kNotFound, "There is no such campaign",
                          "The run " + run + " has " + std::to_string(state.campaigns.size()) +
                              " campaigns.",
                          "See bulkheadctl campaign list.", false});
    if (!html.empty()) {
        const std::string name = run == "latest" ? state.spec.name : run;
        const absl::Status written =
            writeWhole(html, campaign::reportHtml(state, *campaign, name, nowNs()));
        if (!written.ok())
            return fail(cli, {client::FailureCode::kInvalid, "Cannot write the report",
                              std::string(written.message()), "Choose another place.", false});
    }
    if (cli.json) {
        model::Json out = campaignJson(state, *campaign);
        model::Json faults = model::Json::array();
        for (const campaign::FaultFate& fate : campaign::fatesOf(state, *campaign))
            faults.push_back({{"at_ms", fate.atMs},
                              {"fault", model::formatFault(fate.spec)},
                              {"outcome", fate.fault     ? fate.fault->outcome
                                          : fate.skipped ? "skipped: " + fate.skipped->why
                                                         : ""}});
        out["faults"] = std::move(faults);
        std::printf("%s\n", model::dumpJson(out).c_str());
        return codeOf(*campaign);
    }
    std::vector<std::vector<std::string>> rows{{"FAULT", "AT", "WHAT", "WHAT CAME OF IT"}};
    for (const campaign::FaultFate& fate : campaign::fatesOf(state, *campaign))
        rows.push_back({std::to_string(fate.planned),
                        model::humanDuration(static_cast<double>(fate.atMs)),
                        model::describe(fate.spec),
                        fate.fault     ? fate.fault->endedNs == 0 ? "acting" : fate.fault->outcome
                        : fate.skipped ? "skipped: " + fate.skipped->why
                                       : "-"});
    std::printf("%s\n%s", table(rows).c_str(), endText(state, *campaign).c_str());
    return codeOf(*campaign);
}

void addRun(CLI::App& group, Cli& cli) {
    auto options = std::make_shared<RunOptions>();
    CLI::App* verb = group.add_subcommand("run", "Run a campaign file on a job and follow it");
    verb->add_option("file", options->file, "campaign file (TOML)")->required();
    verb->add_option("-j,--job", options->job, "id of the job [the only one running]");
    verb->add_option("--duration", options->duration, "shorter than the file's, e.g. 60s");
    verb->add_option("--seed", options->seed, "another than the file's");
    verb->add_flag("--allow-lasting", options->allowLasting, "take faults that cannot be undone");
    verb->add_flag("-y,--yes", options->yes, "do not ask");
    verb->add_flag("--dry-run", options->dryRun, "only tell what it would do, fault by fault");
    verb->add_flag("--detach", options->detach, "do not follow it; it goes on in the daemon");
    verb->footer("Ctrl-C stops the campaign and ends its faults; twice leaves it to the daemon.");
    verb->callback(
        [&cli, options] { cli.chosen = [&cli, options] { return run(cli, *options); }; });
}

}  // namespace

void addCampaigns(CLI::App& app, Cli& cli) {
    CLI::App* group = app.add_subcommand("campaign", "Fault campaigns: many faults, one verdict");
    group->require_subcommand(1);
    group->fallthrough();
    addRun(*group, cli);
    auto job = std::make_shared<std::string>();
    CLI::App* verb = group->add_subcommand("stop", "Stop a campaign at once and end its faults");
    verb->add_option("-j,--job", *job, "id of the job [the only one running]");
    verb->callback([&cli, job] { cli.chosen = [&cli, job] { return stop(cli, *job); }; });

    auto listed = std::make_shared<std::string>("latest");
    verb = group->add_subcommand("list", "The campaigns of a run");
    verb->add_option("run", *listed, "id, or latest")->capture_default_str();
    verb->add_option("-f,--file", cli.file, "read this run file instead of asking a daemon");
    verb->callback([&cli, listed] { cli.chosen = [&cli, listed] { return list(cli, *listed); }; });

    auto shown = std::make_shared<std::string>("latest");
    auto id = std::make_shared<uint64_t>(0);
    auto html = std::make_shared<std::string>();
    verb = group->add_subcommand("show", "A campaign's faults and verdicts");
    verb->add_option("run", *shown, "id, or latest")->capture_default_str();
    verb->add_option("-c,--campaign", *id, "its number [the last one]")->check(CLI::PositiveNumber);
    verb->add_option("--html", *html, "write the report to this file, one that needs no other");
    verb->add_option("-f,--file", cli.file, "read this run file instead of asking a daemon");
    verb->callback([&cli, shown, id, html] {
        cli.chosen = [&cli, shown, id, html] { return show(cli, *shown, *id, *html); };
    });
}

}  // namespace bulkhead::cli
