// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "backend/common/types.h"
#include "backend/runtime/protocol/commit_log.h"
#include "backend/runtime/protocol/facts.h"
#include "backend/runtime/protocol/messages.h"
#include "backend/runtime/protocol/options.h"

namespace bulkhead::protocol {

/// One exchange and what is known of its outcome.
struct Ballot {
    std::vector<int32_t> contributors;                  ///< ascending; the entering among them
    std::set<int32_t> entering;                         ///< their completeness counts, no more
    std::set<int32_t> lost;                             ///< of them; their votes no longer count
    std::map<int32_t, ReplicaVote> votes;               ///< of this (step, epoch, attempt)
    std::set<std::pair<int32_t, int32_t>> failedPairs;  ///< lower id first; votes and evidence
};

enum class BallotVerdict {
    kWait,    ///< a survivor has not voted
    kCommit,  ///< every survivor's every shard is complete, and they hold the same sum
    kRedo,    ///< all survivors voted, the sum is not complete everywhere
    kNobody,  ///< no survivor
};

struct BallotResult {
    BallotVerdict verdict = BallotVerdict::kWait;
    bool hopeless = false;      ///< a "no" is in: it cannot commit, end the waiting
    bool nonFiniteSum = false;  ///< kCommit: finite inputs, the sum is not: skip
    std::vector<int32_t> waitingFor;
    std::vector<int32_t> nonFinite;    ///< survivors whose own gradient was not finite
    std::vector<int32_t> disagreeing;  ///< kRedo: complete, but another sum than most
};

/// An open ballot over the members of `quorum`.
Ballot ballotOf(const Quorum& quorum);

/// Reads the ballot. Pure; O(contributors x shards). A complete sum commits even with a contributor
/// that died meanwhile: what it brought is in it.
BallotResult readBallot(const Ballot& ballot);

/// The surviving endpoint that most failed pairs share; on a tie the highest id. nullopt without a
/// pair between survivors.
std::optional<int32_t> mostBlamed(const Ballot& ballot);

/// Learning rate of the `update`-th optimizer update (1, 2, ...): linear warm-up, then a cosine
/// from learningRate to minLearningRate that ends at decaySteps.
double scheduledLearningRate(const Optimizer& optimizer, uint64_t update);

struct RecordInputs {
    uint64_t lineage = 0;
    uint64_t term = 0;
    uint64_t updatesBefore = 0;
    const Quorum* quorum = nullptr;
    const std::vector<double>* gradSquares = nullptr;  ///< by shard, of the undivided sum
    bool nonFiniteSum = false;
};

/// Fixes everything the step does to the model. Divisor: tokens in the sum. The gradient norm is of
/// the mean gradient over all shards.
CommitRecord makeRecord(const RecordInputs& in, const Options& options);

/// Nats per token over all votes; 0 when none carried tokens.
double meanLoss(const std::vector<ReplicaVote>& votes);

/// The fact of a committed step, without commitMs and voteMs, which only the witness of its end
/// knows.
fact::StepCommitted stepLine(const CommitRecord& record, const StepFigures& figures);

/// The figures as the log keeps them: whatever the line can do without is left out.
StepFigures forLog(StepFigures figures);

/// Of the mean gradient, before clipping.
double gradientNorm(const std::vector<double>& gradSquares, double divisor);

uint32_t floatBits(double value);
double fromFloatBits(uint32_t bits);

}  // namespace bulkhead::protocol
