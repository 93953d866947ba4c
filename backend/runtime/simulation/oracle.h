// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/runtime/simulation/data_plane.h"
#include "backend/runtime/simulation/process.h"
#include "backend/runtime/simulation/words.h"

namespace bulkhead::simulation {

/// The reference model: from the records in the commit log alone it works out what every shard's
/// state must be after every step, which samples are consumed, and what a record must say; whatever
/// ranks and coordinator do is compared with that. It shares no code with protocol/ but the plain
/// values, so that a bug there cannot hide itself here. Corruption that was injected is known to it
/// and excused where the protocol cannot see it (docs/protocol.md, "Evidence").
class Oracle {
  public:
    using Fail = std::function<void(const char* invariant, std::string detail)>;
    Oracle(const Options& options, Fail fail) : options_(options), fail_(std::move(fail)) {}

    // ---- the coordinator
    /// A quorum leaves. `policies` are those in force.
    void announced(const Quorum& quorum, const Policies& policies);
    /// A record goes to the log, not yet durable. `process` answers for a rank that lives.
    void decided(const CommitRecord& record,
                 const std::function<const Process*(RankId, uint32_t)>& process);
    /// An entry goes to the log; a crash may still lose it.
    void appended(const LogEntry& entry);
    /// What stands in the log for good now.
    void durable(const LogEntry& entry);
    void commitSent(const Commit& commit);
    void voted(const ReplicaVote& vote);
    void expelled(int32_t replica, uint32_t incarnation);
    void started(int32_t replica, uint32_t incarnation);
    /// A coordinator came up from what is durable.
    void recovered(const CoordinatorMachine& coordinator);
    /// After every event of the coordinator that did something.
    void looked(const CoordinatorMachine& coordinator);

    // ---- ranks
    void stood(const Process& rank, bool fresh);  ///< from the seed, a checkpoint or a fetch
    void computed(const Process& rank);           ///< `rank.gradient` of `rank.work`
    void completed(const Process& rank, const ExchangeId& id, bool overflow);
    void applied(const Process& rank, const CommitRecord& record, bool replayed);
    void settled(const Process& rank);  ///< the moved experts count

    uint64_t durableStep() const { return step_; }
    uint64_t lineage() const { return lineage_; }
    const CommitRecord* last() const;
    uint64_t commits() const { return commits_; }

  private:
    using StepKey = std::pair<uint64_t, uint64_t>;  ///< lineage, step
    enum class Use : uint8_t { kFree, kCommitted, kQuarantined };
    struct Sample {
        Use use = Use::kFree;
        uint64_t step = 0;  ///< when it was used
    };
    /// What is true after a step.
    struct Truth {
        std::vector<uint64_t> states;  ///< by shard, in `layout`
        uint64_t layout = 0;
        uint64_t updates = 0;
    };
    struct Announcement {
        Quorum quorum;
        double factor = 1;  ///< what the learning rate must be multiplied with
    };
    struct PartKey {
        uint64_t lineage, step;
        int32_t replica;
        uint32_t incarnation;
        int32_t shard;
        auto operator<=>(const PartKey&) const = default;
    };

    const Truth* truthAt(uint64_t lineage, uint64_t step) const;
    uint64_t stateBefore(const Truth& truth, size_t shard, uint64_t layout) const;
    void commit(const CommitRecord& record);
    void openLineage(const LogLineage& entry);
    void consume(const CommitRecord& record);
    /// The sum of one shard that this membership must come to.
    Sum sumOf(const std::vector<Contribution>& parts, uint64_t lineage, uint64_t step, size_t shard,
              uint64_t stateBefore) const;
    void checkRecord(const CommitRecord& record, const Truth& before, const std::vector<Sum>& sums);
    void checkParity(const CommitRecord& record);
    void checkTiling(const LedgerState& ledger);
    /// The stored ledger says what was used up to and including `step`.
    void checkUse(const LedgerState& ledger, uint64_t step, const std::string& whose);
    const Announcement* announcementOf(const CommitRecord& record) const;
    std::string name(const Process& rank) const;
    void trim();

    const Options& options_;
    Fail fail_;
    uint64_t lineage_ = 0;
    uint64_t step_ = 0;
    uint64_t commits_ = 0;
    uint64_t updates_ = 0;
    uint64_t layout_ = 0;
    uint64_t term_ = 0;
    std::map<StepKey, Truth> truths_;
    std::map<StepKey, CommitRecord> records_;
    std::map<std::string, LogCheckpoint> checkpoints_;
    std::vector<std::vector<Sample>> samples_;  ///< by domain
    std::map<FrameKey, Announcement> announced_;
    std::vector<FrameKey> announcedOrder_;
    uint64_t newestEpoch_ = 0;
    std::map<PartKey, Sum> taints_;
    std::set<std::pair<uint64_t, ExchangeId>> overflowed_;  ///< term, id
    std::map<std::pair<RankId, uint32_t>, std::set<ExchangeId>> completed_;
    std::set<std::pair<int32_t, uint32_t>> expelled_;
    std::map<int32_t, uint32_t> incarnations_;
    std::map<std::pair<ExchangeId, int32_t>, ReplicaVote> votes_;
    std::optional<Policies> policies_;  ///< as ordered last, for good
    uint64_t looks_ = 0;
};

}  // namespace bulkhead::simulation
