// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <thread>
#include <utility>

#include "backend/cli/cli.h"
#include "backend/cli/confirm.h"
#include "backend/cli/follow.h"
#include "backend/cli/go_on.h"
#include "backend/cli/job_options.h"
#include "backend/cli/session.h"
#include "backend/cli/text.h"
#include "backend/model/json.h"

namespace bulkhead::cli {
namespace {

namespace fs = std::filesystem;

struct UpOptions {
    client::JobSource job;
    std::string db;
    uint32_t agents = 1;
};

/// True once the history has all of the run: it is written a little after the fact. False when it
/// has not grown for five seconds and still lacks something.
client::Result<bool> awaitHistory(Session& session, const std::string& run, uint64_t seq) {
    constexpr int kLooks = 50;
    uint64_t has = 0;
    for (int i = 0; i < kLooks; ++i) {
        const auto runs = session.await<std::vector<model::RunInfo>>(
            [&](client::Client& c, auto reply) { c.listRuns(run, std::move(reply)); });
        if (!runs.ok()) return runs.failure();
        for (const model::RunInfo& one : runs.value())
            if (one.id == run && one.lastSeq > has) {
                has = one.lastSeq;
                i = 0;
            }
        if (has >= seq) return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return false;
}

client::Failure historyCut(const std::string& file) {
    return {client::FailureCode::kServer, "The history is incomplete",
            file + " could not be written to the end.",
            "Make room where it lies; the training and its checkpoints are not touched by this.",
            false};
}

void printSummary(const Cli& cli, const model::RunState& state, const model::LedgerReport& ledger,
                  bool complete) {
    const uint64_t steps = state.lastCommit ? state.lastCommit->record.step : 0;
    if (cli.json) {
        model::Json json;
        json["type"] = "result";
        json["steps"] = steps;
        json["loss"] = state.lastCommit ? state.lastCommit->loss : 0;
        json["effective_time"] = state.effectiveTime;
        json["faults"] = state.faults.total();
        json["ok"] = state.finished && state.finished->ok && ledger.ok && complete;
        json["history_complete"] = complete;
        json["why"] = state.finished ? state.finished->why : "";
        json["incidents"] = model::Json::array();
        for (const model::IncidentView& i : state.incidents)
            json["incidents"].push_back(model::toJson(i));
        json["ledger"] = model::toJson(ledger);
        std::printf("%s\n", model::dumpJson(json).c_str());
        return;
    }
    std::printf("\n%llu steps, %llu faults, %llu incidents\n",
                static_cast<unsigned long long>(steps),
                static_cast<unsigned long long>(state.faults.total()),
                static_cast<unsigned long long>(state.incidents.total()));
    std::printf("%s", incidentsText(state).c_str());
    std::printf("ledger: %s\n%s", model::ledgerText(ledger).c_str(), findingsText(ledger).c_str());
}

/// Follows the job to its end; interrupted once it stops with a checkpoint, twice without one. The
/// ranks end with it in any case.
void followToEnd(Session& session, Follower& follower, const std::string& job) {
    const Interrupts interrupts;
    const auto stop = [&](const char* words, bool checkpoint) {
        std::fprintf(stderr, "bulkheadctl: %s\n", words);
        (void)session.await<model::JobInfo>([&](client::Client& c, auto reply) {
            c.stopJob(job, checkpoint, {}, std::move(reply));
        });
    };
    bool stopping = false;
    while (!follower.tick()) {
        if (session.daemon()->ended()) return;
        if (interrupts.count() > 1) return stop("given up", false);
        if (interrupts.count() == 1 && !std::exchange(stopping, true))
            stop("stopping with a checkpoint; once more to give up", true);
    }
}

/// Its step is that of the checkpoint from which another run can go on; 0: there is none.
client::Failure cannotGoOn(const model::JobInfo& left, const UpOptions& options) {
    const std::string job = options.job.file.empty() ? "" : " " + options.job.file;
    const std::string resume =
        left.step == 0 ? "Mend that"
                       : "Mend that, or go on from its last checkpoint: bulkheadctl up" + job +
                             " --db " + options.db + " --resume " + left.id;
    return {client::FailureCode::kInvalid, "The run " + left.id + " cannot be gone on with",
            left.why + ".", resume + "; or name another --db for a new run.", false};
}

/// A run that was stopped is not gone on with by itself: who meant that one learns how.
void sayHowToGoOn(Session& session) {
    const auto newest = newestRun(session);
    if (!newest.ok() || !newest.value()) return;
    const model::RunInfo& run = *newest.value();
    std::fprintf(stderr,
                 "bulkheadctl: this is a new run; to go on with %s, which ended at step %llu, add "
                 "--resume %s\n",
                 run.id.c_str(), static_cast<unsigned long long>(run.steps), run.id.c_str());
}

client::Result<model::JobInfo> startOrGoOn(Session& session, const UpOptions& options,
                                           client::JobText job) {
    const auto left = leftUnfinished(session);
    if (!left.ok()) return left.failure();
    const bool failed = left.value() && left.value()->phase == model::JobPhase::kFailed;
    if (failed && options.job.resume.empty()) return cannotGoOn(*left.value(), options);
    if (left.value() && !failed) {
        std::fprintf(stderr,
                     "bulkheadctl: %s: recovered at step %llu; what the command line says of a "
                     "job is for a new one: name another --db for that\n",
                     left.value()->id.c_str(), static_cast<unsigned long long>(left.value()->step));
        return *left.value();
    }
    if (options.job.resume.empty()) sayHowToGoOn(session);
    const auto from = resumedFrom(session, job.resumeFrom);
    if (!from.ok()) return from.failure();
    job.resumeFrom = from.value();
    return session.await<model::JobInfo>(
        [&](client::Client& c, auto reply) { c.startJob(job, {}, std::move(reply)); });
}

int up(const Cli& cli, const UpOptions& options) {
    const auto job = client::readJob(options.job);
    if (!job.ok()) return fail(cli, job.failure());
    client::PrivateDaemonOptions wanted;
    wanted.agents = options.agents;
    if (!options.db.empty()) {
        // Checkpoints and commit log stay beside the history: what is cut off can be gone on with.
        wanted.runFile = fs::absolute(options.db).string();
        wanted.stateDir = wanted.runFile + ".state";
    }
    auto daemon = client::PrivateDaemon::create(wanted);
    if (!daemon.ok()) return fail(cli, daemon.failure());
    auto opened = Session::onDaemon(std::move(daemon).value());
    if (!opened.ok()) return fail(cli, opened.failure());
    Session& session = *opened.value();
    const auto started = startOrGoOn(session, options, job.value());
    if (!started.ok()) return fail(cli, started.failure());
    const std::string id = started.value().id;
    model::RunState state;
    std::optional<client::Failure> lost;
    {
        Follower follower(session.client(), {.job = id, .replay = ""}, cli.json, Shows::kSummary);
        followToEnd(session, follower, id);
        state = follower.state();
        lost = follower.failure();
    }
    if (lost) return fail(cli, *lost);
    const auto complete = awaitHistory(session, started.value().run, state.seq);
    if (!complete.ok()) return fail(cli, complete.failure());
    const auto ledger = session.checkLedger(started.value().run);
    if (!ledger.ok()) return fail(cli, ledger.failure());
    printSummary(cli, state, ledger.value(), complete.value());
    session.daemon()->stop();
    if (!state.finished) return kInterrupted;
    if (!state.finished->ok) return fail(cli, runFailed(*state.finished));
    if (!complete.value()) return fail(cli, historyCut(wanted.runFile));
    return ledger.value().ok ? kOk : kRunFailed;
}

}  // namespace

void addUp(CLI::App& app, Cli& cli) {
    auto options = std::make_shared<UpOptions>();
    CLI::App* verb = app.add_subcommand(
        "up", "Run a job on a daemon of its own to its end, with a live summary");
    addJobOptions(*verb, options->job);
    verb->add_option("--db", options->db,
                     "history file; what a run needs to go on after a crash lies in FILE.state");
    verb->add_option("--agents", options->agents, "nodes to stand up on this machine")
        ->check(CLI::Range(1, 64));
    verb->callback([&cli, options] {
        cli.chosen = [&cli, options] {
            options->job.command = cli.command;
            return up(cli, *options);
        };
    });
}

}  // namespace bulkhead::cli
