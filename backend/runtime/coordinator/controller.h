// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/clock.h"
#include "backend/common/file_system.h"
#include "backend/model/command.h"
#include "backend/model/job_spec.h"
#include "backend/model/run_state.h"
#include "backend/runtime/agent/agent_messages.h"
#include "backend/runtime/coordinator/event_sink.h"
#include "backend/runtime/coordinator/job_status.h"
#include "backend/runtime/coordinator/probe.h"
#include "backend/runtime/coordinator/proposer.h"
#include "backend/runtime/transport/control_channel.h"

namespace bulkhead::runtime {

struct ControllerOptions {
    /// One directory per run below it: <run>/{job.json,term,commit.log,checkpoints/}.
    std::string stateDir;
    /// Addresses for ranks and agents: "unix:/path" and/or "ip:port" (port 0: any free one).
    std::vector<std::string> listen;
    std::string token;       ///< the keys of agents and ranks are derived from it
    bool newSecret = false;  ///< runs that began under another token are taken up nevertheless
    std::string workerPath;  ///< of bulkhead-worker
    std::string version;     ///< of this program, for RunStarted
    uint32_t sampleMs = 500;
    /// A checkpoint folder in which nothing changes for so long is as it will be.
    MonoNs settleNs = 60 * kSecond;
    AgentHeartbeat agentHeartbeat;
    FileSystem* files = &diskFiles();
    Network* network = &socketNetwork();
    /// A reactor that the caller runs; the controller's functions are called on its thread only.
    /// Null: the controller has a thread of its own.
    Reactor* reactor = nullptr;
    uint64_t seed = 0;  ///< of identities and back-off jitter; 0: from the system
    Probe probe;        ///< of every job
    Proposer proposer;  ///< of every job; may be empty
};

struct StartOptions {
    std::string run;  ///< id of the new run; empty: made from the job's name and the time
    /// Path of a checkpoint manifest, or the id of an earlier run of this state directory whose
    /// last checkpoint counts. Empty: initialise from the seed.
    std::string resumeFrom;
    std::vector<std::string> passedOver = {};  ///< checkpoints of that run, as canResume() says
};

/// Observer of one run. Threading as for EventSink: called on the controller's thread, must not
/// block.
class Watcher {
  public:
    virtual ~Watcher() = default;
    /// First call, once: everything so far, folded. Events with seq > state.seq follow.
    virtual void onSnapshot(const model::RunState& state) = 0;
    virtual void onEvent(const model::Event& event) = 0;
};

/// Runs any number of jobs: one coordinator each, agents shared. Owns one thread on which
/// everything happens, unless it is given a reactor. Thread: every public function may be called
/// from any thread except from inside a sink or watcher (it would wait for itself). All return once
/// the thread has acted.
class Controller {
  public:
    /// The fold of the run's events so far, an empty RunState when none are kept: events are
    /// numbered on from its `seq`, incidents and faults from its last. After an error the job runs
    /// without, and history is asked again, as it is for a run whose events the sink has lost():
    /// once it answers, it is told by the commit log what it lacks. Called on the controller's
    /// thread as long as the controller lives.
    using History = std::function<absl::StatusOr<model::RunState>(const std::string& run)>;

    /// Binds the addresses and starts the thread. `sink` gets every event of every run and must
    /// outlive the controller; nullptr: nobody. AlreadyExists when an address is in use (names it),
    /// PermissionDenied or NotFound for the state directory.
    static absl::StatusOr<std::unique_ptr<Controller>> create(ControllerOptions options,
                                                              const Clock& clock, EventSink* sink);
    /// Stops the thread. Ranks and agents are left alone: they wait for the next controller.
    ~Controller();

    /// The addresses really bound, in the order of the options.
    std::vector<std::string> addresses() const;

    /// Starts a job and returns its run id. It waits for agents by itself when there are not enough
    /// slots yet. InvalidArgument for a spec that cannot run, NotFound for an unknown checkpoint.
    absl::StatusOr<std::string> start(const model::JobSpec& spec, const StartOptions& options);

    /// OK when StartOptions::resumeFrom of a job of `spec` may be `from`; NotFound, or what is
    /// wrong with that run, its text, or its newest checkpoint. Of a run the manifests of
    /// checkpoints that are damaged, newest first, behind which a whole one lies. Reads the states
    /// until one is whole: not for the reactor's thread.
    absl::StatusOr<std::vector<std::string>> canResume(const std::string& from,
                                                       const model::JobSpec& spec);

    /// Takes up again every run of the state directory that had not finished when an earlier
    /// controller ended: ranks still alive are re-adopted, else the run resumes from its last
    /// checkpoint in a new lineage. A run that cannot be taken up is left alone, listed as failed
    /// until another resumes from it, and named in the error, after all others were tried. So is
    /// one whose `history` is FailedPrecondition. Returns the ids. `withoutEnd` names the runs
    /// whose history has no RunFinished: those among them that did end are told to the sink.
    absl::StatusOr<std::vector<std::string>> recover(const History& history,
                                                     const std::vector<std::string>& withoutEnd);

    /// Checkpoint (when `checkpoint`), then end the job. Returns at once; RunFinished tells.
    absl::Status stop(const std::string& run, bool checkpoint, const std::string& by);

    /// Every job writes a checkpoint and ends, because this process is about to and its jobs are
    /// not to run on without it. Returns at once.
    /// No order: a job that has not ended by then goes on with the controller that recovers it.
    void shutDown();
    /// After shutDown(): a job still writes its checkpoint or ends. A run that waits for its files
    /// does neither, whatever becomes of them: the next controller takes it up.
    bool isEnding();

    /// `expectedRevision` 0: any. Aborted when the job has moved on since, FailedPrecondition with
    /// the pre-flight's refusal when it is not allowed. Repeating a request id is harmless. If the
    /// job waits for room for its log, a stop, a pause and the end of one are kept in memory and
    /// carried out when there is room; a stop without a checkpoint ends the ranks at once. All else
    /// is ResourceExhausted then.
    absl::Status act(const std::string& run, const model::Action& action, uint64_t expectedRevision,
                     const std::string& requestId, const std::string& by);

    absl::StatusOr<model::Preflight> preflight(const std::string& run, const model::Action& action);
    absl::StatusOr<model::Preflight> preflight(const std::string& run,
                                               const model::FaultSpec& fault);

    /// Returns the fault's id; FaultInjected follows when it takes effect.
    absl::StatusOr<uint64_t> inject(const std::string& run, const model::FaultSpec& fault,
                                    uint64_t expectedRevision, const std::string& requestId,
                                    const std::string& by);
    /// Ends a fault that lasts (hang, slow, cut, delay, fill) or cancels one not yet injected.
    absl::Status endFault(const std::string& run, uint64_t fault);

    /// Predicts a campaign's effect, fault by fault. InvalidArgument for a file that is unreadable.
    absl::StatusOr<model::CampaignPreflight> preflight(const std::string& run,
                                                       const model::CampaignText& campaign);
    /// Returns the campaign's id; its events tell how it goes. Aborted and FailedPrecondition as
    /// act(), AlreadyExists while another goes on.
    absl::StatusOr<uint64_t> startCampaign(const std::string& run,
                                           const model::CampaignText& campaign,
                                           uint64_t expectedRevision, const std::string& requestId,
                                           const std::string& by);
    /// Nothing more is injected, what lasts is ended, at once. NotFound unless it goes on.
    absl::Status stopCampaign(const std::string& run, uint64_t campaign, const std::string& by);

    std::vector<JobStatus> list();
    /// Also of a run without a folder that was given up, which list() does not have any more.
    absl::StatusOr<JobStatus> status(const std::string& run);
    std::vector<NodeStatus> nodes();
    /// AgentPool::cordon() or forget(), for all jobs.
    absl::Status changeNode(const std::string& node, model::NodeChange change, bool machineIsOff,
                            const std::string& by);

    /// Snapshot, then events, without a gap between. `watcher` must live until unwatch() returned.
    absl::Status watch(const std::string& run, Watcher* watcher);
    void unwatch(const std::string& run, Watcher* watcher);

  private:
    class Impl;
    explicit Controller(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace bulkhead::runtime
