// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "backend/runtime/protocol/coordinator_machine.h"
#include "backend/runtime/protocol/invariants.h"
#include "backend/runtime/protocol/parity.h"
#include "backend/runtime/protocol/rank_machine.h"
#include "backend/runtime/protocol/replica_fold.h"

namespace bulkhead::protocol {

/// A whole job in memory and in virtual time: the coordinator's machine, the ranks' machines, and
/// drivers that pretend: gradients are hashes of the state and of the leased ranges, a state is the
/// hash of everything applied to it, messages take random time but keep their order per link. All
/// randomness comes from the seed. Every event is followed by a look at the invariants; what is
/// broken stands in failures().
class SimulatedJob {
  public:
    struct Faults {
        double lostFsync = 0;  ///< share of coordinator deaths that also lose what was not synced
    };

    SimulatedJob(Options options, uint64_t seed);
    ~SimulatedJob();

    void start();
    /// Runs events until `done()`, or until virtual time passes `limit`. False at the limit.
    bool runUntil(const std::function<bool()>& done, MonoNs limit);
    void runFor(MonoNs time);

    void killRank(int32_t replica, int32_t shard);
    void killReplica(int32_t replica);
    void hangRank(int32_t replica, int32_t shard);
    void wakeRank(int32_t replica, int32_t shard);
    void flipState(int32_t replica, int32_t shard);
    void nextGradientNotFinite(int32_t replica);
    /// Every gradient over this sample is not finite, whoever computes it.
    void poison(uint32_t domain, uint64_t sample);
    /// The data plane of a replica fails from now on; its control connections live.
    void cutData(int32_t replica, bool cut);
    void killCoordinator();
    void startCoordinator();
    void operate(Operation operation);
    void failNextLayoutMove(int32_t replica) { failMove_.insert(replica); }

    MonoNs now() const { return now_; }
    CoordinatorMachine& coordinator() { return *coordinator_; }
    bool coordinatorUp() const { return coordinator_ != nullptr; }
    uint64_t committed() const { return coordinator_ ? coordinator_->committedStep() : 0; }
    bool finished() const { return finished_; }
    size_t training() const;
    const std::vector<std::string>& failures() const { return failures_; }
    const std::vector<Fact>& facts() const { return facts_; }
    const std::vector<LogEntry>& log() const { return log_; }
    /// State hashes by shard of a living replica; empty when it has none.
    Hashes stateOf(int32_t replica) const;
    uint64_t appliedBy(int32_t replica) const;
    /// Phase, exchange and oddities of every rank of a replica, for failure messages.
    std::string ranksOf(int32_t replica) const;
    uint64_t samplesOfReplicaInLastCommit(int32_t replica) const;
    /// Called for every action of the coordinator before it is carried out.
    std::function<void(const Action&)> onAction;
    /// Called for every action of a rank before it is carried out.
    std::function<void(RankId, const RankAction&)> onRankAction;

    std::mt19937_64 rng;

  private:
    struct Rank;
    struct Meeting {
        std::vector<int32_t> members;
        std::map<int32_t, std::pair<uint32_t, uint64_t>> parts;  ///< replica -> incarnation, part
        std::set<int32_t> done;
        bool allIn = false;
        uint64_t sum = 0;
    };
    using MeetingKey = std::tuple<uint64_t, ExchangeId, int32_t>;  ///< token, id, shard

    void at(MonoNs when, std::function<void()> what);
    MonoNs soon(double fromMs, double toMs);
    void post(const std::string& link, double fromMs, double toMs, std::function<void()> what);
    void coordinate(const Input& input);
    void syncLog(uint64_t upTo);
    void carryOut(Actions actions);
    void carryOut(Rank& rank, RankActions actions);
    void give(RankId id, uint32_t incarnation, RankInput input);
    void up(RankId from, uint32_t incarnation, ToCoordinator message);
    void down(RankId to, uint32_t incarnation, const ToReplica& message);
    void hello(Rank& rank);
    Rank* live(RankId id, uint32_t incarnation);
    Rank* live(RankId id);
    void die(Rank& rank, int signal);
    void beginExchange(Rank& rank);
    void meet(const MeetingKey& key, int32_t replica);
    void breakMeetings(int32_t replica);
    void complain(const MeetingKey& key, int32_t reporter, int32_t accused);
    void apply(Rank& rank, const CommitRecord& record, uint64_t sum);
    void checkpointPart(Rank& rank, uint64_t step);
    void check();
    void fail(std::string what) { failures_.push_back(std::move(what)); }
    Rank& slot(RankId id);

    struct Event {
        MonoNs when;
        uint64_t order;
        std::function<void()> what;
        bool operator>(const Event& o) const {
            return std::tie(when, order) > std::tie(o.when, o.order);
        }
    };

    Options options_;
    MonoNs now_ = kSecond;
    uint64_t order_ = 0;
    std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
    std::map<std::string, MonoNs> lastOnLink_;
    std::unique_ptr<CoordinatorMachine> coordinator_;
    uint64_t term_ = 0;
    uint64_t life_ = 0;  ///< of the coordinator: messages to an older one are lost
    MonoNs wakeAt_ = 0;
    std::vector<LogEntry> log_;  ///< durable
    std::vector<AppendLog> unsynced_;
    std::map<RankId, std::unique_ptr<Rank>> ranks_;
    std::vector<std::unique_ptr<Rank>> graveyard_;
    std::map<MeetingKey, Meeting> meetings_;
    std::map<std::string, std::map<int32_t, uint64_t>> checkpoints_;
    std::map<std::string, uint64_t> checkpointSteps_;
    std::map<std::pair<uint64_t, uint64_t>, CommitRecord> durable_;
    std::map<std::tuple<uint64_t, uint64_t, int32_t>, uint64_t> stateAfter_;
    InvariantChecker checker_;
    std::set<std::pair<uint32_t, uint64_t>> poisoned_;
    std::set<int32_t> cut_;
    std::set<int32_t> failMove_;
    std::set<int32_t> flipped_;
    std::optional<CommitRecord> lastRecord_;
    bool finished_ = false;
    std::vector<std::string> failures_;
    std::vector<Fact> facts_;
};

}  // namespace bulkhead::protocol
