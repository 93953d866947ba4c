// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "backend/cli/cli.h"
#include "backend/cli/follow.h"
#include "backend/cli/go_on.h"
#include "backend/cli/job_options.h"
#include "backend/cli/session.h"
#include "backend/cli/text.h"
#include "backend/model/event_json.h"
#include "backend/model/names.h"

namespace bulkhead::cli {
namespace {

void printJob(const Cli& cli, const model::JobInfo& job) {
    if (cli.json) {
        std::printf("%s\n", model::toJsonText(job).c_str());
        return;
    }
    std::printf("%s  %s  step %llu  %u/%u replicas%s%s\n", job.id.c_str(),
                std::string(enumName(job.phase)).c_str(), static_cast<unsigned long long>(job.step),
                job.contributors, job.replicas, job.why.empty() ? "" : "  ",
                model::printable(job.why).c_str());
}

int listJobs(const Cli& cli) {
    auto session = Session::open(cli);
    if (!session.ok()) return fail(cli, session.failure());
    const auto jobs = session.value()->await<std::vector<model::JobInfo>>(
        [](client::Client& c, auto reply) { c.listJobs(std::move(reply)); });
    if (!jobs.ok()) return fail(cli, jobs.failure());
    if (jobs.value().empty() && !cli.json) std::printf("no jobs\n");
    for (const model::JobInfo& job : jobs.value()) printJob(cli, job);
    return kOk;
}

client::Failure startCutOff() {
    return {client::FailureCode::kCancelled, "Interrupted before the daemon answered",
            "It gives the job up if it was still checking it, else it starts it all the same.",
            "bulkheadctl jobs says which; bulkheadctl stop --job ID --without-checkpoint ends it.",
            false};
}

int start(const Cli& cli, const client::JobSource& source) {
    const auto read = client::readJob(source);
    if (!read.ok()) return fail(cli, read.failure());
    auto session = Session::open(cli);
    if (!session.ok()) return fail(cli, session.failure());
    const auto from = resumedFrom(*session.value(), source.resume);
    if (!from.ok()) return fail(cli, from.failure());
    client::JobText text = read.value();
    text.resumeFrom = from.value();
    const Interrupts interrupts;
    const auto job = session.value()->awaitUnless<model::JobInfo>(
        interrupts, [&](client::Client& c, auto reply) { c.startJob(text, {}, std::move(reply)); });
    if (!job) return fail(cli, startCutOff());
    if (!job->ok()) return fail(cli, job->failure());
    printJob(cli, job->value());
    return kOk;
}

int status(const Cli& cli, const std::string& wanted) {
    auto session = Session::open(cli);
    if (!session.ok()) return fail(cli, session.failure());
    const auto job = session.value()->job(wanted, true);
    if (!job.ok()) return fail(cli, job.failure());
    const auto state = session.value()->stateOfJob(job.value());
    if (!state.ok()) return fail(cli, state.failure());
    std::printf("%s", cli.json ? (model::toJsonText(*state.value()) + "\n").c_str()
                               : stateText(*state.value()).c_str());
    return kOk;
}

int watch(const Cli& cli, const std::string& wanted, bool everyEvent) {
    auto session = Session::open(cli);
    if (!session.ok()) return fail(cli, session.failure());
    const auto job = session.value()->job(wanted, true);
    if (!job.ok()) return fail(cli, job.failure());
    const Interrupts interrupts;
    Follower follower(session.value()->client(), {.job = job.value(), .replay = ""}, cli.json,
                      everyEvent ? Shows::kEveryEvent : Shows::kSummary);
    while (!follower.tick())
        if (interrupts.count() > 0) return kInterrupted;
    if (const auto failure = follower.failure()) return fail(cli, *failure);
    const auto finished = follower.state().finished;
    return finished && !finished->ok ? fail(cli, runFailed(*finished)) : kOk;
}

}  // namespace

void addJobs(CLI::App& app, Cli& cli) {
    CLI::App* list = app.add_subcommand("jobs", "List the daemon's jobs");
    list->callback([&cli] { cli.chosen = [&cli] { return listJobs(cli); }; });

    auto source = std::make_shared<client::JobSource>();
    CLI::App* verb = app.add_subcommand("start", "Start a job on the daemon");
    addJobOptions(*verb, *source);
    verb->callback([&cli, source] {
        cli.chosen = [&cli, source] {
            source->command = cli.command;
            return start(cli, *source);
        };
    });

    auto job = std::make_shared<std::string>();
    verb =
        app.add_subcommand("status", "A job as it is now: replicas, incidents, what it waits for");
    verb->add_option("job,-j,--job", *job, "id of the job [the only one running]");
    verb->callback([&cli, job] { cli.chosen = [&cli, job] { return status(cli, *job); }; });

    auto everyEvent = std::make_shared<bool>(false);
    auto watched = std::make_shared<std::string>();
    verb = app.add_subcommand("watch", "Follow a job until it ends");
    verb->add_option("job,-j,--job", *watched, "id of the job [the only one running]");
    verb->add_flag("--events", *everyEvent, "every event instead of a summary a second");
    verb->callback([&cli, watched, everyEvent] {
        cli.chosen = [&cli, watched, everyEvent] { return watch(cli, *watched, *everyEvent); };
    });
}

}  // namespace bulkhead::cli
