// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "backend/client/failure.h"
#include "backend/model/command.h"
#include "backend/model/event.h"
#include "backend/model/job_spec.h"
#include "backend/model/ledger_audit.h"
#include "backend/model/listing.h"

namespace bulkhead::model {
struct RunState;  // backend/model/run_state.h
}

/// The way into a daemon, shared by the console and bulkheadctl. No Qt, no gRPC, no protobuf in
/// here: model structs go in and out.
///
/// Threads. Every function may be called from any thread and returns at once; nothing blocks.
/// Replies and watch callbacks come on threads of the library, never inside the call that caused
/// them. Callbacks of one watch come one at a time and in order; those of different calls and
/// watches may run at the same time. A callback may call into the client, and may destroy the
/// watch it belongs to; it must not destroy the Client and must not block.
///
/// Lifetime. A Watch must be destroyed before its Client. ~Watch returns when no callback of it
/// runs any more (called from its own callback: when that one is the last). ~Client cancels what is
/// under way, and waits until every outstanding reply has been delivered (as kCancelled).
namespace bulkhead::client {

using SteadyTime = std::chrono::steady_clock::time_point;

struct Options {
    std::string target;     ///< "unix:/path/to/socket" or "host:port"
    std::string tokenFile;  ///< for TCP: first line is sent with every call; empty: none
    std::string who;        ///< recorded as the author of actions, e.g. "anna@console"
    std::chrono::milliseconds deadline{5000};  ///< of every call that is not a watch
    /// Folder of certificates for TCP (backend/access/certificates.h); with ca.pem alone only the
    /// daemon proves who it is. Empty: no TLS.
    std::string certs = {};
    bool insecure = false;  ///< send the token in plain text beyond this machine, where TLS is not
};

/// Makes a mutating call safe to repeat and safe from stale clicks.
struct Mutation {
    std::string requestId;  ///< empty: the client makes one; the same id gets the same answer
    uint64_t expectedRevision = 0;  ///< JobInfo::revision or Preflight::revision; 0: any
};

/// A job as the text of a job file; relative paths in it are resolved against `baseDir`, which is
/// a directory on the daemon's host. `overrides` are "key=value" lines applied on top, spelt as in
/// the file ("replicas=4", "policies.lr=linear").
struct JobText {
    std::string text;
    std::string fileName;  ///< for messages
    std::string baseDir;
    std::vector<std::string> overrides;
    /// Path of a checkpoint manifest, or the id of an earlier run whose last checkpoint counts.
    std::string resumeFrom;
};

enum class ExportWhat { kLedger, kEvents };
enum class ExportFormat { kCsv, kJsonLines };

struct ExportRequest {
    std::string run;
    ExportWhat what = ExportWhat::kLedger;
    ExportFormat format = ExportFormat::kCsv;  ///< events: JSON lines only
    uint64_t fromStep = 0;                     ///< ledger
    uint64_t toStep = 0;                       ///< inclusive; 0: no bound
};

template <class T>
using Reply = std::function<void(Result<T>)>;

using StatePtr = std::shared_ptr<const model::RunState>;

/// Exactly one of them is set.
struct WatchTarget {
    std::string job;
    std::string replay;  ///< id given by openReplay
};

struct WatchHandlers {
    /// The whole state: first of all, after every reconnect, after a seek of a replay, and when
    /// this reader fell behind. Replaces everything shown before.
    std::function<void(StatePtr)> onSnapshot;
    /// Later events, to be applied to the last snapshot in order; sequence numbers continue
    /// without gaps from the snapshot's.
    std::function<void(std::vector<model::Event>)> onEvents;
    /// Replays only: at most ten times a second while it moves, and at once after each order.
    std::function<void(model::ReplayPosition)> onPosition;
    /// The stream broke. The library tries again at `nextAttempt` by itself if `failure.retryable`;
    /// otherwise this is the last callback.
    std::function<void(Failure failure, SteadyTime nextAttempt)> onDisconnected;
};

/// The jobs of a daemon, and with them the state of the connection.
struct JobsHandlers {
    std::function<void(model::ServerInfo)> onConnected;
    /// All jobs; at once after onConnected, then whenever one changes (at most five times a
    /// second).
    std::function<void(std::vector<model::JobInfo>)> onJobs;
    std::function<void(Failure failure, SteadyTime nextAttempt)> onDisconnected;
};

/// A stream that reconnects by itself: first after 200 ms, never later than after 1 s.
class Watch {
  public:
    virtual ~Watch() = default;
    /// Tries at once instead of at `nextAttempt`; no effect while connected.
    virtual void retryNow() = 0;
};

class Client {
  public:
    /// Fails with kInvalid for a target it cannot read, kToken for a token file or certificates it
    /// cannot use, or a token that would cross a network in plain text; it does not connect yet, so
    /// that a client can be made before its daemon runs.
    static Result<std::unique_ptr<Client>> open(Options options);
    virtual ~Client() = default;

    /// Version handshake; kVersion when the two ends cannot work together. Every watch does it
    /// first by itself.
    virtual void handshake(Reply<model::ServerInfo> reply) = 0;

    virtual std::unique_ptr<Watch> watch(WatchTarget target, WatchHandlers handlers) = 0;
    virtual std::unique_ptr<Watch> watchJobs(JobsHandlers handlers) = 0;

    virtual void startJob(model::JobSpec spec, Mutation mutation, Reply<model::JobInfo> reply) = 0;
    virtual void startJob(JobText text, Mutation mutation, Reply<model::JobInfo> reply) = 0;
    virtual void listJobs(Reply<std::vector<model::JobInfo>> reply) = 0;
    virtual void listNodes(Reply<std::vector<model::NodeInfo>> reply) = 0;
    /// Answers with the nodes that there are afterwards. `machineIsOff`, for kForget: ranks of
    /// which nothing is known have ended.
    virtual void changeNode(std::string node, model::NodeChange change, bool machineIsOff,
                            Mutation mutation, Reply<std::vector<model::NodeInfo>> reply) = 0;
    virtual void getJob(std::string job, Reply<model::JobInfo> reply) = 0;
    /// Previews an action or a fault. Always succeeds for a known job: see Preflight::refusal.
    virtual void preflight(std::string job, model::Action action,
                           Reply<model::Preflight> reply) = 0;
    virtual void preflight(std::string job, model::FaultSpec fault,
                           Reply<model::Preflight> reply) = 0;
    /// The reply comes when the action was accepted and recorded, not when its effect is complete.
    virtual void act(std::string job, model::Action action, Mutation mutation,
                     Reply<model::JobInfo> reply) = 0;
    /// The reply is the fault's id, as in FaultInjected and IncidentOpened.
    virtual void inject(std::string job, model::FaultSpec fault, Mutation mutation,
                        Reply<uint64_t> reply) = 0;
    /// Ends a fault that lasts, or cancels one that has not been injected yet.
    virtual void endFault(std::string job, uint64_t fault, Mutation mutation,
                          Reply<Done> reply) = 0;
    /// Previews a campaign, fault by fault.
    virtual void preflight(std::string job, model::CampaignText campaign,
                           Reply<model::CampaignPreflight> reply) = 0;
    /// The reply is the campaign's id; it goes on in the daemon, and its events tell how.
    virtual void startCampaign(std::string job, model::CampaignText campaign, Mutation mutation,
                               Reply<uint64_t> reply) = 0;
    /// Nothing more is injected, and what lasts of it is ended, at once.
    virtual void stopCampaign(std::string job, uint64_t campaign, Mutation mutation,
                              Reply<Done> reply) = 0;
    /// Ends a job; with `checkpoint` after writing one.
    virtual void stopJob(std::string job, bool checkpoint, Mutation mutation,
                         Reply<model::JobInfo> reply) = 0;

    /// Runs of the daemon's history file, newest first; `text` is looked for in id, note, workload
    /// and host. Wherever a run is asked for, "latest" means the newest.
    virtual void listRuns(std::string text, Reply<std::vector<model::RunInfo>> reply) = 0;
    virtual void readEvents(model::EventQuery query, Reply<model::EventPage> reply) = 0;
    /// The state of a run after the event `seq`; 0: after its last.
    virtual void getState(std::string run, uint64_t seq, Reply<StatePtr> reply) = 0;
    /// Tells if a run's ledger adds up and its chain holds; reads all of the run, which takes about
    /// a second for every 5,000 steps, and up to ten minutes.
    virtual void checkLedger(std::string run, Reply<model::LedgerReport> reply) = 0;
    /// Calls `chunk` with pieces of the text, one at a time, then `reply`.
    virtual void exportRun(ExportRequest request, std::function<void(std::string)> chunk,
                           Reply<Done> reply) = 0;
    /// A replay stands at its beginning, paused, until told otherwise. Watch it by its id. It ends
    /// with closeReplay, or a minute after its last watch.
    virtual void openReplay(std::string run, Reply<std::string> reply) = 0;
    /// A move may have to fold much of a run: it has ten minutes, its progress comes as
    /// ReplayPosition::loading, and a later move or closeReplay ends it.
    virtual void controlReplay(std::string replay, model::ReplayControl control,
                               Reply<model::ReplayPosition> reply) = 0;
    virtual void closeReplay(std::string replay, Reply<Done> reply) = 0;
    /// Calls to the daemon, by whom and with what outcome; for administrators.
    virtual void readAudit(model::AuditQuery query, Reply<model::AuditPage> reply) = 0;
    /// Asks the daemon to end, jobs checkpointed; refused unless it is a private one.
    virtual void shutdown(Mutation mutation, Reply<Done> reply) = 0;
};

}  // namespace bulkhead::client
