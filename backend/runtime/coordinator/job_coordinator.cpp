// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/job_coordinator.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/model/command_text.h"
#include "backend/model/event_json.h"
#include "backend/runtime/checkpoint/checkpoint.h"
#include "backend/runtime/coordinator/job_past.h"
#include "backend/runtime/coordinator/run_files.h"
#include "backend/runtime/coordinator/spec_options.h"
#include "spdlog/spdlog.h"

namespace bulkhead::runtime {
namespace {

constexpr MonoNs kCampaignTickNs = 100 * kMillisecond;

}  // namespace

absl::StatusOr<std::unique_ptr<JobCoordinator>> JobCoordinator::create(JobSurroundings around,
                                                                       JobBeginning beginning) {
    std::vector<std::unique_ptr<FileLock>> locks;
    if (auto lock = lockRun(around.files, beginning.dir); lock.ok())
        locks.push_back(*std::move(lock));
    else
        return lock.status();
    auto log = CommitLog::open(around.files, beginning.dir + "/commit.log");
    if (!log.ok()) return log.status();
    protocol::Options options = machineOptions(beginning.spec, around.secret);
    std::vector<protocol::LogEntry> entries =
        atHome(around.files, beginning.dir, log->takeEntries());
    auto recovered =
        protocol::recoverState(entries, options.replicas + options.spares, options.domains);
    if (!recovered.ok()) return recovered.status();
    // Ranks that run may hold what no checkpoint has. Without them nobody rolls back for want of a
    // disk, nor is another folder made in its place.
    if (around.pool.running(beginning.run).empty())
        if (absl::Status s = checkInPlace(around.files, beginning.dir, beginning.spec, entries,
                                          recovered->checkpoints, beginning.settled);
            !s.ok())
            return s;
    if (auto lock = lockCheckpoints(around.files, beginning.spec.checkpointDir); lock.ok())
        locks.push_back(*std::move(lock));
    else
        return lock.status();
    const std::string known = runIdentity(around.files, beginning.dir);
    options.run = !recovered->run.empty() ? recovered->run : !known.empty() ? known : beginning.id;
    if (!known.empty() && known != options.run)
        return absl::DataLossError(
            absl::StrCat(beginning.dir, "/commit.log is another run's (it is of ", options.run,
                         ", this folder of ", known, "): put the file back that was there"));
    options.secretId = around.secretId;
    if (!recovered->secret.empty() && recovered->secret != options.secretId && !beginning.newSecret)
        return absl::UnauthenticatedError(absl::StrCat(
            "the controller had another secret when this run was trained, and its ranks know that "
            "one: put the file control.token back that was there, or, when no rank of the run is "
            "left (SIGTERM: it writes a checkpoint), start the controller once with --new-secret"));
    if (absl::Status s = checkLog(around.files, beginning.dir, beginning.spec, entries, *recovered,
                                  options.run, beginning.past.lastCommit.has_value());
        !s.ok())
        return s;
    // Nobody wants a run to begin again because somebody emptied a file.
    if (recovered->lineage == 0 && beginning.past.lastCommit)
        return absl::DataLossError(
            absl::StrCat(beginning.dir, "/commit.log has nothing of this run, which was at step ",
                         beginning.past.lastCommit->record.step,
                         ": it is empty or another one; put the file back that was there"));
    addPast(*recovered, entries, beginning.past, around.reactor.clock());
    // A disk that lies loses an end, nothing in front of it.
    if (known.empty() && !recovered->lost.empty())
        return absl::DataLossError(absl::StrCat(
            beginning.dir, "/id is missing or damaged, and ", recovered->lost,
            ", or it is another run's; put back the files that were there, or resume from a "
            "checkpoint in a new run"));
    if (known.empty()) {
        if (!entries.empty())
            spdlog::warn(
                "run {}: {}/id is missing or damaged; the run's identity is {}, as its "
                "commit log says",
                beginning.run, beginning.dir, options.run);
        if (absl::Status s = writeIdentity(around.files, beginning.dir, options.run); !s.ok())
            return s;
    }
    beginning.id = options.run;
    options.secret = around.secret.derive("run " + options.run);
    const std::string jobFile = beginning.dir + "/job.json";
    const std::string jobText = model::toJsonText(beginning.spec) + "\n";
    // A file that is right is left alone: a disk that lies would lose it.
    if (const auto there = around.files.read(jobFile); !there.ok() || *there != jobText)
        if (absl::Status s = writeDurably(around.files, jobFile, jobText); !s.ok()) return s;
    if (absl::Status s = around.files.makeFolder(beginning.dir + "/run"); !s.ok()) return s;

    auto faults = loadFaults(around.files, beginning.dir);
    if (!faults.ok()) return faults.status();
    const uint64_t term = recovered->term + 1;

    const bool fresh = recovered->lineage == 0 && beginning.resume.has_value();
    options.corpusHash =
        corpusHashOf(around.files, fresh ? std::vector{*beginning.resume} : recovered->checkpoints);
    protocol::CoordinatorMachine machine =
        fresh ? protocol::CoordinatorMachine(options, term, *beginning.resume)
              : protocol::CoordinatorMachine(options, term, *recovered);
    auto job = std::unique_ptr<JobCoordinator>(
        new JobCoordinator(std::move(around), std::move(beginning), std::move(locks),
                           *std::move(log), std::move(machine), *recovered, std::move(entries)));
    job->faults_.restore(*faults, job->state_);
    job->requests_.merge(job->faults_.requests());
    job->campaigns_.restore(job->faults_.owners());
    return job;
}

JobCoordinator::JobCoordinator(JobSurroundings around, JobBeginning beginning,
                               std::vector<std::unique_ptr<FileLock>> locks, CommitLog log,
                               protocol::CoordinatorMachine machine,
                               const protocol::RecoveredState& past,
                               std::vector<protocol::LogEntry> untold)
    : around_(std::move(around)),
      beginning_(std::move(beginning)),
      locks_(std::move(locks)),
      log_(std::move(log)),
      machine_(std::move(machine)),
      links_([this](RankId rank, uint32_t incarnation,
                    protocol::ToCoordinator m) { received(rank, incarnation, std::move(m)); },
             [this](RankId rank, uint32_t incarnation, const absl::Status& why) {
                 linkClosed(rank, incarnation, why);
             }),
      faults_(beginning_.spec.shards, hands()),
      campaigns_(campaignHands()),
      state_(std::move(beginning_.past)),
      seq_(state_.seq),
      untold_(std::move(untold)),
      lost_(past.lost) {
    recovered_ = past.lineage != 0;
    if (recovered_) report(invariants_.lineage(past.lineage, past.ledger, past.step));
    // Ranks that outlived an earlier coordinator do not describe their model again.
    protocol::ModelDescribed known;
    known.moeLayers = state_.model.moeLayers;
    known.experts = state_.model.experts;
    known.topK = state_.model.topK;
    experts_.describe(known, static_cast<uint32_t>(beginning_.spec.domains.size()));
    routing_.describe(known);
    routing_.ask(state_.captureLeft);
    for (size_t i = 0; i < state_.actions.size(); ++i)
        if (!state_.actions[i].requestId.empty()) requests_.insert(state_.actions[i].requestId);
}

JobCoordinator::~JobCoordinator() {
    *alive_ = false;
    around_.reactor.cancel(wake_);
    around_.reactor.cancel(fleetTimer_);
    around_.reactor.cancel(placementTimer_);
    around_.reactor.cancel(inventoryTimer_);
    around_.reactor.cancel(missTimer_);
    around_.reactor.cancel(campaignTimer_);
    flushLog();
}

void JobCoordinator::begin() {
    startedNs_ = around_.reactor.clock().unixNs();
    if (around_.probe != nullptr && around_.probe->begun) around_.probe->begun(machine_);
    busy_ = true;  // a node that is lost is told of when the machine has begun
    goOnTelling();
    if (beginning_.waited) {
        constexpr const char* kGoesOn = "the run's files can be used again; the job goes on";
        spdlog::info("run {}: {}", beginning_.run, kGoesOn);
        emit(model::JobPhaseChanged{static_cast<model::JobPhase>(machine_.phase()), kGoesOn},
             model::Severity::kNotice);
    }
    if (!beginning_.lost.empty())
        tellLost(absl::StrCat(beginning_.lost,
                              "; it was written anew from the commit log, which "
                              "has the steps and not what happened between them"));
    for (const NodeStatus& node : around_.pool.nodes()) nodeChanged(node, "known already");
    fleetTimer_ = around_.reactor.every(around_.sampleMs * kMillisecond, [this] {
        checkLocks();
        if (!finished_) sampleFleet();
    });
    campaignTimer_ = around_.reactor.every(kCampaignTickNs, [this] {
        if (!finished_) campaigns_.tick();
    });
    const MonoNs join = beginning_.spec.timeouts.joinMs * kMillisecond;
    beganAt_ = around_.reactor.now();
    placementUntil_ = beganAt_ + join;
    missTimer_ = around_.reactor.after(join, [this] { missNodes(); });
    carryOut(machine_.begin(around_.reactor.now()));
    busy_ = false;
    // Ranks that outlived an earlier coordinator.
    for (const auto& [node, running] : around_.pool.running(beginning_.run))
        if (running.pid != 0) rankUp(node, {running.process, running.pid, "", running.gpu});
    feed(protocol::Tick{});
    if (recovered_) takeInventory();
}

void JobCoordinator::feed(protocol::Input input) {
    inputs_.push_back(std::move(input));
    if (busy_) return;
    busy_ = true;
    while (!inputs_.empty()) {
        const protocol::Input next = std::move(inputs_.front());
        inputs_.pop_front();
        if (finished_) continue;
        if (around_.probe != nullptr && around_.probe->input) around_.probe->input(next);
        carryOut(machine_.step(around_.reactor.now(), next));
    }
    busy_ = false;
}

void JobCoordinator::carryOut(protocol::Actions actions) {
    for (const protocol::Action& action : actions) {
        if (finished_) break;  // it failed over one of them: the log ends with that
        if (around_.probe != nullptr && around_.probe->action) around_.probe->action(action);
        std::visit([this](const auto& a) { act(a); }, action);
    }
    if (durable_ != 0) {
        const uint64_t sequence = std::exchange(durable_, 0);
        flushLog();
        if (!finished_) inputs_.emplace_back(protocol::RecordDurable{sequence});
    }
}

void JobCoordinator::act(const protocol::SendReplica& action) {
    if (const auto* welcome = std::get_if<protocol::Welcome>(&action.message)) {
        protocol::Welcome full = *welcome;
        full.jobJson = model::toJsonText(beginning_.spec);
        return links_.sendReplica(action.replica, action.incarnation, full);
    }
    const auto* quorum = std::get_if<protocol::Quorum>(&action.message);
    const size_t ranks =
        quorum != nullptr ? quorum->contributors.size() * beginning_.spec.shards : 0;
    if (const uint32_t tokens = routing_.tokensOf(ranks); tokens > 0) {
        protocol::Quorum asking = *quorum;
        asking.routedTokens = tokens;
        return links_.sendReplica(action.replica, action.incarnation, asking);
    }
    links_.sendReplica(action.replica, action.incarnation, action.message);
}

void JobCoordinator::act(const protocol::SendRank& action) {
    if (const auto* welcome = std::get_if<protocol::Welcome>(&action.message)) {
        protocol::Welcome full = *welcome;
        full.jobJson = model::toJsonText(beginning_.spec);
        return links_.send(action.rank, action.incarnation, full);
    }
    links_.send(action.rank, action.incarnation, action.message);
}

void JobCoordinator::act(const protocol::AppendLog& action) {
    unsynced_.push_back(action.entry);
    if (!action.overlapped) flushLog();
    if (const auto* lineage = std::get_if<protocol::LogLineage>(&action.entry))
        report(invariants_.lineage(lineage->lineage, lineage->ledger, lineage->fromStep));
    if (action.overlapped) durable_ = std::max(durable_, action.sequence);
}

void JobCoordinator::flushLog() {
    if (unsynced_.empty()) return;
    const absl::Status written = log_.append(std::exchange(unsynced_, {}));
    if (!written.ok()) halt(written);
}

/// Another controller can hold the file that took a lock's place: this one writes nothing any more
/// until it holds that file.
void JobCoordinator::checkLocks() {
    const bool stand =
        std::all_of(locks_.begin(), locks_.end(), [](const auto& lock) { return lock->stands(); });
    if (!finished_ && !stand)
        halt(absl::AbortedError(absl::StrCat(
            "a lock in ", beginning_.dir, " or ", beginning_.spec.checkpointDir,
            " was removed, moved or replaced while this controller held it, so that another one "
            "can run the job; put back what was there")));
}

/// A checkpoint that a rank cannot use is damaged if its files are there, and away if not.
absl::Status JobCoordinator::checkCheckpoints(const std::string& unusable) const {
    const auto entries = readLog(around_.files, beginning_.dir);
    const auto manifest = readManifest(around_.files, unusable);
    if (!entries.ok() || (manifest.ok() && checkFiles(around_.files, unusable, *manifest).ok()))
        return absl::OkStatus();
    const auto past = protocol::recoverState(
        *entries, beginning_.spec.replicas + beginning_.spec.spares,
        std::max<uint32_t>(1, static_cast<uint32_t>(beginning_.spec.domains.size())));
    return past.ok() ? checkInPlace(around_.files, beginning_.dir, beginning_.spec, *entries,
                                    past->checkpoints, beginning_.settled)
                     : absl::OkStatus();
}

void JobCoordinator::act(const protocol::FindCheckpoints&) {
    flushLog();
    auto found = checkpointsOnDisk(around_.files, beginning_.dir, beginning_.spec);
    if (!found.ok())
        spdlog::warn("checkpoints that the log does not name cannot be looked for: {}",
                     std::string(found.status().message()));
    if (!finished_)
        inputs_.emplace_back(protocol::CheckpointsFound{
            found.ok() ? *std::move(found) : std::vector<protocol::LogCheckpoint>{}});
}

void JobCoordinator::act(const protocol::WakeAt& action) {
    around_.reactor.cancel(wake_);
    const MonoNs delay = std::max<MonoNs>(0, action.at - around_.reactor.now());
    wake_ = around_.reactor.after(delay, [this] {
        wake_ = 0;
        feed(protocol::Tick{});
    });
}

void JobCoordinator::act(const protocol::Emit& action) {
    tell(action.at, action.fact);
}

void JobCoordinator::act(const protocol::Finished& action) {
    flushLog();
    if (finished_) return;
    finished_ = true;
    // An ended job is listed as long as the controller lives, and holds no file open.
    log_.close();
    locks_.clear();
    for (const Reactor::TimerId timer : {fleetTimer_, wake_, missTimer_, campaignTimer_})
        around_.reactor.cancel(timer);
    spdlog::info("run {} ended: {}", beginning_.run, action.why);
}

/// Stops as if the program had ended: pending work is left to the next coordinator, which reads the
/// log anew, and ranks keep their state until then.
void JobCoordinator::halt(const absl::Status& why) {
    if (finished_) return;
    finished_ = true;
    halted_ = absl::StrCat(std::string(why.message()),
                           absl::IsResourceExhausted(why) ? "; make room" : "",
                           ": the job waits, and goes on by itself");
    for (const Reactor::TimerId timer :
         {fleetTimer_, wake_, placementTimer_, inventoryTimer_, missTimer_, campaignTimer_})
        around_.reactor.cancel(timer);
    spdlog::error("run {}: {}", beginning_.run, halted_);
    emit(model::JobPhaseChanged{model::JobPhase::kWaiting, halted_}, model::Severity::kError);
    if (around_.probe != nullptr && around_.probe->halted) around_.probe->halted();
    if (around_.halted) around_.halted();
}

absl::Status JobCoordinator::act(const model::Action& action, uint64_t expectedRevision,
                                 const std::string& requestId, const std::string& by) {
    if (!halted_.empty()) return absl::ResourceExhaustedError(halted_);
    if (!requestId.empty() && requests_.contains(requestId)) return absl::OkStatus();
    const JobStatus now = status();
    if (expectedRevision != 0 && expectedRevision != now.revision)
        return absl::AbortedError(absl::StrCat("the job has changed since you looked (revision ",
                                               now.revision, ", not ", expectedRevision,
                                               "); look again and repeat if you still mean it"));
    const model::Preflight check = preflight(now, action);
    absl::Status result =
        check.allowed ? absl::OkStatus() : absl::FailedPreconditionError(check.refusal);
    if (result.ok() && (action.kind == model::ActionKind::kCordon ||
                        action.kind == model::ActionKind::kUncordon)) {
        result = around_.pool.cordon(action.node, action.kind == model::ActionKind::kCordon, by);
    } else if (result.ok() && action.kind == model::ActionKind::kCaptureRouting) {
        routing_.ask(action.tokens);
    } else if (result.ok() && action.kind != model::ActionKind::kRuleExperts &&
               action.kind != model::ActionKind::kDismissPlan) {
        protocol::Operation operation;
        operation.requestId = requestId;
        operation.why = absl::StrCat("operator ", by);
        operation.replica = action.replica;
        switch (action.kind) {
            case model::ActionKind::kDrain:
                operation.kind = protocol::OperationKind::kDrain;
                break;
            case model::ActionKind::kHoldRejoin:
                operation.kind = protocol::OperationKind::kHoldRejoin;
                break;
            case model::ActionKind::kReleaseRejoin:
                operation.kind = protocol::OperationKind::kReleaseRejoin;
                break;
            case model::ActionKind::kRestartReplica:
                operation.kind = protocol::OperationKind::kRestartReplica;
                break;
            case model::ActionKind::kPause:
                operation.kind = protocol::OperationKind::kPause;
                break;
            case model::ActionKind::kResume:
                operation.kind = protocol::OperationKind::kResume;
                break;
            case model::ActionKind::kCheckpoint:
                operation.kind = protocol::OperationKind::kCheckpoint;
                break;
            case model::ActionKind::kStop:
                operation.kind = protocol::OperationKind::kStop;
                break;
            case model::ActionKind::kStopNow:
                operation.kind = protocol::OperationKind::kStop;
                operation.checkpoint = false;
                break;
            case model::ActionKind::kChangeLayout:
                operation.kind = protocol::OperationKind::kChangeLayout;
                operation.expertShard = action.expertShard;
                operation.domainShare = action.domainShare;
                operation.predictedRemote = action.predictedRemote;
                break;
            default: {
                operation.kind = protocol::OperationKind::kSetPolicies;
                // The pre-flight has said that it can be read.
                operation.policies =
                    machinePolicies(*model::withPolicy(now.policies, action.policy, action.value));
            }
        }
        answer_.reset();
        feed(operation);
        if (!halted_.empty()) return absl::ResourceExhaustedError(halted_);
        if (answer_ && !answer_->ok) result = absl::FailedPreconditionError(answer_->outcome);
    }
    if (!requestId.empty() && result.ok()) requests_.insert(requestId);
    emit(model::OperatorActed{action, requestId, by,
                              result.ok() ? std::string(model::OperatorActed::kDone)
                                          : std::string(result.message())},
         model::Severity::kNotice);
    return result;
}

absl::Status JobCoordinator::stop(bool checkpoint, const std::string& by) {
    if (finished_ && halted_.empty()) return absl::OkStatus();
    model::Action action;
    action.kind = checkpoint ? model::ActionKind::kStop : model::ActionKind::kStopNow;
    return act(action, 0, "", by);
}

void JobCoordinator::shutDown() {
    if (finished_) return;
    protocol::Operation operation;
    operation.kind = protocol::OperationKind::kStop;
    operation.thisTermOnly = true;
    operation.why = "the daemon ends";
    feed(operation);
}

absl::StatusOr<uint64_t> JobCoordinator::inject(const model::FaultSpec& fault,
                                                uint64_t expectedRevision,
                                                const std::string& requestId,
                                                const std::string& by) {
    const JobStatus now = status();
    if (expectedRevision != 0 && expectedRevision != now.revision)
        return absl::AbortedError(absl::StrCat("the job has changed since you looked (revision ",
                                               now.revision, ", not ", expectedRevision,
                                               "); look again and repeat if you still mean it"));
    if (!requestId.empty() && requests_.contains(requestId))
        return absl::AlreadyExistsError(absl::StrCat("request ", requestId, " was carried out"));
    const model::Preflight check = preflight(now, fault);
    if (!check.allowed) return absl::FailedPreconditionError(check.refusal);
    auto id = faults_.inject(fault, by, machine_.committedStep(), requestId);
    if (id.ok() && !requestId.empty()) requests_.insert(requestId);
    return id;
}

void JobCoordinator::tellLost(const std::string& why) {
    spdlog::error("run {}: history: {}", beginning_.run, why);
    emit(model::JobPhaseChanged{static_cast<model::JobPhase>(machine_.phase()),
                                absl::StrCat("history: ", why)},
         model::Severity::kError);
}

JobStatus JobCoordinator::status() const {
    JobStatus s;
    s.run = beginning_.run;
    s.spec = beginning_.spec;
    s.policies = modelPolicies(machine_.policies(), beginning_.spec.policies);
    s.phase = finished_ ? state_.phase : static_cast<model::JobPhase>(machine_.phase());
    s.why = finished_ ? state_.explanation : machine_.explanation();
    s.pauseOrdered = machine_.pauseOrdered();
    s.revision = machine_.revision();
    s.lineage = machine_.lineage();
    s.term = machine_.term();
    s.step = machine_.committedStep();
    s.checkpoint = machine_.checkpointStep();
    s.startedNs = startedNs_;
    for (const protocol::ReplicaView& r : machine_.replicas()) {
        const auto placed = placed_.find(r.replica);
        s.replicas.push_back(
            {r.replica, r.incarnation, static_cast<model::ReplicaState>(r.state),
             placed == placed_.end() ? std::vector<std::string>() : placed->second.nodes,
             r.releasable, r.alone});
    }
    s.nodes = around_.pool.nodes();
    s.model = state_.model;
    s.expertShard =
        machine_.expertShard().empty() ? state_.model.expertShard : machine_.expertShard();
    s.domainShare = machine_.domainShare();
    s.expertRules = state_.expertRules;
    if (const auto* waiting = model::openProposal(state_)) s.proposedAt = waiting->plan.step;
    return s;
}

}  // namespace bulkhead::runtime
