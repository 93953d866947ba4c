// SPDX-License-Identifier: Apache-2.0
#include <malloc.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "backend/access/audit_log.h"
#include "backend/daemon/controller_backend.h"
#include "backend/daemon/programs.h"
#include "backend/daemon/recovery_attempts.h"
#include "backend/daemon/roles.h"
#include "backend/daemon/signals.h"
#include "backend/lead/fenced_files.h"
#include "backend/lead/lead.h"
#include "backend/model/job_file.h"
#include "backend/planner/live/drift.h"
#include "backend/runtime/transport/address.h"
#include "backend/service/server.h"

namespace bulkhead::daemon {
namespace {

namespace fs = std::filesystem;

/// Time limit for running jobs to write their last checkpoint.
constexpr std::chrono::seconds kStopLimit{45};
/// Digits of what tells one state directory from another: candidates that do not share theirs do
/// not stand by for each other.
constexpr size_t kClusterDigits = 16;

bool isOver(model::JobPhase phase) {
    return phase == model::JobPhase::kFinished || phase == model::JobPhase::kFailed;
}

/// Out of the way, with what SQLite keeps beside it; a new one is made from the commit logs.
absl::Status setAside(const std::string& file, const std::string& as, const std::string& why) {
    std::string to = file + "." + as;
    for (int n = 2; fs::exists(to); ++n) to = file + "." + as + "-" + std::to_string(n);
    for (const char* suffix : {"", "-wal", "-shm"}) {
        std::error_code error;
        if (!fs::exists(file + suffix)) continue;
        fs::rename(file + suffix, to + suffix, error);
        if (error)
            return absl::PermissionDeniedError(
                file + suffix + " cannot be renamed: " + error.message() + "; move it away");
    }
    spdlog::error("{}; it is kept as {}, and a new one is made from the commit logs", why, to);
    return absl::OkStatus();
}

/// Is the history usable? A file that is not SQLite, or newer than us, must be said before a job
/// starts to train into nowhere. One that is empty or damaged keeps no job from its controller.
absl::Status checkHistory(const Options& options) {
    if (!fs::exists(options.db)) {
        std::error_code error;
        fs::create_directories(fs::path(options.db).parent_path(), error);
        if (error)
            return absl::PermissionDeniedError("the folder of " + options.db + " cannot be made: " +
                                               error.message() + "; choose another with --db");
        return absl::OkStatus();
    }
    if (history::holdsNothing(options.db))
        return setAside(options.db, "empty", options.db + ": empty");
    absl::Status opened = history::RunReader::open(options.db).status();
    if (absl::IsDataLoss(opened))
        return setAside(options.db, "damaged", std::string(opened.message()));
    if (!absl::IsResourceExhausted(opened) && !absl::IsUnavailable(opened)) return opened;
    // A disk that is full now need not be later, and jobs do not wait for their history.
    spdlog::error("{}", std::string(opened.message()));
    return absl::OkStatus();
}

absl::Status checkWorker(const Options& options) {
    const std::string worker = workerOf(options);
    if (::access(worker.c_str(), X_OK) == 0) return absl::OkStatus();
    return absl::NotFoundError("the worker program " + worker +
                               " is not there; build it, or name it with --worker");
}

/// Without what a controller has to serve.
service::ServerOptions serverOptions(const Options& options) {
    service::ServerOptions serving;
    serving.socket = options.socket;
    serving.listen = options.listen;
    serving.tokenFile = options.tokenFile;
    serving.access = options.access;
    serving.certs = options.certs;
    serving.insecure = options.insecure;
    serving.build = BULKHEAD_VERSION;
    return serving;
}

/// Nobody wants to learn that a candidate cannot lead when it has to: what it will use is tried
/// before it stands by.
absl::Status rehearse(const Options& options, const Clock& clock) {
    if (absl::Status s = checkWorker(options); !s.ok()) return s;
    if (auto allow = model::readAllowList(options.allow); !allow.ok()) return allow.status();
    for (const std::string& address : options.controlListen)
        if (auto socket = runtime::listenOn(address); !socket.ok()) return socket.status();
    return service::Server::start(serverOptions(options), clock).status();
}

absl::StatusOr<std::unique_ptr<runtime::Controller>> makeController(const Options& options,
                                                                    FileSystem& files,
                                                                    const Clock& clock,
                                                                    HistorySink& sink) {
    auto token = controllerSecret(options);
    if (!token.ok()) return token.status();
    runtime::ControllerOptions wanted;
    wanted.stateDir = options.stateDir + "/jobs";
    std::error_code ignored;
    fs::create_directories(wanted.stateDir, ignored);
    wanted.files = &files;
    // That socket would lie in a folder that other candidates have too.
    if (options.etcd.empty()) wanted.listen = {"unix:" + options.controlSocket()};
    wanted.listen.insert(wanted.listen.end(), options.controlListen.begin(),
                         options.controlListen.end());
    wanted.token = *std::move(token);
    wanted.newSecret = options.newSecret;
    wanted.workerPath = workerOf(options);
    wanted.version = BULKHEAD_VERSION;
    wanted.proposer = planner::proposal;
    if (absl::Status s = checkWorker(options); !s.ok()) return s;
    return runtime::Controller::create(std::move(wanted), clock, &sink);
}

void recoverJobs(runtime::Controller& controller, HistorySink& sink, const std::string& stateDir) {
    const auto attempts = std::make_shared<RecoveryAttempts>(diskFiles(), stateDir + "/taking-up");
    const auto taken = controller.recover(
        [&sink, attempts](const std::string& run) -> absl::StatusOr<model::RunState> {
            if (absl::Status s = attempts->begin(run); !s.ok()) return s;
            return sink.resume(run);
        },
        sink.withoutEnd());
    attempts->done();
    ::malloc_trim(0);  // of the logs, which were read whole
    if (!taken.ok())
        spdlog::error("{}", std::string(taken.status().message()));
    else
        for (const std::string& run : *taken) spdlog::info("took up {} again", run);
}

/// Every job writes a checkpoint and ends, or has had its time. False: not every job has ended.
bool stopJobs(runtime::Controller& controller, Signals& signals) {
    controller.shutDown();
    const auto limit = std::chrono::steady_clock::now() + kStopLimit;
    while (controller.isEnding())
        // Asked a second time, it ends at once: ranks hold their state and are adopted later.
        if (std::chrono::steady_clock::now() > limit || signals.next(50) != 0) return false;
    const std::vector<runtime::JobStatus> jobs = controller.list();
    return std::all_of(jobs.begin(), jobs.end(),
                       [](const runtime::JobStatus& job) { return isOver(job.phase); });
}

}  // namespace

int runController(const Options& options, Report report) {
    if (absl::Status status = claimStateDir(options); !status.ok()) return report.failed(status);
    Signals signals({SIGTERM, SIGINT, SIGHUP});
    const SystemClock clock;
    std::unique_ptr<lead::Lead> leads;
    std::unique_ptr<lead::FencedFiles> fenced;
    std::function<void()> fence;
    if (!options.etcd.empty()) {
        if (absl::Status s = rehearse(options, clock); !s.ok()) return report.failed(s);
        const auto secret = controllerSecret(options);
        if (!secret.ok()) return report.failed(secret.status());
        auto won = lead::Lead::await({options.etcd, options.etcdCerts,
                                      secretId(*secret).substr(0, kClusterDigits), options.node},
                                     [&signals](std::chrono::milliseconds time) {
                                         return signals.next(static_cast<int>(time.count())) == 0;
                                     });
        if (!won.ok()) return report.failed(won.status());
        if (*won == nullptr) return kOk;
        leads = *std::move(won);
        fence = [&lead = *leads] { lead.check(); };
        fenced = std::make_unique<lead::FencedFiles>(
            lead::FencedFiles::Fence{fence, &lead::Lead::end}, options.stateDir);
        // A leader that is stopped still holds them.
        if (absl::Status s = history::releaseWriters(options.db); !s.ok()) return report.failed(s);
    }
    FileSystem& files = fenced != nullptr ? *fenced : diskFiles();
    if (absl::Status status = checkHistory(options); !status.ok()) return report.failed(status);
    absl::StatusOr<model::JobSpec> spec = model::JobSpec();
    if (!options.job.empty()) {
        spec = model::readJobFile(options.job);
        if (!spec.ok()) return report.failed(spec.status());
    }
    HistorySink sink(options.db, options.stateDir + "/jobs", clock, files, fence);
    auto controller = makeController(options, files, clock, sink);
    if (!controller.ok()) return report.failed(controller.status());
    auto allow = model::readAllowList(options.allow);
    if (!allow.ok()) return report.failed(allow.status());
    ControllerBackend backend(**controller, sink,
                              {*std::move(allow), options.allow, options.stateDir});
    recoverJobs(**controller, sink, options.stateDir);
    const auto audit = access::AuditLog::open(options.auditFile());
    if (!audit.ok()) return report.failed(audit.status());
    service::ServerOptions serving = serverOptions(options);
    if (leads != nullptr) {
        serving.leader = options.node;
        serving.standbys = [&lead = *leads] { return lead.standbys(); };
    }
    serving.audit = audit->get();
    serving.backend = &backend;
    serving.history = options.db;
    serving.runFolders = runFolders(options.stateDir + "/jobs");
    if (options.isPrivate)
        serving.shutdown = [supervised = options.supervised] {
            ::kill(supervised ? ::getppid() : ::getpid(), SIGTERM);
            return absl::OkStatus();
        };
    auto server = service::Server::start(std::move(serving), clock);
    if (!server.ok()) return report.failed(server.status());
    if (!options.job.empty()) {
        const auto started = backend.start(*spec, "", {"", 0, "bulkheadd"});
        if (!started.ok()) return report.failed(started.status());
    }
    if (options.historyKeep > 0) sink.keepOnly(options.historyKeep);
    report.ready();
    for (const std::string& address : (*server)->addresses()) spdlog::info("serving {}", address);
    while (signals.next(-1) == 0) {
    }
    bool clean = true;
    if (options.onTerm == "leave") {
        spdlog::info("leaving: jobs run on and wait for the next controller, for their orphan_ms");
    } else {
        spdlog::info("stopping: jobs write a checkpoint and end");
        clean = stopJobs(**controller, signals);
        if (!clean)
            spdlog::warn(
                "not every job has ended: its ranks run on and wait for the next controller, for "
                "their orphan_ms, and then write a checkpoint");
    }
    sink.flush();
    server->reset();
    controller->reset();
    return clean ? kOk : kFailed;
}

}  // namespace bulkhead::daemon
