// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <thread>

#include "backend/cli/cli.h"
#include "backend/cli/confirm.h"
#include "backend/cli/follow.h"
#include "backend/cli/job_options.h"
#include "backend/cli/session.h"
#include "backend/cli/text.h"
#include "backend/client/ledger_check.h"
#include "backend/model/json.h"

namespace bulkhead::cli {
namespace {

namespace fs = std::filesystem;

struct UpOptions {
    client::JobSource job;
    std::string db;
    uint32_t agents = 1;
};

/// The ledger once the history has all of the run; it is written a little after the fact.
client::Result<client::LedgerReport> ledgerOf(Session& session, const std::string& run,
                                              uint64_t seq) {
    constexpr int kTries = 50;
    for (int i = 0; i < kTries; ++i) {
        const auto runs = session.await<std::vector<model::RunInfo>>(
            [&](client::Client& c, auto reply) { c.listRuns(run, std::move(reply)); });
        if (!runs.ok()) return runs.failure();
        bool complete = false;
        for (const model::RunInfo& one : runs.value())
            complete = complete || (one.id == run && one.lastSeq >= seq);
        if (complete) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return session.checkLedger(run);
}

void printSummary(const Cli& cli, const model::RunState& state,
                  const client::LedgerReport& ledger) {
    const uint64_t steps = state.lastCommit ? state.lastCommit->record.step : 0;
    if (cli.json) {
        model::Json json;
        json["type"] = "result";
        json["steps"] = steps;
        json["loss"] = state.lastCommit ? state.lastCommit->loss : 0;
        json["effective_time"] = state.effectiveTime;
        json["faults"] = state.faults.total();
        json["ok"] = state.finished && state.finished->ok && ledger.ok();
        json["incidents"] = model::Json::array();
        for (const model::IncidentView& i : state.incidents)
            json["incidents"].push_back(model::toJson(i));
        json["ledger"] = ledger.json();
        std::printf("%s\n", model::dumpJson(json).c_str());
        return;
    }
    std::printf("\n%s\n", summaryLine(state).c_str());
    if (state.finished && !state.finished->why.empty())
        std::printf("ended: %s\n", state.finished->why.c_str());
    std::printf("%llu steps, %llu faults, %llu incidents\n", static_cast<unsigned long long>(steps),
                static_cast<unsigned long long>(state.faults.total()),
                static_cast<unsigned long long>(state.incidents.total()));
    std::printf("%s", incidentsText(state).c_str());
    std::printf("ledger: %s\n", ledger.text().c_str());
}

/// Follows the job to its end; interrupted once it stops with a checkpoint, twice at once.
void followToEnd(Session& session, Follower& follower, const std::string& job) {
    const Interrupts interrupts;
    bool stopping = false;
    while (!follower.tick()) {
        if (session.daemon()->ended() || interrupts.count() > 1) return;
        if (interrupts.count() == 1 && !stopping) {
            stopping = true;
            std::fprintf(stderr, "bulkheadctl: stopping with a checkpoint; once more to give up\n");
            (void)session.await<model::JobInfo>(
                [&](client::Client& c, auto reply) { c.stopJob(job, true, {}, std::move(reply)); });
        }
    }
}

int up(const Cli& cli, const UpOptions& options) {
    auto text = client::readJob(options.job);
    if (!text.ok()) return fail(text.failure());
    client::JobText job = std::move(text).value();
    client::PrivateDaemonOptions wanted;
    wanted.agents = options.agents;
    wanted.runFile = options.db.empty() ? "" : fs::absolute(options.db).string();
    auto daemon = client::PrivateDaemon::create(wanted);
    if (!daemon.ok()) return fail(daemon.failure());
    if (!options.job.hasFile() && !options.job.sets("checkpoint_dir")) {
        const std::string beside = options.db.empty() ? daemon.value()->stateDir() + "/checkpoints"
                                                      : wanted.runFile + ".checkpoints";
        job.overrides.push_back("checkpoint_dir=" + client::quoted(beside));
    }
    auto opened = Session::onDaemon(std::move(daemon).value());
    if (!opened.ok()) return fail(opened.failure());
    Session& session = *opened.value();
    auto started = session.await<model::JobInfo>(
        [&](client::Client& c, auto reply) { c.startJob(job, {}, std::move(reply)); });
    if (!started.ok()) return fail(started.failure());
    const std::string id = started.value().id;
    model::RunState state;
    std::optional<client::Failure> lost;
    {
        Follower follower(session.client(), {.job = id, .replay = ""}, cli.json, Shows::kSummary);
        followToEnd(session, follower, id);
        state = follower.state();
        lost = follower.failure();
    }
    if (lost) return fail(*lost);
    const auto ledger = ledgerOf(session, started.value().run, state.seq);
    if (!ledger.ok()) return fail(ledger.failure());
    printSummary(cli, state, ledger.value());
    session.daemon()->stop();
    if (!state.finished) return kInterrupted;
    return state.finished->ok && ledger.value().ok() ? kOk : kRunFailed;
}

}  // namespace

void addUp(CLI::App& app, Cli& cli) {
    auto options = std::make_shared<UpOptions>();
    CLI::App* verb = app.add_subcommand(
        "up", "Run a job on a daemon of its own to its end, with a live summary");
    addJobOptions(*verb, options->job);
    verb->add_option("--db", options->db, "history file to write; without it, none is kept");
    verb->add_option("--agents", options->agents, "nodes to stand up on this machine")
        ->check(CLI::Range(1, 64));
    verb->callback([&cli, options] { cli.chosen = [&cli, options] { return up(cli, *options); }; });
}

}  // namespace bulkhead::cli
