// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "backend/runtime/simulation/describe.h"
#include "backend/runtime/simulation/simulated_job_impl.h"

/// The coordinator's surroundings: its clock, its disk, its lives.
namespace bulkhead::simulation {
namespace {

/// After a restart agents have so long to come back before the inventory is taken without them.
constexpr MonoNs kAgentsReturnWithin = 1500 * kMillisecond;

constexpr const char* kName = "coordinator";

/// The incarnation a message is about, and of which replica.
struct About {
    int32_t replica = -1;
    uint32_t incarnation = 0;
};
struct AboutWhom {
    About operator()(const Hello& m) const {
        return {m.endpoint.rank.replica, m.endpoint.incarnation};
    }
    About operator()(const Evidence& m) const { return {m.accused.replica, m.incarnation}; }
    About operator()(const Report& m) const { return {m.replica, m.incarnation}; }
    About operator()(const ReplicaVote& m) const { return {m.replica, m.incarnation}; }
    About operator()(const ReplayVerdict& m) const { return {m.replica, m.incarnation}; }
    About operator()(const SnapshotReady& m) const { return {m.replica, m.incarnation}; }
    About operator()(const FetchProgress& m) const { return {m.replica, m.incarnation}; }
    About operator()(const FetchFailed& m) const { return {m.replica, m.incarnation}; }
    About operator()(const LayoutMoved& m) const { return {m.replica, m.incarnation}; }
    About operator()(const CheckpointDone& m) const { return {m.replica, m.incarnation}; }
    About operator()(const CheckpointUnusable& m) const { return {m.replica, m.incarnation}; }
    template <class T>
    About operator()(const T&) const {
        return {};
    }
};

About aboutOf(const Input& input) {
    if (const auto* r = std::get_if<Received>(&input)) return std::visit(AboutWhom{}, r->message);
    if (const auto* e = std::get_if<RankExited>(&input)) return {e->rank.replica, e->incarnation};
    if (const auto* s = std::get_if<StartFailed>(&input)) return {s->replica, s->incarnation};
    return {};
}

/// A stale input may have one effect: its sender is told that it is stale.
bool harmless(const Action& action, const About& about) {
    if (std::holds_alternative<Emit>(action) || std::holds_alternative<WakeAt>(action)) return true;
    if (const auto* s = std::get_if<StopReplica>(&action))
        return s->replica == about.replica && s->incarnation == about.incarnation;
    if (const auto* s = std::get_if<SendRank>(&action))
        return std::holds_alternative<Expelled>(s->message) && s->incarnation == about.incarnation;
    return false;
}

}  // namespace

MonoNs SimulatedJob::coordinatorClock() const {
    return clockZero_ + static_cast<MonoNs>(static_cast<double>(now_) * coordinatorRate_);
}

void SimulatedJob::wakeAt(MonoNs local) {
    wakeAt_ = local;
    const auto when =
        static_cast<MonoNs>(static_cast<double>(local - clockZero_) / coordinatorRate_) + 2;
    at(when, [this, local, life = life_] {
        if (life == life_ && wakeAt_ == local) coordinate(Tick{});
    });
}

void SimulatedJob::startCoordinator() {
    if (coordinator_) return;
    ++life_;
    lifeSince_ = now_;
    auto state = recoverState(log_, static_cast<uint32_t>(places()), options_.domains);
    if (!state.ok()) return fail("I6", std::string(state.status().message()));
    // Minted in a file of its own, which is synced before anything else happens.
    term_ = std::max(term_, state->term) + 1;
    const bool fresh = state->lineage == 0;
    clockZero_ = static_cast<MonoNs>(diskRng_.below(1000)) * kSecond;
    coordinator_ = std::make_unique<CoordinatorMachine>(options_, term_, *std::move(state));
    tell(kName, absl::StrCat("a coordinator begins, term ", term_));
    oracle_.recovered(*coordinator_);
    carryOut(coordinator_->begin(coordinatorClock()));
    for (size_t n = 0; n < agents_.size(); ++n) {
        agents_[n].connected = false;
        at(now_ + (fresh ? 0 : agentRng_.between(5, 50)),
           [this, n, life = agents_[n].life] { agentBack(n, life); });
    }
    if (!fresh) inventory(now_ + kAgentsReturnWithin, life_);
}

/// The record that led to it; null: it is as a lineage began.
const CommitRecord* SimulatedJob::recordOf(const StateCopy& state) const {
    for (auto it = log_.rbegin(); it != log_.rend(); ++it)
        if (const auto* commit = std::get_if<LogCommit>(&*it);
            commit != nullptr && commit->record.lineage == state.lineage &&
            commit->record.step == state.step)
            return &commit->record;
    return nullptr;
}

/// Judges like the real driver, by the manifests and the log as they are on disk.
void SimulatedJob::findCheckpoints() {
    std::vector<StoredCheckpoint> stored;
    for (const auto& [path, s] : checkpoints_) {
        if (!s.whole) continue;
        const StateCopy& state = s.parts.at(0);
        const CommitRecord* record = recordOf(state);
        if (record == nullptr) continue;
        stored.push_back(
            {path, *record, state.layout, placements_[state.layout], s.hashes(), {}, {}, {}});
    }
    auto judged = judgeStored(log_, static_cast<uint32_t>(places()), options_.domains, stored);
    if (!judged.ok()) return fail("I6", std::string(judged.status().message()));
    coordinate(CheckpointsFound{*std::move(judged)});
}

/// The inventory is done when every agent has told, or after a while without those who do not come.
void SimulatedJob::inventory(MonoNs until, uint64_t life) {
    at(now_ + 10 * kMillisecond, [this, until, life] {
        if (life != life_) return;
        const bool all =
            std::all_of(agents_.begin(), agents_.end(), [](const Agent& a) { return a.connected; });
        if (!all && now_ < until) return inventory(until, life);
        // Behind what they told.
        at(now_ + 5 * kMillisecond, [this, life] {
            if (life == life_) coordinate(InventoryDone{});
        });
    });
}

void SimulatedJob::killCoordinator(bool losingTail) {
    if (!coordinator_) return;
    tell(kName, "dies");
    coordinator_.reset();
    ++life_;
    wakeAt_ = 0;
    waitingStarts_.clear();
    // Written but not synced: a dead process leaves all of it, a dead machine a part from the
    // front.
    size_t kept = unsynced_.size();
    if (losingTail) kept = diskRng_.below(kept + 1);
    for (size_t i = 0; i < kept; ++i) written(std::move(unsynced_[i].entry));
    unsynced_.clear();
    for (Agent& a : agents_) a.connected = false;
    for (const auto* list : {&ranks_, &zombies_})
        for (const auto& rank : *list)
            if (rank && rank->alive) disconnect(*rank, true);
}

bool SimulatedJob::stale(const Input& input) const {
    const About about = aboutOf(input);
    if (about.replica < 0) return false;
    const auto views = machine()->replicas();
    if (about.incarnation < views[static_cast<size_t>(about.replica)].incarnation) return true;
    const auto* received = std::get_if<Received>(&input);
    const auto* vote = received ? std::get_if<ReplicaVote>(&received->message) : nullptr;
    if (vote == nullptr) return false;
    const ExchangeId id{vote->step, vote->epoch, vote->attempt};
    const auto open = announced_.find(machine()->openStep());
    return vote->term != machine()->term() || open == announced_.end() || open->second != id;
}

void SimulatedJob::coordinate(const Input& input) {
    if (!coordinator_ || finished_) return;
    // Its program is stopped: what comes waits, and time passes without it.
    if (now_ < stalledUntil_)
        return afterStall([this, input, life = life_] {
            if (life == life_) coordinate(input);
        });
    const bool old = stale(input);
    if (old) {
        // First whatever is due anyway, so that nothing may follow from the stale input itself.
        carryOut(coordinator_->step(coordinatorClock(), Tick{}));
        if (!coordinator_ || finished_) return;
    } else if (const auto* in = std::get_if<Received>(&input)) {
        if (std::holds_alternative<Hello>(in->message)) helloIn_[in->from] = life_;
        if (const auto* vote = std::get_if<ReplicaVote>(&in->message)) oracle_.voted(*vote, term_);
        if (const auto* report = std::get_if<Report>(&in->message)) oracle_.reported(*report);
        if (const auto* v = std::get_if<ReplayVerdict>(&in->message)) oracle_.judged(*v);
    }
    Actions actions = coordinator_->step(coordinatorClock(), input);
    digest_ = mix(digest_, actions.size());
    if (old)
        for (const Action& a : actions)
            if (!harmless(a, aboutOf(input)))
                fail("I5", absl::StrCat("the coordinator acts on a stale message about r",
                                        aboutOf(input).replica, " #", aboutOf(input).incarnation,
                                        ": ", describe(a)));
    const bool did = !actions.empty();
    carryOut(std::move(actions));
    if (did && coordinator_) oracle_.looked(*coordinator_);
}

/// In the order of their coming.
void SimulatedJob::afterStall(EventQueue::Event what) {
    stalled_.push_back(std::move(what));
    if (stalled_.size() == 1) at(stalledUntil_, [this] { endStall(); });
}

void SimulatedJob::endStall() {
    if (now_ < stalledUntil_) return at(stalledUntil_, [this] { endStall(); });
    for (auto& what : std::exchange(stalled_, {})) what();
}

void SimulatedJob::operate(Operation operation) {
    if (now_ < stalledUntil_) return afterStall([this, operation] { operate(operation); });
    operation_ = operation;
    coordinate(operation);
}

void SimulatedJob::carryOut(Actions actions) {
    for (Action& action : actions) {
        if (onAction) onAction(action);
        if (!armed_.empty()) strikeArmed(action);
        if (!coordinator_) return;  // killed by one of the two
        if (story)
            if (const std::string text = describe(action); !text.empty()) tell(kName, text);
        if (auto* a = std::get_if<SendReplica>(&action)) {
            sent(*a);
            auto message =
                std::make_shared<const RankInput>(FromCoordinator{std::move(a->message)});
            for (int32_t s = 0; s < static_cast<int32_t>(options_.shards); ++s)
                down({a->replica, s}, a->incarnation, message);
        } else if (auto* b = std::get_if<SendRank>(&action)) {
            if (const auto* c = std::get_if<Commit>(&b->message)) oracle_.commitSent(*c);
            down(b->rank, b->incarnation,
                 std::make_shared<const RankInput>(FromCoordinator{std::move(b->message)}));
        } else if (auto* c = std::get_if<AppendLog>(&action)) {
            carryOut(std::move(*c));
        } else if (auto* d = std::get_if<StartReplica>(&action)) {
            oracle_.started(d->replica, d->incarnation);
            ++starts_;
            waitingStarts_[d->replica] = d->incarnation;
            tryStarts();
        } else if (auto* e = std::get_if<StopReplica>(&action)) {
            oracle_.expelled(e->replica, e->incarnation);
            if (const auto it = waitingStarts_.find(e->replica);
                it != waitingStarts_.end() && it->second <= e->incarnation)
                waitingStarts_.erase(it);
            // To every node that may have one; an agent that is away does not hear it.
            for (size_t n = 0; n < agents_.size(); ++n)
                if (agents_[n].connected)
                    send(agentLink(n, false), 0.2, 3,
                         [this, n, r = e->replica, i = e->incarnation, kill = e->kill] {
                             if (agents_[n].up) stopProcesses(n, r, i, kill);
                         });
        } else if (auto* w = std::get_if<WakeAt>(&action)) {
            wakeAt(w->at);
        } else if (auto* f = std::get_if<Emit>(&action)) {
            recordFact(std::move(f->fact));
        } else if (std::holds_alternative<FindCheckpoints>(action)) {
            at(now_ + diskRng_.between(0, 5), [this, life = life_] {
                if (life == life_) findCheckpoints();
            });
        } else if (std::holds_alternative<Finished>(action)) {
            finished_ = true;
        }
    }
}

void SimulatedJob::sent(const SendReplica& a) {
    if (const auto* q = std::get_if<Quorum>(&a.message)) {
        oracle_.announced(*q, machine()->policies(), finder());
        if (!q->contributors.empty()) announced_[q->step] = {q->step, q->epoch, q->attempt};
        std::erase_if(announced_, [&](const auto& a) {
            return a.first + 1 < q->step || a.first > q->step + 1;
        });
    } else if (const auto* c = std::get_if<Commit>(&a.message)) {
        oracle_.commitSent(*c);
    } else if (std::holds_alternative<Fetch>(a.message)) {
        refetching_.insert(a.replica);
    } else if (const auto* l = std::get_if<ChangeLayout>(&a.message)) {
        placements_[l->layout] = l->expertShard;
    } else if (const auto* r = std::get_if<ReplayLast>(&a.message)) {
        oracle_.asked(*r);
    } else if (const auto* v = std::get_if<Leave>(&a.message)) {
        if (machine()->phase() != JobPhase::kStopping) checkLeaves(a.replica, v->why);
    } else if (const auto* e = std::get_if<Expelled>(&a.message)) {
        if (e->why.starts_with("its gradients are not finite")) checkLeaves(a.replica, e->why);
        oracle_.expelled(a.replica, a.incarnation);
    }
}

void SimulatedJob::recordFact(Fact fact) {
    oracle_.told(fact);
    if (const auto* broken = std::get_if<fact::InvariantBroken>(&fact);
        broken != nullptr && !(logLost_ && broken->invariant == "I6"))
        fail("live", broken->invariant + ": " + broken->detail);
    if (const auto* c = std::get_if<fact::ReplicaChanged>(&fact)) {
        if (c->state == ReplicaState::kProven || c->state == ReplicaState::kTraining)
            refetching_.erase(c->replica);
    }
    if (const auto* redone = std::get_if<fact::StepRedone>(&fact)) {
        ++redone_;
        if (redone->lost.empty()) checkPace();
    }
    if (const auto* a = std::get_if<fact::OperatorAnswered>(&fact); a != nullptr && a->ok)
        oracle_.ordered(operation_);
    if (const auto* e = std::get_if<fact::EvidenceSeen>(&fact))
        if (e->kind == EvidenceKind::kParityMismatch)
            oracle_.blamed(e->replica,
                           machine()->replicas()[static_cast<size_t>(e->replica)].incarnation,
                           finder());
    if (keepFacts) facts_.push_back(std::move(fact));
}

/// Attempts that fail although nobody is lost are not made in a tight loop.
void SimulatedJob::checkPace() {
    constexpr size_t kMostInASecond = 20;
    std::erase_if(redoneAt_, [this](MonoNs at) { return at + kSecond < now_; });
    redoneAt_.push_back(now_);
    if (redoneAt_.size() > kMostInASecond)
        fail("pace", absl::StrCat(redoneAt_.size(), " attempts within a second, nobody lost"));
}

// ---- the disk

void SimulatedJob::carryOut(AppendLog action) {
    const uint64_t sequence = action.sequence;
    const bool overlapped = action.overlapped;
    if (const auto* l = std::get_if<LogLineage>(&action.entry)) checkRollback(*l);
    oracle_.appended(action.entry);
    if (const auto* c = std::get_if<LogCommit>(&action.entry)) oracle_.decided(c->record, finder());
    unsynced_.push_back(std::move(action));
    if (!overlapped) return sync(sequence);
    const bool slow = slowDiskUntil_ > now_;
    syncedAt_ = std::max(syncedAt_ + 1,
                         now_ + (slow ? diskRng_.between(20, 300) : diskRng_.between(0.2, 3)));
    at(syncedAt_, [this, sequence, life = life_] {
        if (life != life_) return;
        if (!armed_.empty()) strikeArmed(Trigger::kCommitDurable, {-1, -1});
        if (life != life_) return;
        sync(sequence);
        coordinate(RecordDurable{sequence});
    });
}

/// A rollback goes to the newest checkpoint there is on disk, and not while the state it gives up
/// is whole in some replica that nobody has put out. Where states differed, or contributors voted
/// for other hashes than it has, or replicas told of none but others, the log's count alone.
void SimulatedJob::checkRollback(const LogLineage& to) {
    const bool differ = to.why.starts_with("states differ") || to.why.starts_with("joiners do not");
    for (const auto& [path, s] : checkpoints_) {
        if (!s.whole || s.damaged || oracle_.isDropped(path)) continue;
        const auto& part = s.parts.at(0);
        if (part.step <= to.fromStep) continue;
        const bool tainted = std::any_of(s.parts.begin(), s.parts.end(),
                                         [](const auto& p) { return p.second.tainted; });
        const bool mayBeWrong =
            tainted || differ || oracle_.isDisputed(part.lineage, part.step) ||
            oracle_.isContradicted(part.lineage, part.step, part.layout, s.hashes()) ||
            oracle_.isDenied(part.lineage, part.step, part.layout, s.hashes());
        if (mayBeWrong && !oracle_.isLogged(path)) continue;
        if (oracle_.isDescent(part.lineage, part.step))
            fail("I6",
                 absl::StrCat("the job goes back to step ", to.fromStep,
                              " although a checkpoint of step ", part.step, " is on disk: ", path));
    }
    if (!to.why.starts_with("no replica holds the state")) return;
    for (int32_t r = 0; r < static_cast<int32_t>(places()); ++r)
        if (holdsLast(r) && !isOutOfReach(r))
            fail("I6", absl::StrCat("the job goes back to step ", to.fromStep, " although r", r,
                                    " holds step ", oracle_.durableStep()));
}

bool SimulatedJob::isOutOfReach(int32_t replica) const {
    const double waited = static_cast<double>(now_ - lifeSince_) * coordinatorRate_;
    if (waited < options_.timeouts.joinMs * kMillisecond) return false;
    for (int32_t s = 0; s < static_cast<int32_t>(options_.shards); ++s) {
        const auto it = helloIn_.find({replica, s});
        if (it == helloIn_.end() || it->second != life_) return true;
    }
    return false;
}

/// Every shard of it, as it is to be, and nobody has put it out.
bool SimulatedJob::holdsLast(int32_t replica) const {
    if (refetching_.contains(replica)) return false;
    for (int32_t s = 0; s < static_cast<int32_t>(options_.shards); ++s) {
        const Process* p = live({replica, s});
        // Its own word may still be on its way.
        const bool said = network_.quiet(linkOf({replica, s}, Wire::kUp), now_) &&
                          network_.quiet(linkOf({replica, s}, Wire::kInner), now_);
        const bool holds =
            p != nullptr && said && !p->hung && p->hasState && !p->now.tainted && p->connected &&
            !p->rules().exited() && p->now.step == oracle_.durableStep() &&
            p->now.lineage == oracle_.lineage() && !oracle_.wasExpelled(replica, p->incarnation);
        if (!holds) return false;
    }
    return true;
}

/// A replica that goes although its state is sound leaves the last step to another, or on disk.
void SimulatedJob::checkLeaves(int32_t replica, const std::string& why) {
    if (!holdsLast(replica) || oracle_.checkpointed() == oracle_.durableStep()) return;
    for (const ReplicaView& r : machine()->replicas())
        if (r.replica != replica && r.step == oracle_.durableStep() && r.incarnation > 0) return;
    fail("I6",
         absl::StrCat("r", replica, " goes (", why, ") and takes step ", oracle_.durableStep(),
                      " with it, the last checkpoint is of step ", oracle_.checkpointed()));
}

void SimulatedJob::sync(uint64_t upTo) {
    size_t n = 0;
    while (n < unsynced_.size() && unsynced_[n].sequence <= upTo)
        written(std::move(unsynced_[n++].entry));
    unsynced_.erase(unsynced_.begin(), unsynced_.begin() + static_cast<std::ptrdiff_t>(n));
}

void SimulatedJob::written(LogEntry entry) {
    oracle_.durable(entry);
    if (const auto* c = std::get_if<LogCheckpoint>(&entry))
        oracle_.stored(*c, checkpoints_[c->path].parts);
    // At least one sample of a lease has to be bad; nobody can tell which.
    if (const auto* q = std::get_if<LogQuarantine>(&entry);
        q != nullptr && notFinite_ < 2 && badSamples_ == 0)
        fail("I2", absl::StrCat("samples from ", q->range.begin, " of domain ", q->range.domain,
                                " are quarantined, and nothing is wrong with any"));
    log_.push_back(std::move(entry));
}

}  // namespace bulkhead::simulation
