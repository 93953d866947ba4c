// SPDX-License-Identifier: Apache-2.0
#include "backend/cli/session.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace bulkhead::cli {

std::string author() {
    const char* user = std::getenv("USER");
    return (user != nullptr ? std::string(user) : std::to_string(::getuid())) + "@bulkheadctl";
}

client::Result<std::unique_ptr<Session>> Session::open(const Cli& cli, const std::string& by) {
    if (!cli.file.empty()) {
        client::PrivateDaemonOptions options;
        options.runFile = std::filesystem::absolute(cli.file).string();
        options.readOnly = true;
        if (!cli.jobsDir.empty()) options.jobsDir = std::filesystem::absolute(cli.jobsDir).string();
        auto daemon = client::PrivateDaemon::create(options);
        if (!daemon.ok()) {
            client::Failure failure = daemon.failure();
            failure.title = "Cannot read " + cli.file;
            failure.code = client::FailureCode::kInvalid;
            return failure;
        }
        return onDaemon(std::move(daemon).value());
    }
    client::Options options;
    options.target = cli.target;
    options.tokenFile = cli.tokenFile;
    options.certs = cli.certs;
    options.insecure = cli.insecure;
    options.who = by.empty() ? author() : by;
    auto client = client::Client::open(std::move(options));
    if (!client.ok()) return client.failure();
    auto session = std::make_unique<Session>();
    session->client_ = std::move(client).value();
    return session;
}

client::Result<std::unique_ptr<Session>> Session::onDaemon(
    std::unique_ptr<client::PrivateDaemon> daemon) {
    client::Options options;
    options.target = daemon->target();
    options.who = author();
    auto client = client::Client::open(std::move(options));
    if (!client.ok()) return client.failure();
    auto session = std::make_unique<Session>();
    session->daemon_ = std::move(daemon);
    session->client_ = std::move(client).value();
    return session;
}

client::Result<std::string> Session::job(const std::string& wanted, bool alsoOver) {
    if (!wanted.empty()) return wanted;
    auto jobs = await<std::vector<model::JobInfo>>(
        [](client::Client& c, auto reply) { c.listJobs(std::move(reply)); });
    if (!jobs.ok()) return jobs.failure();
    std::string only;
    const model::JobInfo* last = nullptr;
    for (const model::JobInfo& job : jobs.value()) {
        if (last == nullptr || job.startedNs > last->startedNs) last = &job;
        if (job.phase == model::JobPhase::kFinished || job.phase == model::JobPhase::kFailed)
            continue;
        if (!only.empty())
            return client::Failure{client::FailureCode::kInvalid, "Which job is meant?",
                                   "Several jobs run: " + only + ", " + job.id + " ...",
                                   "Name one with --job.", false};
        only = job.id;
    }
    if (only.empty() && alsoOver && last != nullptr) return last->id;
    if (only.empty())
        return client::Failure{client::FailureCode::kNotFound, "There is nothing to act on",
                               "No job runs on this daemon.", "Start one: bulkheadctl start FILE.",
                               false};
    return only;
}

client::Result<client::StatePtr> Session::stateOfJob(const std::string& job) {
    struct First {
        std::promise<client::Result<client::StatePtr>> promise;
        std::once_flag once;
        void set(client::Result<client::StatePtr> result) {
            std::call_once(once, [&] { promise.set_value(std::move(result)); });
        }
    };
    auto first = std::make_shared<First>();
    auto future = first->promise.get_future();
    client::WatchHandlers handlers;
    handlers.onSnapshot = [first](client::StatePtr state) { first->set(std::move(state)); };
    handlers.onDisconnected = [first](client::Failure failure, client::SteadyTime) {
        first->set(std::move(failure));
    };
    const auto watch = client_->watch({.job = job, .replay = ""}, std::move(handlers));
    return future.get();
}

client::Result<model::LedgerReport> Session::checkLedger(const std::string& run) {
    return await<model::LedgerReport>(
        [&](client::Client& c, auto reply) { c.checkLedger(run, std::move(reply)); });
}

}  // namespace bulkhead::cli
