// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/common/clock.h"
#include "backend/runtime/protocol/options.h"

namespace bulkhead::protocol {

/// State of one replica before a quorum.
struct QuorumCandidate {
    enum class Stage {
        kGone,      ///< no processes; will it come back? see `expected`
        kStarting,  ///< processes run or are being started, no Report yet
        kCatchingUp,
        kFollowing,  ///< a joiner that applies the commits as they come
        kUpToDate,   ///< holds the last committed step, or contributes to the one in flight
    };
    int32_t replica = 0;
    Stage stage = Stage::kGone;
    bool expected = true;                ///< false: held or given up: nobody waits for it
    std::optional<std::string> leaving;  ///< reason why the next quorum neither has nor awaits it
    bool suspected = false;  ///< unconfirmed evidence: nothing is decided while there is a suspect
    bool alone = false;      ///< nobody else holds the last commit, and no checkpoint has it
    /// A suspect that may run on a node, of this name if it is known, that has not told.
    std::optional<std::string> unheardOn = {};
    MonoNs lostAt = 0;       ///< a suspect that stays silent is expelled then; 0: it is waited for
    bool awaited = true;     ///< at the start (QuorumState::first) it is waited for
    bool proven = false;     ///< its hash agreed with the contributors'
    bool exchanges = false;  ///< takes part in the exchange of the step in flight
    uint64_t step = 0;       ///< last it is known to hold
    uint32_t ranks = 0;      ///< that it has
    uint32_t heard = 0;      ///< of them said hello to this coordinator
    MonoNs lastBeat = 0;     ///< the oldest of those that were heard; 0: none was
};

struct QuorumState {
    uint64_t step = 0;        ///< to be decided
    uint64_t committed = 0;   ///< last committed step
    MonoNs begun = 0;         ///< job, lineage or term began: the join timeout counts from here
    bool first = false;       ///< nothing was committed yet since `begun`: wait for everybody
    bool paused = false;      ///< by the operator
    uint64_t checkpoint = 0;  ///< step of the newest one; 0: none
    std::vector<QuorumCandidate> candidates;  ///< ascending by replica
    /// A joiner that would not catch up while the others train, and until when it is waited for.
    std::optional<std::pair<int32_t, MonoNs>> waitFor = {};
    std::string givenUpWhy = {};  ///< reason for the last replica that was given up; empty: none is
};

struct QuorumDecision {
    bool issue = false;
    std::vector<int32_t> contributors;  ///< ascending; only when issue
    std::vector<int32_t> entering;  ///< ascending: exchange with the contributors, bring nothing
    std::vector<int32_t> joiners;   ///< those who enter among them
    std::vector<int32_t> reserve;   ///< could contribute or enter, and are not needed
    double lrFactor = 1;
    MonoNs decideAgain = 0;   ///< ask again then; 0: only when something changes
    std::string explanation;  ///< for people: who, and what is waited for
};

/// Decides the members of `state.step`. Pure; O(candidates).
/// A contributor is up to date, or a proven joiner that follows and holds the last commit. While
/// another step is in flight that is not enough: its sum would reach the joiner as a delta, when
/// the contributors compute already, and they would wait for it. So a joiner first enters: it takes
/// part in one exchange with nothing of its own, has that step's sum when all have it, and
/// contributes to the next. Whoever is late for entering, or for what is committed while it does,
/// is late by a step and costs nobody else one. Of more than Options::replicas those who are up to
/// date come first, then those who have entered, then the lower numbers; the others stay in
/// reserve. At the start everybody is waited for until
/// Timeouts::joinMs, later nobody is but `waitFor`. Below min_replicas (at least 1) it waits.
QuorumDecision quorumCompute(MonoNs now, const QuorumState& state, const Options& options);

/// none: 1; linear: contributors/replicas; sqrt: its root. 1 under batch = constant.
double lrFactor(const Options& options, size_t contributors);

/// Samples each of `contributors` computes: equal under shrink; under constant the whole batch is
/// shared out, the first ones getting what does not divide.
std::vector<uint64_t> samplesPerContributor(const Options& options, size_t contributors);

}  // namespace bulkhead::protocol
