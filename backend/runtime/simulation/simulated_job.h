// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backend/runtime/simulation/control_network.h"
#include "backend/runtime/simulation/data_plane.h"
#include "backend/runtime/simulation/event_queue.h"
#include "backend/runtime/simulation/fault.h"
#include "backend/runtime/simulation/oracle.h"
#include "backend/runtime/simulation/process.h"
#include "backend/runtime/simulation/words.h"

namespace bulkhead::simulation {

/// A whole job in memory and in virtual time: the coordinator's machine, the ranks' machines, and
/// drivers that pretend to be processes, agents, disks and networks. All randomness comes from the
/// seed; the same seed and calls give the same run, event by event. Every event is followed by a
/// look at the invariants; what is broken stands in failures(), "I2: ...".
class SimulatedJob {
  public:
    struct Environment {
        uint32_t nodes = 1;       ///< replica r runs on node r % nodes
        double clockDrift = 0;    ///< at most, either way, by node
        size_t deltaWindow = 40;  ///< steps
        double hashMs = 0.01;     ///< hashing a state takes
        double slowSums = 0;      ///< of sums, leave a device later than it is to take the next
    };
    struct Counts {
        uint64_t events = 0;
        uint64_t faults = 0;
        uint64_t commits = 0;
        uint64_t redone = 0;
        uint64_t starts = 0;  ///< of replicas
        uint64_t fenced = 0;
        ControlNetwork::Counts messages;
    };
    /// Describes each act; called only when somebody listens.
    using Story = std::function<void(MonoNs, const std::string& who, const std::string& what)>;

    SimulatedJob(Options options, uint64_t seed);
    SimulatedJob(Options options, uint64_t seed, Environment environment);
    virtual ~SimulatedJob();

    void start();
    /// Runs events until `done()`, until virtual time passes `limit`, or until something is broken.
    /// True only when done.
    bool runUntil(const std::function<bool()>& done, MonoNs limit);
    void runFor(MonoNs time);

    /// Strikes now, or arms it when it has a trigger. `at` is not looked at.
    void strike(const Fault& fault);
    /// Ends whatever lasts: cuts, storms, slowness, pauses, holds, drains; a coordinator and agents
    /// come back. Ranks that hang for good stay so.
    virtual void healAll();

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
    virtual void killCoordinator(bool losingTail = true);
    virtual void startCoordinator();
    virtual void operate(Operation operation);
    void failNextLayoutMove(int32_t replica) { failMove_.insert(replica); }

    MonoNs now() const { return now_; }
    CoordinatorMachine& coordinator() { return *coordinator_; }
    bool coordinatorUp() const { return machine() != nullptr; }
    uint64_t committed() const { return coordinatorUp() ? machine()->committedStep() : 0; }
    bool finished() const { return finished_; }
    /// Replicas that train.
    size_t training() const;
    /// Every replica trains, every spare follows, all hold the same state, no lease is open but of
    /// the next steps, the pool is empty.
    bool whole() const;
    /// Somebody's state is not what the records give; parity may act at any time.
    bool tainted() const;
    /// Processes that run, of whatever incarnation.
    size_t living() const;
    size_t snapshots() const;  ///< kept by anybody for joiners
    const std::vector<std::string>& failures() const { return failures_; }
    /// Somebody outside found something broken.
    void broken(const char* invariant, std::string detail) { fail(invariant, std::move(detail)); }
    const std::vector<Fact>& facts() const { return facts_; }
    const std::vector<LogEntry>& log() const { return log_; }
    const Oracle& oracle() const { return oracle_; }
    Counts counts() const;
    /// Grows with every event and what it was: equal for equal runs.
    uint64_t digest() const { return digest_; }
    /// State hashes by shard of a living replica; empty when it has none.
    std::vector<uint64_t> stateOf(int32_t replica) const;
    /// It lives, and all its shards hold the last durable step.
    bool holdsLast(int32_t replica) const;
    /// One of its ranks has not got through to the coordinator for as long as that waits for all.
    bool isOutOfReach(int32_t replica) const;
    /// Nothing that was struck has an effect after this time.
    MonoNs struckUntil() const { return struckUntil_; }
    uint64_t appliedBy(int32_t replica) const;
    /// Phase, exchange and oddities of every rank of a replica, for failure messages.
    std::string ranksOf(int32_t replica) const;
    /// Where everybody stands, one line each.
    std::string standing() const;
    uint64_t samplesOfReplicaInLastCommit(int32_t replica) const;
    /// Called for every action of the coordinator before it is carried out.
    std::function<void(const Action&)> onAction;
    /// Called for every action of a rank before it is carried out.
    std::function<void(RankId, const RankAction&)> onRankAction;
    Story story;
    bool keepFacts = true;

    Rng rng;  ///< for whoever drives the job

  protected:
    /// A checkpoint on disk; without its manifest it is none.
    struct Stored {
        std::map<int32_t, StateCopy> parts;  ///< by shard
        bool whole = false;
        bool damaged = false;  ///< a bit of it flipped since
        Hashes hashes() const {
            Hashes out;
            for (const auto& [shard, part] : parts) out.push_back(part.hash());
            return out;
        }
    };
    struct Agent {
        bool up = true;
        bool connected = true;
        uint64_t life = 1;
    };
    enum class Wire { kUp, kDown, kInner };

    // -- simulated_job.cpp
    void at(MonoNs when, EventQueue::Event what) {
        events_.at(std::max(when, now_), std::move(what));
    }
    void fail(const char* invariant, std::string detail);
    void tell(const std::string& who, const std::string& what) {
        if (story) story(now_, who, what);
    }
    size_t index(RankId id) const;
    /// Replicas of the job and its spares.
    size_t places() const { return size_t{options_.replicas} + options_.spares; }
    size_t linkOf(RankId id, Wire wire) const { return 3 * index(id) + static_cast<size_t>(wire); }
    /// Between a leader and another rank of its replica.
    size_t innerLink(RankId a, RankId b) const {
        return linkOf(a.shard == 0 ? b : a, Wire::kInner);
    }
    size_t agentLink(size_t node, bool up) const;
    template <class F>
    void send(size_t link, double fromMs, double toMs, F deliver);

    /// Null while no coordinator lives.
    virtual const CoordinatorMachine* machine() const { return coordinator_.get(); }

    // -- coordinator_driver.cpp
    MonoNs coordinatorClock() const;
    void coordinate(const Input& input);
    void afterStall(EventQueue::Event what);
    void endStall();
    bool stale(const Input& input) const;
    void carryOut(Actions actions);
    void carryOut(AppendLog action);
    void checkRollback(const LogLineage& to);
    void checkLeaves(int32_t replica, const std::string& why);
    void checkPace();
    void sync(uint64_t upTo);
    void inventory(MonoNs until, uint64_t life);
    void findCheckpoints();
    void sent(const SendReplica& action);
    void written(LogEntry entry);
    void wakeAt(MonoNs local);
    void recordFact(Fact fact);

    // -- agent_driver.cpp
    size_t homeOf(int32_t replica) const {
        return static_cast<size_t>(replica) % environment_.nodes;
    }
    size_t nodeOf(int32_t replica) const;
    template <class F>
    void forProcesses(size_t node, F f);
    void tryStarts();
    void startProcess(RankId id, uint32_t incarnation, size_t node);
    Process& makeProcess(RankId id, uint32_t incarnation, size_t node);
    /// Rate of the node's clock.
    double nodeRate(size_t node) const;
    void beat(RankId id, uint32_t incarnation);
    void stopProcesses(size_t node, int32_t replica, uint32_t incarnation, bool kill);
    virtual void killAgent(size_t node, MonoNs forTime, bool silent);
    virtual void agentBack(size_t node, uint64_t life);
    void agentReports(size_t node);
    void fromAgent(size_t node, Input input);
    void suspectLater(RankId id, uint32_t incarnation);
    virtual void crashNode(size_t node, MonoNs forTime);
    /// The part of a process's death that no agent has to tell.
    void end(Process& rank, int signal, bool silent);
    virtual void die(Process& rank, int signal, bool silent = false);

    // -- rank_driver.cpp
    Process* live(RankId id, uint32_t incarnation) const;
    Process* live(RankId id) const;
    Oracle::Living finder() const {
        return [this](RankId id, uint32_t incarnation) { return live(id, incarnation); };
    }
    void connect(Process& rank);
    void connectLater(Process& rank, double fromMs, double toMs);
    virtual void disconnect(Process& rank, bool noticed);
    void up(Process& rank, ToCoordinator message);
    Process* carrierOf(const Process& rank) const;
    void down(RankId to, uint32_t incarnation, const SharedInput& message);
    void give(RankId id, uint32_t incarnation, const RankInput& input);
    void give(RankId id, uint32_t incarnation, const SharedInput& input);
    void step(Process& rank, const RankInput& input);
    void checkOrphan(const Process& rank, const ExitRank* exit);
    void exitSoon(const Process& rank);
    bool mustIgnore(Process& rank, const RankInput& input);
    void carryOut(Process& rank, RankActions actions);
    template <class F>
    void train(Process& rank, double fromMs, double toMs, F task);
    void toLeader(Process& rank, ToLeader message);
    void fold(Process& leader, const ToLeader& part);

    // -- training_driver.cpp
    void build(Process& rank, const BuildReplica& a);
    void begin(Process& rank, BeginStep a);
    void computeDone(Process& rank);
    void abort(Process& rank, const AbortExchange& a);
    void drop(Process& rank);
    void apply(Process& rank, const ApplyCommit& a);
    void hashState(Process& rank, uint64_t step);
    void update(Process& rank, const CommitRecord& record, const Sum& sum, bool replayed);
    void takeSnapshot(Process& rank, uint64_t step);
    void writeCheckpoint(Process& rank, uint64_t step);
    void removeCheckpoints(const std::vector<std::string>& paths);
    const CommitRecord* recordOf(const StateCopy& state) const;
    void fetch(Process& rank, BeginFetch a);
    void pullLater(Process& rank, double fromMs, double toMs);
    Process* source(const Process& rank, const Member& member) const;
    void pull(Process& rank);
    void replay(Process& rank, const CommitRecord& record, int round);
    void replayExchanged(Process& rank, const CommitRecord& record);
    void judge(Process& rank, uint64_t step);
    void moveLayout(Process& rank, uint64_t layout);
    void layOut(Process& rank, uint64_t layout);
    void settle(Process& rank, const SettleLayout& a);
    void exchange(Process& rank);
    virtual void exchanged(Process& rank, const ExchangeId& id, const Sum& sum, bool overflow);
    /// One bucket arrived of an exchange that does not complete.
    virtual void landed(Process& rank, size_t bucket, uint64_t value) {
        rank.reduced[bucket] = value;
    }
    virtual void accuse(Process& rank, const ExchangeId& id, EvidenceKind kind,
                        const std::vector<int32_t>& peers);

    // -- fault_driver.cpp
    /// Faults that wait for their moment, or have just met it, do not strike any more.
    void disarm();
    void strikeArmed(Trigger moment, RankId about);
    void strikeArmed(const Action& action);
    void strikeArmed(RankId id, const RankAction& action);
    virtual void hang(Process& rank) { rank.hung = true; }
    virtual void wake(Process& rank);
    virtual void damaged(const std::string& /*path*/) {}  ///< a checkpoint's files
    void workOff(Process& rank);
    void strikeNow(const Fault& fault);
    void strikeNetwork(const Fault& fault);
    /// Strikes the controller's program; a second controller exists only with the real programs.
    virtual void strikeDrivers(const Fault& fault);
    void strikeOperator(const Fault& fault);
    void breakConnection(RankId rank);
    void breakLossy(RankId rank);
    virtual void leaderBack(RankId rank);
    void damageCheckpoint();
    virtual void flip(Process& rank);

    Options options_;
    Environment environment_;
    uint64_t seed_;
    MonoNs now_ = kSecond;
    EventQueue events_;
    uint64_t eventCount_ = 0;
    uint64_t digest_ = 0;
    uint64_t faultCount_ = 0;
    uint64_t redone_ = 0;
    std::vector<MonoNs> redoneAt_;  ///< of the last second, with nobody lost
    uint64_t starts_ = 0;
    Operation operation_;  ///< the last one
    ControlNetwork network_;
    DataPlane plane_;
    Oracle oracle_;
    Rng diskRng_;
    Rng agentRng_;

    std::unique_ptr<CoordinatorMachine> coordinator_;
    uint64_t term_ = 0;
    uint64_t life_ = 0;  ///< of the coordinator: what was said to an older one is lost
    MonoNs lifeSince_ = 0;
    std::map<RankId, uint64_t> helloIn_;  ///< the life that had a rank's last one
    MonoNs clockZero_ = 0;
    double coordinatorRate_ = 1;
    MonoNs wakeAt_ = 0;
    MonoNs slowDiskUntil_ = 0;
    MonoNs stalledUntil_ = 0;  ///< the coordinator
    std::vector<EventQueue::Event> stalled_;
    MonoNs struckUntil_ = 0;
    MonoNs syncedAt_ = 0;
    std::vector<LogEntry> log_;  ///< durable
    std::vector<AppendLog> unsynced_;
    std::map<int32_t, uint32_t> waitingStarts_;
    std::map<int32_t, uint32_t>
        stopped_;  ///< by replica: told to its agent, up to this incarnation
    std::map<uint64_t, ExchangeId> announced_;  ///< by step: the last quorum's
    bool finished_ = false;
    bool logLost_ = false;  ///< some of what it had, to a disk that lied

    std::vector<std::unique_ptr<Process>> ranks_;  ///< by index(); null: never started
    /// Processes of older incarnations: dead, or alive on a node whose agent could not be told to
    /// stop them.
    std::vector<std::unique_ptr<Process>> zombies_;
    std::map<int32_t, size_t> placement_;  ///< where else than at home a replica was started last
    std::vector<Agent> agents_;
    std::map<std::string, Stored> checkpoints_;
    std::map<uint64_t, std::vector<int32_t>> placements_;  ///< by layout

    std::vector<Fault> armed_;
    uint64_t disarmed_ = 0;  ///< times
    std::set<std::pair<uint32_t, uint64_t>> poisoned_;
    uint64_t badSamples_ = 0;  ///< ever
    uint64_t notFinite_ = 0;   ///< gradients whose data was not at fault
    std::set<int32_t> cut_;
    std::set<int32_t> failMove_;
    std::set<int32_t> failStart_;
    std::set<int32_t> failFetch_;
    std::set<int32_t> failCheckpoint_;
    std::set<int32_t> flipCopy_;
    /// Replicas told to fetch: they drop the state they hold.
    std::set<int32_t> refetching_;
    /// Connections that lose something, until when; they break when that ends.
    std::map<RankId, MonoNs> lossy_;
    std::vector<std::string> failures_;
    std::vector<Fact> facts_;
};

}  // namespace bulkhead::simulation
