// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/replica_rank.h"

#include <spdlog/spdlog.h>

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "backend/common/threads.h"
#include "backend/model/event_json.h"
#include "backend/runtime/replica/rank_impl.h"

namespace bulkhead::runtime {

ReplicaRank::Impl::Impl(RankOptions options, TrainingProgram* program, const Clock& clock)
    : options_(std::move(options)),
      program_(program),
      clock_(clock),
      leader_(options_.rank.shard == 0),
      network_(clock),
      machine_({options_.rank, options_.incarnation, options_.spec.shards,
                options_.spec.timeouts.orphanMs}),
      fold_(options_.rank.replica, options_.incarnation, options_.spec.shards),
      agreement_(options_.spec.shards),
      snapshots_(program, [this](const absl::Status& why) { cannotGoOn(why); }),
      onDevice_(program->dataPlane()) {}

absl::Status ReplicaRank::Impl::start() {
    absl::StatusOr<std::unique_ptr<Reactor>> reactor = Reactor::create(clock_);
    if (!reactor.ok()) return reactor.status();
    reactor_ = *std::move(reactor);
    absl::StatusOr<std::unique_ptr<DataPort>> port = options_.host->openData(
        options_.address, absl::StrFormat("r%ds%di%d", options_.rank.replica, options_.rank.shard,
                                          options_.incarnation));
    if (!port.ok()) return port.status();
    dataPort_ = *std::move(port);
    endpoint_.shm = dataPort_->shm();
    absl::StatusOr<std::unique_ptr<StateServer>> server = StateServer::start(
        options_.address, options_.rank.shard, &store_, options_.host->stateNetwork());
    if (!server.ok()) return server.status();
    server_ = *std::move(server);
    store_.setDeltaBudget(deltaBudget(options_.spec));
    if (leader_) {
        absl::StatusOr<std::unique_ptr<LeaderLink>> link = LeaderLink::lead(
            *reactor_, options_.host->network(), options_.address + ":0", options_.secrets.replica,
            [this](const protocol::ToLeader& m) { fromSibling(m); });
        if (!link.ok()) return link.status();
        leaderLink_ = *std::move(link);
    }
    startDesks();
    if (options_.probe.begun) options_.probe.begun(machine_);
    startControl();
    return absl::OkStatus();
}

void ReplicaRank::Impl::startDesks() {
    uint64_t seed = options_.seed;
    if (seed == 0) seed = std::random_device{}();
    faults_ = std::make_unique<FaultDesk>(options_.rank, seed, clock_, &network_, faultHooks());
    catchUp_ = std::make_unique<CatchUp>(options_.rank, options_.spec.shards,
                                         options_.host->stateNetwork(), clock_, catchUpHooks());
    CheckpointSettings settings{
        options_.job,  options_.run,         options_.spec,      model::toJsonText(options_.spec),
        options_.rank, options_.incarnation, options_.corpusHash};
    checkpoints_ = std::make_unique<CheckpointDesk>(
        std::move(settings), options_.host->files(), clock_,
        CheckpointDesk::Hooks{[this](const protocol::RankCheckpoint& part) {
                                  reactor_->post([this, part] { toLeader(part); });
                              },
                              [this](const protocol::CheckpointDone& done) {
                                  reactor_->post([this, done] { sendUp(done); });
                              },
                              [this](const absl::Status& why) { cannotGoOn(why); }});
}

FaultDesk::Hooks ReplicaRank::Impl::faultHooks() {
    FaultDesk::Hooks hooks;
    hooks.noted = [this](const protocol::FaultNoted& noted) {
        reactor_->post([this, noted] { sendUp(noted); });
    };
    hooks.later = [this](MonoNs delay, std::function<void()> task) {
        reactor_->post([this, delay, task = std::move(task)] { reactor_->after(delay, task); });
    };
    hooks.cutState = [this](bool cut) { server_->setCut(cut); };
    hooks.signalSelf = [host = options_.host](int signal) { host->signalSelf(signal); };
    return hooks;
}

CatchUp::Hooks ReplicaRank::Impl::catchUpHooks() {
    CatchUp::Hooks hooks;
    hooks.progress = [this](uint64_t done, uint64_t total) {
        ++progress_;
        post(protocol::FetchAdvanced{done, total});
    };
    hooks.stateRoom = [this](uint64_t bytes) { return program_->stateRoom(bytes); };
    hooks.state = [this](std::shared_ptr<const StateSnapshot> state) {
        queue_.push({[this, state] { return adopt(state); }, std::nullopt});
    };
    hooks.delta = [this](Delta delta) {
        ++progress_;
        auto shared = std::make_shared<Delta>(std::move(delta));
        queue_.push({[this, shared] {
                         absl::Status s = replay(*shared);
                         catchUp_->recycle(std::move(shared->reduced));
                         return s;
                     },
                     std::nullopt});
    };
    hooks.broke = [this](const absl::Status& why, std::vector<int32_t> sources) {
        spdlog::warn("catch-up broke: {}", std::string(why.message()));
        post(protocol::FetchBroke{absl::IsNotFound(why), std::move(sources),
                                  std::string(why.message())});
    };
    hooks.cut = [this] { return network_.isCut(); };
    return hooks;
}

protocol::Hello ReplicaRank::Impl::hello() const {
    protocol::Hello hello;
    hello.version = protocol::protocolVersion();
    hello.job = options_.job;
    hello.endpoint = endpoint_;
    hello.pid = options_.host->pid();
    hello.corpusHash = options_.corpusHash;
    hello.corpusNewest = options_.corpusNewest;
    hello.device = options_.device;
    return hello;
}

void ReplicaRank::Impl::startControl() {
    endpoint_.rank = options_.rank;
    endpoint_.incarnation = options_.incarnation;
    endpoint_.host = options_.node;
    endpoint_.data = dataPort_->address();
    if (leader_) endpoint_.control = leaderLink_->address();
    endpoint_.state = server_->address();
    ChannelOptions channel;
    channel.localIp = options_.address;
    if (options_.coordinator.starts_with("unix:")) channel.localIp.clear();
    channel.faults = &network_;
    channel.credential = {rankIdentity(options_.job, options_.rank, options_.incarnation),
                          options_.secrets.rank};
    coordinator_ = std::make_unique<CoordinatorLink>(
        *reactor_, options_.host->network(), [this] { return coordinatorNow(); }, channel, hello(),
        CoordinatorLink::Hooks{[this] { feed(protocol::Connected{}); },
                               [this] { feed(protocol::Disconnected{}); },
                               [this](const protocol::ToReplica& m) { received(m); },
                               [this](const absl::Status& why) { refused(why); }});
    const MonoNs period =
        static_cast<MonoNs>(std::max(1u, options_.spec.timeouts.beatMs)) * kMillisecond;
    reactor_->every(period, [this] { beat(); });
    // The machine measures the orphan limit from the first time it hears of no connection.
    feed(protocol::Disconnected{});
    control_ = Thread([this] { reactor_->run(); });
}

/// Returns when the control thread has done all that was posted to it.
void ReplicaRank::Impl::awaitControl() {
    struct {
        Mutex mutex;
        ConditionVariable changed;
        bool done ABSL_GUARDED_BY(mutex) = false;
    } all;
    reactor_->post([&] {
        const MutexLock lock(all.mutex);
        all.done = true;
        all.changed.notify_one();
    });
    MutexLock lock(all.mutex);
    all.changed.wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(all.mutex) { return all.done; });
}

ReplicaRank::Impl::~Impl() {
    leaving_ = true;
    program_->awaitCopies();
    if (control_.joinable()) {
        // Queued files are written while the control thread still sends: a shard's report makes
        // the leader's manifest, and that another message. The desks go when nobody calls them.
        checkpoints_->drain();
        awaitControl();
        checkpoints_->drain();
        reactor_->post([this] { reactor_->stop(); });
        control_.join();
    }
    checkpoints_.reset();
    catchUp_.reset();
    exchange_.reset();
    coordinator_.reset();
    leaderLink_.reset();
    server_.reset();
}

ReplicaRank::ReplicaRank(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ReplicaRank::~ReplicaRank() = default;

absl::StatusOr<std::unique_ptr<ReplicaRank>> ReplicaRank::start(RankOptions options,
                                                                TrainingProgram* program,
                                                                const Clock& clock) {
    auto impl = std::make_unique<Impl>(std::move(options), program, clock);
    if (absl::Status s = impl->start(); !s.ok()) return s;
    return std::unique_ptr<ReplicaRank>(new ReplicaRank(std::move(impl)));
}

absl::StatusOr<Work> ReplicaRank::next() {
    return impl_->next();
}
void ReplicaRank::gradientReady(uint64_t generation, uint64_t begin, uint64_t end) {
    impl_->gradientReady(generation, begin, end);
}
void ReplicaRank::microBatchDone(MonoNs took) {
    impl_->microBatchDone(took);
}
void ReplicaRank::computed(uint64_t generation, StepFigures figures) {
    impl_->computed(generation, std::move(figures));
}
uint64_t ReplicaRank::appliedStep() const {
    return impl_->appliedStep();
}
void ReplicaRank::requestLeave() {
    impl_->requestLeave();
}
void ReplicaRank::reportHopeless(const std::string& why) {
    impl_->reportHopeless(why);
}
void ReplicaRank::endFault(uint64_t fault) {
    impl_->endFault(fault);
}
bool ReplicaRank::leaving() const {
    return impl_->leaving();
}

}  // namespace bulkhead::runtime
