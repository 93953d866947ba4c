// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "backend/daemon/roles.h"
#include "backend/daemon/signals.h"
#include "backend/history/run_store.h"
#include "backend/service/server.h"

namespace bulkhead::daemon {

namespace {

constexpr std::chrono::seconds kReadsLimit{3};

/// `up` keeps its state in FILE.state, a daemon its history in its state folder.
std::string jobsOf(const Options& options) {
    if (!options.jobs.empty()) return options.jobs;
    const std::string beside = options.run + ".state/jobs";
    if (std::filesystem::exists(beside)) return beside;
    return (std::filesystem::path(options.run).parent_path() / "jobs").string();
}

/// InvalidArgument for a file without any run.
absl::Status checkRuns(const std::string& file) {
    const auto reader = history::RunReader::open(file);
    if (!reader.ok()) return reader.status();
    history::RunFilter one;
    one.limit = 1;
    const auto runs = (*reader)->runs(one);
    if (!runs.ok()) return runs.status();
    if (runs->empty())
        return absl::InvalidArgumentError(file + ": holds no run yet; name another run file");
    return absl::OkStatus();
}

/// A read that takes long, or for ever, keeps the server from ending. Nothing is written here, so
/// none is waited for beyond the time that the others have.
void endInAnyCase() {
    std::thread([] {
        std::this_thread::sleep_for(kReadsLimit);
        ::_exit(kOk);
    }).detach();
}

}  // namespace

int serveRun(const Options& options, Report report) {
    // Before anything is bound: a file that is no history is the likeliest thing to be wrong.
    if (const absl::Status status = checkRuns(options.run); !status.ok())
        return report.failed(status);
    // Only the socket is ours: a daemon with jobs may use the same state directory.
    Options place = options;
    place.supervised = true;
    if (absl::Status status = claimStateDir(place); !status.ok()) return report.failed(status);
    Signals signals({SIGTERM, SIGINT});
    const SystemClock clock;
    service::ServerOptions serving;
    serving.socket = options.socket;
    serving.listen = options.listen;
    serving.tokenFile = options.tokenFile;
    serving.access = options.access;
    serving.certs = options.certs;
    serving.insecure = options.insecure;
    serving.history = options.run;
    serving.runFolders = runFolders(jobsOf(options));
    serving.build = BULKHEAD_VERSION;
    if (options.isPrivate)
        serving.shutdown = [] {
            ::kill(::getpid(), SIGTERM);
            return absl::OkStatus();
        };
    const auto server = service::Server::start(std::move(serving), clock);
    if (!server.ok()) return report.failed(server.status());
    report.ready();
    for (const std::string& address : (*server)->addresses()) spdlog::info("serving {}", address);
    while (signals.next(-1) == 0) {
    }
    endInAnyCase();
    return kOk;
}

}  // namespace bulkhead::daemon
