// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/simulation/driven_job.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "backend/runtime/checkpoint/checkpoint.h"
#include "backend/runtime/coordinator/controller.h"
#include "backend/runtime/coordinator/spec_options.h"
#include "backend/runtime/simulation/describe.h"
#include "backend/runtime/simulation/driven_rank.h"
#include "spdlog/spdlog.h"

/// The lives of controller and agents: what they run on, and what is seen of the controller.
namespace bulkhead::simulation {
namespace {

constexpr const char* kLogPath = "/state/sim/commit.log";

model::JobSpec specOf(const Options& o, const SimulatedJob::Environment& environment) {
    const uint32_t nodes = environment.nodes;
    model::JobSpec s;
    s.name = kRun;
    s.replicas = o.replicas;
    s.shards = o.shards;
    s.spares = o.spares;
    s.steps = o.steps;
    s.sequenceLength = o.sequenceLength;
    s.samplesPerReplica = o.samplesPerReplica;
    s.domains.resize(o.domains);
    s.dataCopyBytes = 0;
    s.optimizer.learningRate = o.optimizer->learningRate;
    s.optimizer.minLearningRate = o.optimizer->minLearningRate;
    s.optimizer.warmupSteps = o.optimizer->warmupSteps;
    s.optimizer.decaySteps = o.optimizer->decaySteps;
    s.optimizer.beta1 = o.optimizer->beta1;
    s.optimizer.beta2 = o.optimizer->beta2;
    s.optimizer.clipNorm = o.optimizer->clipNorm;
    s.policies = runtime::modelPolicies(o.policies, {});
    s.policies.deltaBudgetBytes = environment.deltaWindow * kGradientBytes * o.shards;
    s.timeouts = {o.timeouts.beatMs,           o.timeouts.heartbeatMs,  o.timeouts.progressFloorMs,
                  o.timeouts.progressMultiple, o.timeouts.chunkFloorMs, o.timeouts.chunkMultiple,
                  o.timeouts.joinMs,           o.timeouts.orphanMs,     o.timeouts.startMs};
    for (uint32_t node = 0; node < nodes; ++node) {
        model::NodePlacement& p = s.placement.emplace_back();
        p.node = nodeName(node);
        for (uint32_t r = node; r < o.replicas + o.spares; r += nodes)
            p.replicas.push_back(static_cast<int32_t>(r));
    }
    return s;
}

/// The actions that an operator's tool sends for an operation of the machine.
std::vector<model::Action> actionsOf(const Operation& o) {
    using enum model::ActionKind;
    if (o.kind == OperationKind::kSetPolicies) {
        const auto set = [](const char* policy, std::string value) {
            model::Action a;
            a.kind = kSetPolicy;
            a.policy = policy;
            a.value = std::move(value);
            return a;
        };
        return {set("lr", std::string(enumName(o.policies.lr))),
                set("batch", std::string(enumName(o.policies.batch))),
                set("min_replicas", absl::StrCat(o.policies.minReplicas)),
                set("checkpoint_every_steps", absl::StrCat(o.policies.checkpointEverySteps)),
                set("restart_limit", absl::StrCat(o.policies.restartLimit))};
    }
    static const std::map<OperationKind, model::ActionKind> kKinds = {
        {OperationKind::kDrain, kDrain},
        {OperationKind::kHoldRejoin, kHoldRejoin},
        {OperationKind::kReleaseRejoin, kReleaseRejoin},
        {OperationKind::kRestartReplica, kRestartReplica},
        {OperationKind::kPause, kPause},
        {OperationKind::kResume, kResume},
        {OperationKind::kCheckpoint, kCheckpoint},
        {OperationKind::kStop, kStop},
        {OperationKind::kChangeLayout, kChangeLayout}};
    model::Action a;
    a.kind = kKinds.at(o.kind);
    a.replica = o.replica;
    a.expertShard = o.expertShard;
    a.domainShare = o.domainShare;
    return {a};
}

}  // namespace

Setup drawDrivenSetup(uint64_t seed) {
    spdlog::set_level(spdlog::level::off);
    Setup s = drawSetup(seed);
    s.options = runtime::machineOptions(specOf(s.options, s.environment), s.options.secret);
    s.drivers = true;
    s.healWithin = 400 * kSecond;
    s.stopWithin = 60 * kSecond;
    s.make = [](const Setup& setup, uint64_t of) { return std::make_unique<DrivenJob>(setup, of); };
    return s;
}

DrivenJob::DrivenJob(const Setup& setup, uint64_t seed)
    : SimulatedJob(setup.options, seed, setup.environment),
      spec_(specOf(setup.options, setup.environment)),
      corruption_(setup.corruption),
      disk_(mix(seed, 6)),
      streams_(events_, now_, network_) {
    for (size_t node = 0; node < setup.environment.nodes; ++node)
        nodes_.push_back(std::make_unique<Node>(mix(mix(seed, 8), node)));
    for (size_t node = 0; node < nodes_.size(); ++node) startAgent(node);
}

DrivenJob::~DrivenJob() {
    const auto end = [this](const std::shared_ptr<Program>& program) {
        if (!program) return;
        crash(program);
        program->clear();
    };
    for (const auto& [key, rank] : rankings_) {
        rank->crash(true);
        rank->threads().unwind();
    }
    end(controller_);
    for (const auto& node : nodes_) end(node->agent);
}

const CoordinatorMachine* DrivenJob::machine() const {
    return controller_ && !controller_->dead ? controller_->machine : nullptr;
}

// ---- its lives

std::shared_ptr<DrivenJob::Controlling> DrivenJob::makeController(uint64_t seed) {
    const MonoNs zero = static_cast<MonoNs>(diskRng_.below(1000)) * kSecond;
    auto made = std::make_shared<Controlling>(*this, zero, mix(seed, 7));
    Controlling* c = made.get();
    c->files.onSync = [this, c](const std::string& path) {
        if (!c->dead) synced(path);
    };
    c->files.onWait = [this] {
        if (slowDiskUntil_ > now_) now_ += diskRng_.between(20, 300);
    };
    mayDieWorking(made);
    c->history.onTold = [this, c](const model::Event& event) {
        if (!c->dead) told(event);
    };
    return made;
}

void DrivenJob::startCoordinator() {
    if (controller_ && !controller_->dead && !controller_->dying) return;
    if (controller_) {
        crash(controller_);
        // The machine is back, and answers to connections that it does not know.
        for (const auto& connection : controller_->connections)
            if (MemoryChannel* end = connection.wire->ends[0]) end->reset();
    }
    readDisk();
    tell("controller", "a controller begins");
    lifeSince_ = now_;
    const auto c = makeController(mix(seed_, ++life_));
    controller_ = c;
    auto past = c->history.open();
    if (!past.ok() && foundNoRoom(past.status())) {  // its supervisor starts it again
        crash(c);
        return at(now_ + kSecond, [this] { startCoordinator(); });
    }
    if (!past.ok()) return fail("events", std::string(past.status().message()));
    // The last one may stand in the tail without anybody having been told. What found no room in
    // the tail is the batch's to lose.
    if (!powerCut_ && !std::exchange(database_.tailFull, false) &&
        (past->seq < lastTold_ || past->seq > lastTold_ + 1))
        fail("events", absl::StrCat("a new controller finds history up to event ", past->seq,
                                    ", the one before told ", lastTold_));
    lastTold_ = past->seq;
    powerCut_ = false;

    runtime::ControllerOptions options;
    options.stateDir = "/state";
    options.listen = {"unix:/controller"};
    options.token = kToken;
    options.workerPath = "/bin/worker";
    options.files = &c->files;
    options.network = &c->network;
    options.reactor = c->reactor.get();
    options.seed = mix(seed_, 1000 + life_) | 1;
    options.probe.begun = [this, c = c.get()](const CoordinatorMachine& machine) {
        if (c->dead) return;
        c->machine = &machine;
        oracle_.recovered(machine);
    };
    options.probe.halted = [this, c = c.get()] {
        if (c->dead) return;
        c->machine = nullptr;
        halted();
    };
    options.probe.input = [this, c = c.get()](const Input& input) {
        if (!c->dead) observe(input);
    };
    options.probe.action = [this, c = c.get()](const Action& action) {
        if (!c->dead) observe(action);
    };
    auto controller = runtime::Controller::create(std::move(options), c->clock, &c->history);
    if (!controller.ok()) return fail("I6", std::string(controller.status().message()));
    c->controller = *std::move(controller);
    runAs(*c, [&] {
        absl::Status begun;
        if (DiskUser(disk_).exists(absl::StrCat("/state/", kRun, "/job.json")))
            begun = c->controller->recover([&](const std::string&) { return *past; }, {}).status();
        else
            begun = c->controller->start(spec_, {kRun, ""}).status();
        if (c->dead || begun.ok() || foundNoRoom(begun)) return;
        // History may have known of none of the steps that the disk has lost.
        if (absl::StrContains(begun.message(), "has checkpoints of later ones") &&
            moveLostCheckpointsAway())
            at(now_ + kSecond, [this, c] {
                crash(c);
                startCoordinator();
            });
        else
            fail("I6", absl::StrCat("the job is not taken up: ", std::string(begun.message())));
    });
    run(c);
}

/// Reads the log that nobody writes now: it holds all that was durable, and perhaps more.
void DrivenJob::readDisk() {
    bool mayHaveLost = false;
    if (powerCut_) {
        disk_.cutPower();
        disk_.lie(false);
        mayHaveLost = std::exchange(lies_, false);
    }
    pending_.clear();
    const auto bytes = DiskUser(disk_).read(kLogPath);
    if (!bytes.ok() && mayHaveLost) return rewind({});
    if (!bytes.ok()) {
        if (!log_.empty()) fail("I6", "the commit log is gone");
        return;
    }
    auto decoded = decodeLog(*bytes);
    if (!decoded.ok()) return fail("I6", std::string(decoded.status().message()));
    auto& entries = decoded->entries;
    if (entries.size() < log_.size() && mayHaveLost) return rewind(entries);
    if (entries.size() < log_.size() ||
        (!log_.empty() && encodeEntry(entries[log_.size() - 1]) != encodeEntry(log_.back())))
        return fail("I6", absl::StrCat("the commit log has ", entries.size(), " entries, ",
                                       log_.size(), " were durable"));
    for (size_t i = log_.size(); i < entries.size(); ++i) logged(std::move(entries[i]));
    // An order that stands there counts, also when nobody lived to acknowledge it.
    if (unanswered_ && unansweredLogged_) oracle_.ordered(*unanswered_);
    unanswered_.reset();
    checkStored();
}

void DrivenJob::logged(LogEntry entry) {
    if (std::holds_alternative<LogOrders>(entry)) unansweredLogged_ = true;
    if (std::holds_alternative<LogFinished>(entry)) finished_ = true;
    if (std::holds_alternative<LogLineage>(entry) || std::holds_alternative<LogCommit>(entry))
        lost_.clear();  // the job goes on without
    if (const auto* checkpoint = std::get_if<LogCheckpoint>(&entry)) {
        restoreUpTo(*checkpoint);
        findCheckpoint(*checkpoint);
    }
    written(std::move(entry));
}

/// Does what a person does who is told that the log ends before the checkpoints do, and has no
/// other log. False: the log has lost nothing that a disk lied about.
bool DrivenJob::moveLostCheckpointsAway() {
    if (lost_.empty()) return false;
    tell("operator", "moves checkpoints away whose steps the log has lost");
    DiskUser disk(disk_);
    for (const std::string& name : disk.list(checkpointRoot())) {
        const std::string folder = absl::StrCat(checkpointRoot(), "/", name);
        if (checkpoints_.contains(folder + "/manifest.json")) continue;
        for (const std::string& file : disk.list(folder))
            (void)disk.remove(absl::StrCat(folder, "/", file));
        (void)disk.removeFolder(folder);
    }
    lost_.clear();  // the job goes on without
    return true;
}

/// The writer of the checkpoint had been told that its step was committed.
void DrivenJob::restoreUpTo(const LogCheckpoint& checkpoint) {
    const auto at = std::find_if(lost_.begin(), lost_.end(), [&](const LogEntry& entry) {
        const auto* commit = std::get_if<LogCommit>(&entry);
        return commit != nullptr && commit->record.lineage == checkpoint.lineage &&
               commit->record.step == checkpoint.step;
    });
    if (at == lost_.end()) return;
    oracle_.restore({lost_.begin(), at + 1});
    lost_.erase(lost_.begin(), at + 1);
}

void DrivenJob::killCoordinator(bool losingTail) {
    const auto c = controller_;
    if (!c || c->dead) return;
    powerCut_ = powerCut_ || losingTail;
    c->losesPower = losingTail;
    kill(c, diskRng_);
}

// ---- any program

void DrivenJob::mayDieWorking(const std::shared_ptr<Program>& p) {
    p->files.onDeath = [this, weak = std::weak_ptr(p)] {
        if (const auto dying = weak.lock()) crash(dying);
    };
}

/// At once, or in the course of one of its next file operations.
void DrivenJob::kill(const std::shared_ptr<Program>& p, Rng& rng) {
    if (!rng.chance(0.5)) return crash(p);
    p->dying = true;
    p->files.dieAfter(rng.below(6));
    at(now_ + kDyingWithin, [this, p] { crash(p); });
}

/// Nothing that it does has an effect any more; the rest of it is destroyed when nothing of it is
/// on the stack.
void DrivenJob::crash(const std::shared_ptr<Program>& p) {
    if (std::exchange(p->dead, true)) return;
    tell(p->name, p->losesPower ? "loses power" : "dies");
    p->files.die();
    for (const auto& connection : p->connections)
        if (MemoryChannel* end = connection.end()) p->losesPower ? end->vanish() : end->close();
    at(now_, [p] { p->clear(); });
}

void DrivenJob::runLater(const std::shared_ptr<Program>& p, MonoNs when) {
    when = std::max({when, now_, p->stoppedUntil});
    if (p->dead || (p->runsAt != 0 && p->runsAt <= when)) return;
    p->runsAt = when;
    at(when, [this, p, when] {
        if (p->runsAt == when) run(p);
    });
}

/// Time may pass in it: what follows from the rest of it is that much later, and the program does
/// nothing else meanwhile.
template <class F>
void DrivenJob::runAs(Program& p, F task) {
    const MonoNs began = now_;
    task();
    p.stoppedUntil = std::max(p.stoppedUntil, now_);
    now_ = began;
}

void DrivenJob::run(const std::shared_ptr<Program>& p) {
    p->runsAt = 0;
    if (p->dead) return;
    if (p->stoppedUntil > now_) return runLater(p, p->stoppedUntil);
    runAs(*p, [&] {
        p->reactor->runDue();
        p->looked();
    });
    if (p->dead) return;
    if (const auto due = p->reactor->nextDue()) runLater(p, p->clock.globalOf(*due));
}

Executor DrivenJob::executorOf(const std::shared_ptr<Program>& p) {
    return [this, weak = std::weak_ptr(p)](std::function<void()> task) {
        const auto to = weak.lock();
        if (!to || to->dead) return;
        to->reactor->after(0, std::move(task));
        runLater(to, now_);
    };
}

void DrivenJob::Controlling::looked() {
    if (!asked.empty()) job.answer(*this);
    if (!dead && std::exchange(acted, false) && machine != nullptr) job.oracle_.looked(*machine);
}

// ---- what is seen of it

void DrivenJob::observe(const Input& input) {
    if (const auto* operation = std::get_if<Operation>(&input)) {
        unanswered_ = operation_ = *operation;
        unansweredLogged_ = false;
    }
    const auto* in = std::get_if<Received>(&input);
    if (in == nullptr || stale(input)) return;
    if (std::holds_alternative<Hello>(in->message)) helloIn_[in->from] = life_;
    if (const auto* vote = std::get_if<ReplicaVote>(&in->message))
        oracle_.voted(*vote, controller_->machine->term());
    if (const auto* report = std::get_if<Report>(&in->message)) oracle_.reported(*report);
    if (const auto* verdict = std::get_if<ReplayVerdict>(&in->message)) oracle_.judged(*verdict);
}

void DrivenJob::observe(const Action& action) {
    const auto c = controller_;
    c->acted = true;
    digest_ = mix(digest_, action.index());
    if (onAction) onAction(action);
    if (!armed_.empty()) strikeArmed(action);
    if (c->dead) return;
    if (story)
        if (const std::string text = describe(action); !text.empty()) tell("controller", text);
    if (const auto* all = std::get_if<SendReplica>(&action)) {
        sent(*all);
    } else if (const auto* one = std::get_if<SendRank>(&action)) {
        if (const auto* commit = std::get_if<Commit>(&one->message)) oracle_.commitSent(*commit);
    } else if (const auto* append = std::get_if<AppendLog>(&action)) {
        if (const auto* lineage = std::get_if<LogLineage>(&append->entry)) checkRollback(*lineage);
        oracle_.appended(append->entry);
        if (const auto* commit = std::get_if<LogCommit>(&append->entry))
            oracle_.decided(commit->record, finder());
        pending_.push_back(append->entry);
    } else if (const auto* start = std::get_if<StartReplica>(&action)) {
        oracle_.started(start->replica, start->incarnation);
        ++starts_;
    } else if (const auto* stop = std::get_if<StopReplica>(&action)) {
        oracle_.expelled(stop->replica, stop->incarnation);
    } else if (const auto* emit = std::get_if<Emit>(&action)) {
        if (std::holds_alternative<fact::OperatorAnswered>(emit->fact)) unanswered_.reset();
        recordFact(emit->fact);
    } else if (std::holds_alternative<Finished>(action)) {
        finished_ = true;
    }
}

bool DrivenJob::foundNoRoom(const absl::Status& status) const {
    return fullUntil_ != 0 && absl::StrContains(status.message(), "No space left");
}

/// It gives up what it could not write; another coordinator reads what is there.
void DrivenJob::halted() {
    tell("controller", "cannot write its log");
    if (fullUntil_ == 0)
        fail("I6", "the log cannot be written, and nothing is wrong with the disk");
    pending_.clear();
    unanswered_.reset();
}

void DrivenJob::fillDisk(const Fault& fault) {
    const bool ofNode = fault.parameter % 4 == 0;
    MemoryDisk& disk = ofNode ? nodes_[nodeOf(fault.replica)]->disk : disk_;
    const MonoNs until = now_ + fault.duration;
    if (!ofNode) fullUntil_ = std::max(fullUntil_, until);
    disk.leaveRoom((fault.parameter >> 8) % 2000);
    at(until, [this, &disk, ofNode] {
        if (!ofNode && fullUntil_ > now_) return;
        disk.leaveRoom(std::nullopt);
    });
}

void DrivenJob::lieAboutSync(const Fault& fault) {
    disk_.lie(true);
    lies_ = true;
    at(now_ + fault.duration, [this, back = fault.parameter % 800, disarmed = disarmed_] {
        if (disarmed != disarmed_) return;
        killCoordinator(true);
        powerCut_ = true;
        at(now_ + static_cast<MonoNs>(back) * kMillisecond, [this] { startCoordinator(); });
    });
}

/// The disk has less than it had said. What is left is the front of what was written, and the truth
/// from here on.
void DrivenJob::rewind(const std::vector<LogEntry>& entries) {
    tell("controller", absl::StrCat("its disk has lost ", log_.size() - entries.size(),
                                    " entries of the log that it had said were safe"));
    std::set<std::string> named;
    std::string link = database_.folded.link;
    for (size_t i = 0; i < entries.size(); ++i) {
        if (encodeEntry(entries[i]) != encodeEntry(log_[i]))
            fail("I6", absl::StrCat("entry ", i, " of the commit log is another one now"));
        if (const auto* checkpoint = std::get_if<LogCheckpoint>(&entries[i]))
            named.insert(checkpoint->path);
        if (const auto* dropped = std::get_if<LogCheckpointsDropped>(&entries[i]))
            for (const std::string& path : dropped->paths) named.erase(path);
        std::visit(
            [&](const auto& e) {
                if constexpr (requires { e.link; })
                    if (e.link == link) link.clear();
            },
            entries[i]);
    }
    lost_.assign(log_.begin() + static_cast<ptrdiff_t>(entries.size()), log_.end());
    logLost_ = true;
    lossUnsaid_ = !link.empty();
    log_ = entries;
    oracle_.rewind(entries);
    finished_ = false;
    unanswered_.reset();
    std::erase_if(checkpoints_, [&](const auto& c) { return !named.contains(c.first); });
    for (const auto* list : {&ranks_, &zombies_})
        for (const auto& rank : *list)
            if (rank) rank->ofLostPast = true;
}

void DrivenJob::synced(const std::string& path) {
    if (path != kLogPath || pending_.empty()) return;
    for (LogEntry& entry : std::exchange(pending_, {})) logged(std::move(entry));
    if (!armed_.empty()) strikeArmed(Trigger::kCommitDurable, {-1, -1});
}

void DrivenJob::told(const model::Event& event) {
    if (event.seq != lastTold_ + 1)
        fail("events", absl::StrCat("event ", event.seq, " follows event ", lastTold_));
    lastTold_ = event.seq;
    if (const auto* broken = std::get_if<model::InvariantBroken>(&event.body);
        broken != nullptr && !(corruption_ && broken->invariant == "I3")) {
        if (broken->invariant == "I6") lossUnsaid_ = false;
        if (!logLost_) fail("live", absl::StrCat(broken->invariant, ": ", broken->detail));
    }
    if (const auto* finished = std::get_if<model::RunFinished>(&event.body);
        finished != nullptr && !finished->ok)
        fail("I4", absl::StrCat("the run has failed: ", finished->why));
}

// ---- what is done to it

void DrivenJob::operate(Operation operation) {
    const auto c = controller_;
    if (!c || c->dead || !c->controller) return;
    if (operation.kind == OperationKind::kStop && lossUnsaid_)
        fail("told", "the log has lost what people were told of, and nobody says so");
    for (model::Action& action : actionsOf(operation)) c->asked.push_back(std::move(action));
    if (c->stoppedUntil <= now_) runAs(*c, [&] { answer(*c); });
    runLater(c, now_);
}

void DrivenJob::answer(Controlling& c) {
    while (!c.asked.empty() && !c.dead) {
        const model::Action action = std::move(c.asked.front());
        c.asked.pop_front();
        const absl::Status done = c.controller->act(kRun, action, 0, "", "sim");
        if (!done.ok()) tell("operator", std::string(done.message()));
        if (!absl::IsResourceExhausted(done)) continue;
        c.asked.push_front(action);  // until there is room for it
        return;
    }
}

void DrivenJob::healAll() {
    disarm();
    disk_.lie(false);
    lies_ = false;
    disk_.leaveRoom(std::nullopt);
    for (const auto& node : nodes_) node->disk.leaveRoom(std::nullopt);
    const auto goOn = [this](const std::shared_ptr<Program>& program) {
        if (!program || program->dead) return;
        program->stoppedUntil = now_;
        run(program);
    };
    goOn(controller_);
    for (const auto& node : nodes_) goOn(node->agent);
    SimulatedJob::healAll();
}

std::string DrivenJob::checkpointRoot() const {
    return absl::StrCat("/state/", kRun, "/checkpoints");
}

/// The oracle gets the files that the ranks have written under the name in the log.
void DrivenJob::findCheckpoint(const LogCheckpoint& entry) {
    DiskUser files(disk_);
    Stored& stored = checkpoints_[entry.path];
    if (stored.damaged) return;
    const auto manifest = runtime::readManifest(files, entry.path);
    if (!manifest.ok()) return fail("I6", std::string(manifest.status().message()));
    for (int32_t shard = 0; shard < static_cast<int32_t>(options_.shards); ++shard) {
        const auto state = runtime::readShardFile(files, entry.path, *manifest, shard);
        // A bit flipped in memory, behind the hash and before the copy, is found when it is loaded;
        // so is one on disk, in a checkpoint that a lying disk lost from the log and that is back.
        if (!state.ok() && (!tainted_.empty() || damaged_.contains(entry.path))) {
            stored.parts[shard] = {entry.lineage, entry.step, entry.layout, 0, true};
            stored.damaged = true;
            continue;
        }
        if (!state.ok()) return fail("I6", std::string(state.status().message()));
        // A state that a lineage began with is that of the record before it.
        const CommitRecord& last = manifest->last;
        const bool ofRecord = last.step == (*state)->step && last.step > 0;
        StateCopy copy{ofRecord ? last.lineage : (*state)->lineage, (*state)->step,
                       (*state)->layout};
        if ((*state)->bytes.size() >= sizeof(copy.state))
            std::memcpy(&copy.state, (*state)->bytes.data(), sizeof(copy.state));
        copy.tainted = tainted_.contains(copy.state);
        stored.parts[shard] = copy;
    }
    stored.whole = true;
    // Nothing else goes that the log names.
    for (const auto& [path, other] : checkpoints_)
        if (!files.exists(path)) fail("I6", absl::StrCat(path, " is gone, nobody has dropped it"));
}

/// Every checkpoint that the log names is whole on disk, whoever lost power.
void DrivenJob::checkStored() {
    const DiskUser files(disk_);
    for (const auto& [path, stored] : checkpoints_) {
        if (!stored.whole || stored.damaged) continue;
        const auto manifest = runtime::readManifest(files, path);
        if (!manifest.ok()) return fail("I6", std::string(manifest.status().message()));
        for (const auto& [shard, part] : stored.parts)
            if (const auto state = runtime::readShardFile(files, path, *manifest, shard);
                !state.ok())
                return fail("I6", std::string(state.status().message()));
    }
}

void DrivenJob::forgetCheckpoint(const Process& by, const std::string& path) {
    if (!by.ofLostPast) oracle_.removed(path);
    checkpoints_.erase(path);
}

void DrivenJob::damaged(const std::string& path) {
    damaged_.insert(path);
    disk_.flipBit(absl::StrCat(folderOf(path), "/shard-0.state"));
}

void DrivenJob::strikeDrivers(const Fault& fault) {
    if (fault.kind == FaultKind::kCutAgent) return cutAgent(fault);
    if (fault.kind == FaultKind::kFreezeNode) return freezeNode(fault);
    if (fault.kind == FaultKind::kFullDisk) return fillDisk(fault);
    if (fault.kind == FaultKind::kLyingDisk) return lieAboutSync(fault);
    const auto c = controller_;
    if (!c || c->dead) return;
    if (fault.kind == FaultKind::kHangCoordinator)
        c->stoppedUntil = std::max(c->stoppedUntil, now_ + fault.duration);
    else
        startSecond();
}

/// It gets no job: the first one lives, however long it has been silent. One that waits for room on
/// its disk holds no job.
void DrivenJob::startSecond() {
    if (machine() == nullptr) return;
    const auto second = makeController(mix(seed_, now_));
    runtime::ControllerOptions options;
    options.stateDir = "/state";
    options.listen = {"unix:/other"};
    options.token = kToken;
    options.files = &second->files;
    options.network = &second->network;
    options.reactor = second->reactor.get();
    options.seed = 1;
    auto controller = runtime::Controller::create(std::move(options), second->clock, nullptr);
    if (!controller.ok()) return fail("I5", std::string(controller.status().message()));
    const auto runs =
        (*controller)->recover([](const std::string&) { return model::RunState(); }, {});
    if (runs.ok() && !runs->empty()) fail("I5", "two controllers have taken up the same job");
    second->controller = *std::move(controller);
    crash(second);
}

}  // namespace bulkhead::simulation
