// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "backend/common/clock.h"
#include "backend/common/types.h"
#include "backend/runtime/protocol/messages.h"
#include "backend/runtime/protocol/options.h"

/// Facts that the coordinator machine emits, rich enough for every event of a run.
/// Plain values, in the order they happened. Enumerators stand in the order of their counterparts
/// in model/event.h (a test of the coordinator's room holds them together). Times are MonoNs of the
/// machine's `now`.
namespace bulkhead::protocol {

enum class ReplicaState {
    kAbsent,
    kBackingOff,
    kStarting,
    kFetching,
    kReplaying,
    kProven,
    kTraining,
    kDrained,
    kHeld,
    kFailed,
};

enum class JobPhase { kStarting, kTraining, kWaiting, kPaused, kStopping, kFinished, kFailed };

enum class IncidentPhaseKind {
    kDetect,
    kDecide,
    kReform,
    kReexchange,
    kRestart,
    kInit,
    kFetch,
    kReplay,
    kJoin,
};

namespace fact {

struct JobPhaseChanged {
    JobPhase phase = JobPhase::kStarting;
    std::string why;  ///< the quorum's explanation when it waits
};

struct LineageOpened {
    uint64_t lineage = 0;
    uint64_t fromStep = 0;
    uint64_t term = 0;
    std::string why;
    std::string link;     ///< of the ledger's chain, here and below
    uint64_t undone = 0;  ///< committed steps after `fromStep` that nobody holds any more
};

struct ReplicaChanged {
    int32_t replica = 0;
    uint32_t incarnation = 0;
    ReplicaState state = ReplicaState::kAbsent;
    uint64_t step = 0;
    std::string why;
};

struct QuorumDecided {
    uint64_t step = 0;
    uint64_t epoch = 0;
    uint32_t attempt = 1;
    uint64_t layout = 0;
    std::vector<Contribution> contributors;
    std::vector<int32_t> joiners;
    double lrFactor = 1;
    std::string explanation;
};

/// `votes` are those of the committed sum, ascending by replica (a contributor that died has none).
/// Hashes and squares by shard are in votes.front(); all agree.
struct StepCommitted {
    CommitRecord record;
    double loss = 0;      ///< nats per token over the sum; 0 when no vote carried tokens
    double gradNorm = 0;  ///< of the mean gradient, before clipping
    double learningRate = 0;
    double stepMs = 0;    ///< commit to commit
    double commitMs = 0;  ///< last vote to durable record
    double tokensPerSecond = 0;
    double effectiveTime = 1;
    std::vector<double> domainLoss;  ///< -1 where a domain had no token
    std::vector<Scalar> scalars;     ///< by name: the mean over tokens of those that told one
    std::vector<ReplicaVote> votes;
    std::vector<double> voteMs;       ///< by vote: from its arrival to the commit
    std::vector<ParityGroup> parity;  ///< one group; empty: this step did not compare
    std::string link;
};

struct StepRedone {
    uint64_t step = 0;
    uint64_t epoch = 0;
    uint32_t attempt = 1;
    std::vector<int32_t> lost;
    uint64_t samplesReturned = 0;
    std::string why;
};

struct EvidenceSeen {
    EvidenceKind kind = EvidenceKind::kProcessExit;
    int32_t replica = -1;
    int32_t shard = -1;
    std::string reporter;
    std::string detail;
};

struct IncidentOpened {
    uint64_t incident = 0;
    int32_t replica = -1;
    uint32_t incarnation = 0;
    uint64_t step = 0;
    EvidenceKind cause = EvidenceKind::kProcessExit;
    std::string title;
};

struct IncidentPhase {
    uint64_t incident = 0;
    IncidentPhaseKind phase = IncidentPhaseKind::kDetect;
    MonoNs begin = 0;
    MonoNs end = 0;
};

struct IncidentClosed {
    uint64_t incident = 0;
    double survivorStallMs = 0;
    double rejoinMs = 0;
    double replicaSeconds = 0;
    uint64_t samplesRedone = 0;
    std::string outcome;
};

struct CatchUpProgress {
    int32_t replica = 0;
    uint32_t incarnation = 0;
    uint64_t snapshotStep = 0;
    uint64_t bytesDone = 0;
    uint64_t bytesTotal = 0;
    uint64_t step = 0;
    std::vector<int32_t> sources;
};

struct PoliciesChanged {
    Policies policies;
    std::string why;
};

struct OperatorAnswered {
    std::string requestId;
    bool ok = true;
    std::string outcome;  ///< "done", or why it was refused
};

struct CheckpointWritten {
    CheckpointDone done;
};

/// Steps (first, last].
struct StepsSuspect {
    uint64_t first = 0;
    uint64_t last = 0;
    std::string why;
};

struct RangeQuarantined {
    SampleRange range;
    std::string why;
    std::string link;
};

struct InvariantBroken {
    std::string invariant;
    std::string detail;
};

struct LayoutChanged {
    uint64_t step = 0;
    uint64_t layout = 0;
    bool ok = true;
    uint64_t bytesMoved = 0;
    std::vector<int32_t> expertShard;
    std::string why;
    std::vector<uint32_t> domainShare;
    double predictedRemote = -1;  ///< as the operation said; -1: it did not
};

/// Interval of state comparisons that the coordinator chose, and the times behind the choice.
struct ParityPaced {
    uint32_t everySteps = 1;
    double hashMs = 0;
    double stepMs = 0;
};
struct ParityDisputed {
    ParityDispute dispute;
    std::string link;
};

struct RunFinished {
    bool ok = true;
    std::string why;
    uint64_t step = 0;
};

}  // namespace fact

using Fact = std::variant<fact::JobPhaseChanged, fact::LineageOpened, fact::ReplicaChanged,
                          fact::QuorumDecided, fact::StepCommitted, fact::StepRedone,
                          fact::EvidenceSeen, fact::IncidentOpened, fact::IncidentPhase,
                          fact::IncidentClosed, fact::CatchUpProgress, fact::PoliciesChanged,
                          fact::OperatorAnswered, fact::CheckpointWritten, fact::StepsSuspect,
                          fact::RangeQuarantined, fact::InvariantBroken, fact::LayoutChanged,
                          fact::RunFinished, fact::ParityDisputed, fact::ParityPaced>;

}  // namespace bulkhead::protocol

namespace bulkhead {
template <>
struct EnumNames<protocol::ReplicaState> {
    static constexpr std::array<std::string_view, 10> kNames = {
        "absent", "backing_off", "starting", "fetching", "replaying",
        "proven", "training",    "drained",  "held",     "failed"};
};
template <>
struct EnumNames<protocol::JobPhase> {
    static constexpr std::array<std::string_view, 7> kNames = {
        "starting", "training", "waiting", "paused", "stopping", "finished", "failed"};
};
template <>
struct EnumNames<protocol::IncidentPhaseKind> {
    static constexpr std::array<std::string_view, 9> kNames = {
        "detect", "decide", "reform", "reexchange", "restart", "init", "fetch", "replay", "join"};
};
}  // namespace bulkhead
