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
///
/// Nobody can promise that a disk which lies about its syncs loses nothing. When the log comes back
/// shorter than it was durable, what it still has is the truth from there on (rewind()), and what
/// the manifest of a checkpoint shows that was written behind it (restore()): it has to
/// be what was written, no sample in it is used twice, the job goes on from it and all replicas
/// come to its states. Excused are processes of before, until they are started anew: what they
/// stand at, apply and sum. Their gradients are judged as taints are: whatever they bring to a
/// step that is committed is accounted for.
class Oracle {
  public:
    using Fail = std::function<void(const char* invariant, std::string detail)>;
    /// Answers for a rank that lives; null for any other.
    using Living = std::function<const Process*(RankId, uint32_t incarnation)>;
    Oracle(const Options& options, Fail fail) : options_(options), fail_(std::move(fail)) {}

    // ---- the coordinator
    /// A quorum leaves. `policies` are those in force.
    void announced(const Quorum& quorum, const Policies& policies, const Living& process);
    /// A record goes to the log, not yet durable.
    void decided(const CommitRecord& record, const Living& process);
    /// An entry goes to the log; a crash may still lose it.
    void appended(const LogEntry& entry);
    /// The entry is durable in the log.
    void durable(const LogEntry& entry);
    /// The copies of the state, by shard, behind a checkpoint that the log names.
    void stored(const LogCheckpoint& entry, const std::map<int32_t, StateCopy>& parts);
    /// Its files are removed.
    void removed(const std::string& path);
    /// The log has lost what came behind these entries.
    void rewind(const std::vector<LogEntry>& entries);
    /// The next of the entries that were lost then: a checkpoint shows that their steps happened.
    void restore(const std::vector<LogEntry>& entries);
    void commitSent(const Commit& commit);
    /// A message that reaches the coordinator and is not stale. `term` is the coordinator's.
    void voted(const ReplicaVote& vote, uint64_t term);
    void reported(const Report& report);
    /// Checks the incidents: each loss has one incident, which ends when the replica is back or
    /// stays out, and says what was seen; each attempt at a step is told of.
    void told(const Fact& fact);
    /// The coordinator said that it does what an operator asked for.
    void ordered(const Operation& operation);
    /// On a tie of states: who is to replay the last step, and who came to its own state by it.
    void asked(const ReplayLast& order) { tieAt_ = order.step; }
    void judged(const ReplayVerdict& verdict);
    /// A replica is blamed for a state that differs.
    void blamed(int32_t replica, uint32_t incarnation, const Living& process);
    void flipped() { flipped_ = true; }  ///< a bit of somebody's state
    void expelled(int32_t replica, uint32_t incarnation);
    void started(int32_t replica, uint32_t incarnation);
    /// A coordinator came up from what is durable.
    void recovered(const CoordinatorMachine& coordinator);
    /// After every event of the coordinator that did something.
    void looked(const CoordinatorMachine& coordinator);

    // ---- ranks
    void began(const Process& rank, const Quorum& quorum);  ///< its part in an exchange
    void stood(const Process& rank, bool fresh);  ///< from the seed, a checkpoint or a fetch
    void computed(const Process& rank);           ///< `rank.gradient` of `rank.work`
    void completed(const Process& rank, const ExchangeId& id, bool overflow);
    void applied(const Process& rank, const CommitRecord& record, bool replayed);
    void settled(const Process& rank);  ///< the moved experts count

    uint64_t durableStep() const { return step_; }
    /// The step is committed in that lineage, and no rollback has gone behind it since.
    bool isDescent(uint64_t lineage, uint64_t step) const;
    /// The log has that checkpoint; or says that nobody goes back to it.
    bool isLogged(const std::string& path) const { return checkpoints_.contains(path); }
    bool isDropped(const std::string& path) const { return dropped_.contains(path); }
    /// States were found to differ at or after that step, and not seen to agree since.
    bool isDisputed(uint64_t lineage, uint64_t step) const {
        const auto steps = disputed_.find(lineage);
        return steps != disputed_.end() && steps->second.contains(step);
    }
    /// The contributors of the next step, even one alone, voted for other hashes of that state:
    /// nobody can know which of the two is right.
    bool isContradicted(uint64_t lineage, uint64_t step, uint64_t layout,
                        const Hashes& hashes) const;
    /// Replicas told this coordinator of that state, and the last word of each is of other hashes:
    /// it goes by their word, and does not know who is right either.
    bool isDenied(uint64_t lineage, uint64_t step, uint64_t layout, const Hashes& hashes) const;
    bool wasExpelled(int32_t replica, uint32_t incarnation) const {
        return expelled_.contains({replica, incarnation});
    }
    uint64_t lineage() const { return lineage_; }
    /// Steps are committed in the present lineage.
    bool movedOn() const { return records_.contains({lineage_, step_}); }
    const CommitRecord* last() const;
    uint64_t commits() const { return commits_; }
    uint64_t checkpointed() const { return checkpointed_; }  ///< step of the last one

  private:
    using StepKey = std::pair<uint64_t, uint64_t>;  ///< lineage, step
    enum class Use : uint8_t { kFree, kCommitted, kQuarantined };
    struct Sample {
        Use use = Use::kFree;
        uint64_t step = 0;  ///< when it was used
    };
    /// Checks the invariants after a step.
    struct Truth {
        std::vector<uint64_t> states;  ///< by shard, in `layout`
        uint64_t layout = 0;
        uint64_t updates = 0;
    };
    struct Announcement {
        Quorum quorum;
        double factor = 1;  ///< expected factor of the learning rate
        bool checkParity = true;
    };
    /// The vote of the next step's contributors on a state.
    struct Voted {
        uint64_t layout = 0;
        Hashes hashes;
        size_t contributors = 0;
    };
    /// A joiner's last report, until it contributes.
    struct Follower {
        uint64_t step = 0;
        bool wrong = false;         ///< its hashes never were those of its step
        uint64_t snapshotStep = 0;  ///< of the fetch that its state comes from
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
    void checkBaseline(const CommitRecord& record);
    /// The sum of one shard that this membership must come to.
    Sum sumOf(const std::vector<Contribution>& parts, uint64_t lineage, uint64_t step, size_t shard,
              uint64_t stateBefore) const;
    void checkRecord(const CommitRecord& record, const Truth& before, const std::vector<Sum>& sums);
    void checkParity(const CommitRecord& record);
    void checkDealt(const CommitRecord& record);
    void compared(const LogCommit& commit);
    void checkAgreed(const LogCheckpoint& checkpoint);
    void checkTiling(const LedgerState& ledger);
    /// The stored ledger says what was used up to and including `step`.
    void checkUse(const LedgerState& ledger, uint64_t step, const std::string& whose);
    const Announcement* announcementOf(const CommitRecord& record) const;
    void checkShares(const Quorum& quorum, const Policies& policies);
    void checkMember(const Quorum& quorum, const Contribution& member, bool anyTainted);
    void checkOrders(const Quorum& quorum, const Policies& policies);
    bool policiesCheckParity() const;
    bool anyTainted(const Quorum& quorum, const Living& process) const;
    std::string name(const Process& rank) const;
    void trim();

    const Options& options_;
    Fail fail_;
    uint64_t lineage_ = 0;
    uint64_t step_ = 0;
    std::string link_;  ///< last of the ledger's chain
    uint64_t commits_ = 0;
    uint64_t updates_ = 0;
    uint64_t layout_ = 0;
    uint64_t term_ = 0;
    std::map<StepKey, Truth> truths_;
    std::map<StepKey, CommitRecord> records_;
    std::map<std::string, LogCheckpoint> checkpoints_;
    std::set<std::string> dropped_;  ///< because they are no good
    uint64_t compared_ = 0;          ///< of this lineage: the last step that agreed
    std::map<uint64_t, DisputedSteps> disputed_;
    std::map<StepKey, Voted> votedOn_;
    /// In this coordinator's life, by lineage, step and layout: the last word of each replica.
    std::map<std::tuple<uint64_t, uint64_t, uint64_t>, std::map<int32_t, Hashes>> toldStates_;
    std::map<uint64_t, uint64_t> beganAt_;      ///< by lineage: the step it goes on from
    std::vector<std::vector<Sample>> samples_;  ///< by domain
    std::map<FrameKey, Announcement> announced_;
    std::vector<FrameKey> announcedOrder_;
    /// By the samples as well: a step may be computed again from others, under a later coordinator.
    std::map<std::pair<PartKey, std::string>, Sum> taints_;
    std::map<PartKey, Sum> dealt_;  ///< of the samples that a shard computed itself
    std::set<std::pair<uint64_t, ExchangeId>> overflowed_;  ///< term, id
    /// By rank and incarnation: term and id.
    std::map<std::pair<RankId, uint32_t>, std::set<std::pair<uint64_t, ExchangeId>>> completed_;
    std::map<std::pair<int32_t, uint32_t>, Follower> followers_;
    /// By incarnation: the step that it told last of, following no more.
    std::map<std::pair<int32_t, uint32_t>, uint64_t> ready_;
    std::map<std::pair<int32_t, uint32_t>, uint64_t> contributed_;  ///< last step
    std::set<std::pair<int32_t, uint32_t>> reported_;
    std::map<std::pair<int32_t, uint32_t>, uint64_t> expelled_;  ///< in which term
    std::set<std::pair<int32_t, uint32_t>> drainedOut_;  ///< left because an operator asked for it
    std::map<int32_t, uint32_t> incarnations_;
    std::map<int32_t, uint64_t> startedBy_;  ///< by replica: in which term last
    std::map<std::pair<ExchangeId, int32_t>, ReplicaVote> votes_;
    struct Incident {
        uint64_t id = 0;
        bool inherited = false;  ///< of a coordinator before, which this one may not know of
    };
    std::map<int32_t, Incident> incidents_;  ///< open, by replica
    uint64_t newestIncident_ = 0;
    uint64_t inheritedUpTo_ = 0;  ///< a coordinator may end these again: history had not heard
    std::map<int32_t, std::set<EvidenceKind>> evidence_;  ///< told of it since it was started
    ExchangeId redone_;                                   ///< told of last
    std::optional<LogOrders> orders_;                     ///< as they stand in the log
    // Reasons for which the states of replicas may differ.
    bool flipped_ = false;
    bool rewound_ = false;
    std::map<StepKey, Truth> judged_;  ///< while it rewinds or restores: the truths there were
    std::map<StepKey, Truth> lost_;    ///< the truths there were before it rewound
    std::string lostLink_;             ///< of the last of the lost entries that it restored
    /// Lineage and step that the log's own records end with, while no lineage in it goes on from
    /// what a checkpoint restored: a coordinator that begins then does so from there.
    std::optional<std::pair<uint64_t, uint64_t>> restoredFrom_;
    uint64_t tieAt_ = 0;                                        ///< after this step
    std::map<std::pair<int32_t, uint32_t>, uint64_t> matched_;  ///< its own replay, of which step
    bool paused_ = false;
    std::set<int32_t> held_;
    std::set<int32_t> drained_;
    std::optional<Policies> policies_;
    std::vector<int32_t> expertShard_;
    std::vector<uint32_t> domainShare_;
    uint64_t checkpointed_ = 0;
    std::optional<FrameKey> newest_;  ///< announcement
    uint64_t looks_ = 0;
};

}  // namespace bulkhead::simulation
