// SPDX-License-Identifier: Apache-2.0
// The training thread of a rank: what next() does to the program between two gradients.
#include <spdlog/spdlog.h>
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/runtime/checkpoint/checkpoint.h"
#include "backend/runtime/replica/rank_impl.h"

namespace bulkhead::runtime {
namespace {

/// A leader keeps the records of a thousand steps of a hundred replicas.
constexpr size_t kContributionsKept = 100'000;
constexpr auto kOrphanCheckpointPatience = std::chrono::seconds(10);

// Copying less than this takes no time that counts, and what is measured is the machine's noise.
constexpr uint64_t kStateWorthTiming = 64 << 20;

constexpr size_t kZerosAtOnce = 4 << 20;

bool allFinite(std::span<const float> values) {
    uint32_t bad = 0;
    for (const float v : values)
        bad |= static_cast<uint32_t>((std::bit_cast<uint32_t>(v) & 0x7f800000u) == 0x7f800000u);
    return bad == 0;
}

}  // namespace

absl::StatusOr<Work> ReplicaRank::Impl::next() {
    for (;;) {
        const TrainingTask task = queue_.pop();
        ++progress_;
        if (task.work && task.work->finished) return *task.work;
        if (!deviceError_.ok()) return deviceError_;
        if (task.work) {
            // In vain, but its siblings wait for it. A sum that this rank enters by must not get
            // it.
            if (task.work->generation != exchange_->generation())
                exchange_->endReading("a gradient that was given up is computed");
            gradientIsZero_ = false;
            computing_ = task.work->step;
            computingGeneration_ = task.work->generation;
            computeBegun_ = clock_.now();
            nonFinite_ = false;
            faults_->enter(computing_, protocol::Phase::kCompute);
            return *task.work;
        }
        const absl::Status s = task.run();
        if (!s.ok() && !leaving_) return s;
        if (!s.ok()) spdlog::info("given up while leaving: {}", std::string(s.message()));
    }
}

void ReplicaRank::Impl::gradientReady(uint64_t generation, uint64_t begin, uint64_t end) {
    ++progress_;
    const std::span<float> part = program_->gradient().subspan(begin, end - begin);
    deviceError_.Update(touchGradient(part));
    // A device looks at all of it at once, and the program is busy now: computed() tells this part.
    if (onDevice_ && begin == 0) {
        heldBack_ = end;
        return;
    }
    if (!onDevice_ && !nonFinite_ && !allFinite(part)) notFinite(generation);
    offer(generation, begin, end);
}

/// From here on the exchange may write the sum, which may still be on its way to the deltas. No
/// step waits for that: a joiner that needs it fetches a younger state.
void ReplicaRank::Impl::offer(uint64_t generation, uint64_t begin, uint64_t end) {
    if (sumIsJudged_)
        program_->awaitSum();
    else
        program_->giveUpSum();
    exchange_->ready(generation, begin, end);
}

absl::Status ReplicaRank::Impl::touchGradient(std::span<float> part) {
    if (!faults_->touchesGradient(computing_)) return absl::OkStatus();
    std::vector<float> copy(part.size());
    if (absl::Status s = program_->read(part, copy); !s.ok()) return s;
    faults_->touchGradient(computing_, copy);
    return program_->write(copy, part);
}

void ReplicaRank::Impl::notFinite(uint64_t generation) {
    nonFinite_ = true;
    spdlog::warn("step {}: the local gradient is not finite", computing_);
    exchange_->poison(generation, "the local gradient is not finite");
}

void ReplicaRank::Impl::microBatchDone(MonoNs took) {
    ++progress_;
    const double factor = faults_->slowFactor();
    if (factor > 1) sleepFor(static_cast<MonoNs>(static_cast<double>(took) * (factor - 1)));
}

void ReplicaRank::Impl::computed(uint64_t generation, StepFigures figures) {
    if (generation != exchange_->generation()) {
        spdlog::info("step {}: a gradient was given up", computing_);
        return;
    }
    // Squares of float32 do not overflow a double.
    const absl::StatusOr<double> squares = program_->sumOfSquares(program_->gradient());
    if (onDevice_) {
        deviceError_.Update(squares.status());
        if (!squares.ok() || !std::isfinite(*squares)) notFinite(generation);
        offer(generation, 0, heldBack_);
    }
    {
        const MutexLock lock(figuresMutex_);
        gradNorm_ = squares.ok() && figures.tokens > 0
                        ? std::sqrt(*squares) / static_cast<double>(figures.tokens)
                        : 0;
        gradStep_ = computing_;
        figures_ = std::move(figures);
        computeMs_ = inMs(clock_.now() - computeBegun_);
    }
    faults_->enter(computing_, protocol::Phase::kExchange);
    reactor_->post([this, generation, done = protocol::ComputeDone{computing_, nonFinite_}] {
        // An attempt with other samples may have begun meanwhile, and its gradient is not done.
        if (generation == exchange_->generation()) feed(done);
    });
}

absl::Status ReplicaRank::Impl::build(const protocol::BuildReplica& action) {
    const MonoNs start = clock_.now();
    BuildOrder order;
    order.job = options_.spec;
    order.ranks = action.formed.ranks;
    order.incarnation = options_.incarnation;
    order.groupSecret = options_.secrets.replica.derive("group");
    order.blank = action.formed.blank || !action.welcome.resumeFrom.empty();
    order.expertShard = action.welcome.expertShard;
    order.listenFd = dataPort_->listenFd();
    if (absl::Status s = program_->build(order); !s.ok()) return s;
    ++progress_;
    // Not a joiner's alone: what a GPU does for the first time waits for all that runs there, and
    // so would the exchange beside it.
    if (absl::Status s = program_->warmUp(); !s.ok()) return s;
    ++progress_;
    if (absl::Status s = makeExchange(); !s.ok()) return s;
    lineage_ = action.welcome.lineage;
    layout_ = action.welcome.layout;
    absl::StatusOr<std::vector<int32_t>> placement = program_->expertShard();
    if (!placement.ok()) return placement.status();
    expertShard_ = *std::move(placement);
    if (!action.formed.blank && !action.welcome.resumeFrom.empty())
        if (absl::Status s = loadCheckpoint(action.welcome); !s.ok()) return s;
    bindExchange();
    protocol::InitDone done;
    done.hasState = !action.formed.blank;
    if (done.hasState) {
        absl::StatusOr<uint64_t> hash = stateHash();
        if (!hash.ok()) return hash.status();
        done.step = step_;
        done.hash = *hash;
        if (absl::Status s = takeRoomToKeep(); !s.ok()) return s;
    }
    done.layout = layout_;
    applied_ = step_;
    if (done.hasState) stands(false);
    spdlog::info("model stands at step {} ({}), {:.0f} ms", step_,
                 action.formed.blank                 ? "blank"
                 : action.welcome.resumeFrom.empty() ? "from the seed"
                                                     : "from " + action.welcome.resumeFrom,
                 inMs(clock_.now() - start));
    if (leader_) {
        protocol::ModelDescribed described = program_->describe();
        if (!described.expertsFixed) described.expertShard = expertShard_;
        reactor_->post([this, described] { sendUp(described); });
    }
    post(done);
    return absl::OkStatus();
}

absl::Status ReplicaRank::Impl::makeExchange() {
    ExchangeOptions options;
    options.job = options_.job;
    options.shard = options_.rank.shard;
    options.replica = options_.rank.replica;
    options.incarnation = options_.incarnation;
    options.listenFd = dataPort_->listenFd();
    options.heap = program_->peerMemory();
    options.device = program_->dataPlane();
    options.faults = &network_;
    options.clock = &clock_;
    if (options_.spec.encrypt) options.protection = Protection::kEncrypted;
    absl::StatusOr<std::unique_ptr<Exchange>> exchange =
        options_.host->exchange(std::move(options));
    if (!exchange.ok()) return exchange.status();
    exchange_ = std::make_unique<StepExchange>(
        *std::move(exchange), bucketBytesFor(options_.spec.bucketBytes, onDevice_), clock_,
        [this](const ExchangeResult& result) { exchanged(result); });
    return absl::OkStatus();
}

void ReplicaRank::Impl::bindExchange() {
    gradientIsZero_ = false;
    exchange_->bind(program_->gradient(), program_->reduced());
}

absl::StatusOr<uint64_t> ReplicaRank::Impl::stateHash() {
    if (hash_) return *hash_;
    const MonoNs start = clock_.now();
    absl::StatusOr<uint64_t> hash = program_->stateHash();
    if (!hash.ok()) return hash.status();
    hashMs_ = inMs(clock_.now() - start);
    hash_ = *hash;
    return hash;
}

absl::Status ReplicaRank::Impl::tellHash(uint64_t step) {
    if (step != step_) return absl::OkStatus();  // overtaken: nobody waits for it any more
    absl::StatusOr<uint64_t> hash = stateHash();
    if (!hash.ok()) return hash.status();
    post(protocol::StateHashed{step, *hash, hashMs_});
    return absl::OkStatus();
}

void ReplicaRank::Impl::stands(bool updated) const {
    if (options_.probe.stands)
        options_.probe.stands({lineage_, step_, layout_, expertShard_, 0, last_, {}, {}, nullptr},
                              updated);
}

absl::Status ReplicaRank::Impl::loadCheckpoint(const protocol::Welcome& welcome) {
    const std::string& path = welcome.resumeFrom;
    absl::StatusOr<CheckpointManifest> manifest = readManifest(options_.host->files(), path);
    if (!manifest.ok()) return unusable(path, manifest.status());
    if (absl::Status s = checkIsMeant(path, *manifest, welcome.resumeStep, welcome.resumeHashes);
        !s.ok())
        return unusable(path, s);
    if (manifest->shards != options_.spec.shards)
        return absl::InvalidArgumentError(
            absl::StrCat(path, " was written by ", manifest->shards, " shards, this job has ",
                         options_.spec.shards, "; set shards = ", manifest->shards));
    if (absl::Status s = checkSameText(path, *manifest, options_.corpusHash, options_.corpusNewest);
        !s.ok())
        return s;
    absl::StatusOr<std::shared_ptr<StateSnapshot>> state =
        readShardFile(options_.host->files(), path, *manifest, options_.rank.shard);
    if (!state.ok()) return unusable(path, state.status());
    if (absl::Status s = importState(**state); !s.ok()) return s;
    // Another replica's would make this one draw what that one draws.
    if (manifest->replica != options_.rank.replica || (*state)->local.empty())
        return absl::OkStatus();
    return program_->importLocal((*state)->local);
}

/// The coordinator hears of it: an older checkpoint may do. No reason for this rank not to run
/// again.
absl::Status ReplicaRank::Impl::unusable(const std::string& path, const absl::Status& why) {
    const std::string reason(why.message());
    reactor_->post([this, path, reason] {
        sendUp(protocol::CheckpointUnusable{options_.rank.replica, options_.incarnation, path,
                                            reason});
    });
    return absl::UnavailableError(reason);
}

absl::StatusOr<StateSnapshot> ReplicaRank::Impl::label() {
    absl::StatusOr<uint64_t> hash = stateHash();
    if (!hash.ok()) return hash.status();
    return StateSnapshot{lineage_, step_, layout_, expertShard_, *hash, last_, {}, {}, nullptr};
}

absl::Status ReplicaRank::Impl::importState(const StateSnapshot& snapshot) {
    if (!snapshot.expertShard.empty() && snapshot.expertShard != expertShard_)
        if (absl::Status s = program_->adoptLayout(snapshot.expertShard); !s.ok()) return s;
    if (snapshot.bytes.size() != program_->stateBytes())
        return absl::FailedPreconditionError(absl::StrCat(
            "a state of ", snapshot.bytes.size(), " bytes for a shard of ", program_->stateBytes(),
            "; it belongs to another model, or to another optimizer or torch"));
    if (absl::Status s = program_->importState(0, snapshot.bytes); !s.ok()) return s;
    if (absl::Status s = program_->imported(); !s.ok()) return s;
    hash_.reset();
    absl::StatusOr<uint64_t> hash = stateHash();
    if (!hash.ok()) return hash.status();
    if (*hash != snapshot.hash)
        return absl::InternalError(absl::StrCat("the state of step ", snapshot.step,
                                                " has another hash after its import"));
    step_ = snapshot.step;
    layout_ = snapshot.layout;
    last_ = snapshot.last;
    records_.clear();
    contributions_ = 0;
    if (!snapshot.expertShard.empty()) expertShard_ = snapshot.expertShard;
    snapshots_.clear();
    forgetBefore();
    store_.clearDeltas();
    bindExchange();
    return absl::OkStatus();
}

absl::Status ReplicaRank::Impl::update(const CommitRecord& record, std::span<const float> reduced) {
    if (record.step != step_ + 1)
        return absl::InternalError(
            absl::StrCat("record of step ", record.step, " for a state of step ", step_));
    keepDelta(record, reduced);  // first: the update may use up the sum
    if (!record.skip)
        if (absl::Status s = program_->apply(record, reduced); !s.ok()) return s;
    snapshots_.changed();
    step_ = record.step;
    lineage_ = record.lineage;
    last_ = record;
    keepRecord(record);
    if (absl::Status s = damageParameter(record.step); !s.ok()) return s;
    hash_.reset();
    stands(true);
    applied_ = step_;
    ++progress_;
    return absl::OkStatus();
}

void ReplicaRank::Impl::keepDelta(const CommitRecord& record, std::span<const float> reduced) {
    program_->awaitSum();  // none overtakes the one before
    if (!store_.followed()) store_.clearDeltas();
    const bool judged = kept_ && *kept_ + 1 == record.step;  // the step may be replayed here
    if (!store_.followed() && !judged) return;
    if (record.skip) return store_.putDelta(record, {});
    sumIsJudged_ = judged;
    auto copy = std::make_shared<Floats>(store_.room(reduced.size()));
    if (reduced.data() != program_->reduced().data()) {
        std::copy(reduced.begin(), reduced.end(), copy->begin());
        return store_.putDelta(record, std::move(*copy));
    }
    program_->readSum(*copy, [this, record, copy](const absl::Status& s) {
        if (s.ok()) return store_.putDelta(record, std::move(*copy));
        if (absl::IsCancelled(s)) return store_.loseDelta(record.step, std::move(*copy));
        queue_.push({[s] { return s; }, std::nullopt});
    });
}

absl::Status ReplicaRank::Impl::damageParameter(uint64_t step) {
    const std::optional<uint64_t> where = faults_->takeParameterFlip(step);
    if (!where) return absl::OkStatus();
    const uint64_t offset = *where % std::max<uint64_t>(1, program_->parameterBytes());
    std::byte value{};
    if (absl::Status s = program_->exportState(offset, {&value, 1}); !s.ok()) return s;
    value ^= std::byte{1} << ((*where >> 48) % 8);
    spdlog::warn("step {}: injected: a bit of the state at byte {} is flipped", step, offset);
    return program_->importState(offset, {&value, 1});
}

absl::Status ReplicaRank::Impl::applyCommit(const protocol::ApplyCommit& action) {
    const CommitRecord& record = action.record;
    faults_->enter(record.step, protocol::Phase::kApply);
    const MonoNs start = clock_.now();
    double keepMs = 0;
    if (keepBefore_ == record.step) {
        absl::StatusOr<double> took = keepBefore();
        if (!took.ok()) return took.status();
        keepMs = *took;
    } else if (kept_ && record.contributors.size() > protocol::kMostThatTie) {
        forgetBefore();  // there were fewer for a while
    }
    if (absl::Status s = update(record, program_->reduced()); !s.ok()) return s;
    post(protocol::Applied{record.step, inMs(clock_.now() - start), keepMs});
    faults_->enter(record.step, protocol::Phase::kIdle);
    return action.checkpoint ? writeCheckpoint(action.dataPosition) : absl::OkStatus();
}

absl::StatusOr<double> ReplicaRank::Impl::keepBefore() {
    kept_.reset();
    if (noRoomToKeep_) return 0;
    const MonoNs start = clock_.now();
    absl::Status s = program_->keepState();
    if (absl::IsResourceExhausted(s)) {
        noRoomToKeep_ = true;
        spdlog::warn(
            "no room for a second copy of the state: if half of the replicas differ from the other "
            "half, all go back to the last checkpoint; a smaller micro_batch frees memory ({})",
            std::string(s.message()));
        return 0;
    }
    if (!s.ok()) return s;
    kept_ = step_;
    return program_->stateBytes() < kStateWorthTiming ? 0 : inMs(clock_.now() - start);
}

/// Memory is taken while nobody waits for this rank, not between two steps.
absl::Status ReplicaRank::Impl::takeRoomToKeep() {
    const model::JobSpec& spec = options_.spec;
    if (spec.policies.parityEverySteps == 0 || spec.replicas + spec.spares < 2 ||
        spec.replicas > protocol::kMostThatTie)
        return absl::OkStatus();
    return keepBefore().status();
}

void ReplicaRank::Impl::forgetBefore() {
    kept_.reset();
    program_->forgetKept();
}

/// Without a coordinator a checkpoint says by its records which samples it has seen: the commit log
/// may be damaged when somebody looks for it there.
absl::Status ReplicaRank::Impl::writeCheckpoint(const std::string& dataPosition) {
    absl::StatusOr<StateSnapshot> label = this->label();
    if (!label.ok()) return label.status();
    std::vector<CommitRecord> records;
    if (dataPosition.empty()) records.assign(records_.begin(), records_.end());
    snapshots_.give(*std::move(label),
                    [this, dataPosition, records](SnapshotCache::Snapshot snapshot) {
                        checkpoints_->write(std::move(snapshot), dataPosition, records);
                    });
    return absl::OkStatus();
}

void ReplicaRank::Impl::keepRecord(const CommitRecord& record) {
    if (options_.rank.shard != 0) return;
    records_.push_back(record);
    contributions_ += record.contributors.size();
    for (; contributions_ > kContributionsKept && records_.size() > 1; records_.pop_front())
        contributions_ -= records_.front().contributors.size();
}

void ReplicaRank::Impl::cannotGoOn(const absl::Status& why) {
    queue_.push({[why] { return why; }, std::nullopt});
}

/// Nobody may want it any more when it is there; then it is dropped again.
absl::Status ReplicaRank::Impl::takeSnapshot(uint64_t step) {
    if (step != step_)
        return absl::InternalError(
            absl::StrCat("a snapshot of step ", step, " was asked of a state of step ", step_));
    // Somebody may have found that the one before is not what its hash says. While the job waits
    // no vote would show that.
    const bool again = std::exchange(snapshotOf_, step) == step;
    absl::StatusOr<StateSnapshot> label = this->label();
    if (!label.ok()) return label.status();
    snapshots_.give(*std::move(label), [this, step, again](SnapshotCache::Snapshot snapshot) {
        if (absl::Status s = again ? checkIntact(*snapshot) : absl::OkStatus(); !s.ok())
            return cannotGoOn(s);
        store_.putSnapshot(std::move(snapshot));
        post(protocol::SnapshotTaken{step});
    });
    return absl::OkStatus();
}

absl::Status ReplicaRank::Impl::adopt(std::shared_ptr<const StateSnapshot> snapshot) {
    lineage_ = snapshot->lineage;
    if (absl::Status s = importState(*snapshot); !s.ok()) return s;
    applied_ = step_;
    stands(false);
    if (absl::Status s = clearGradient(); !s.ok()) return s;  // ahead of the exchange it enters by
    if (absl::Status s = takeRoomToKeep(); !s.ok()) return s;
    spdlog::info("adopted the state of step {}", step_);
    post(protocol::FetchDone{step_, snapshot->hash, layout_});
    return absl::OkStatus();
}

absl::Status ReplicaRank::Impl::clearGradient() {
    const std::span<float> gradient = program_->gradient();
    const std::vector<float> zeros(std::min(gradient.size(), kZerosAtOnce));
    for (size_t at = 0; at < gradient.size(); at += zeros.size()) {
        const size_t count = std::min(zeros.size(), gradient.size() - at);
        absl::Status s =
            program_->write(std::span(zeros).first(count), gradient.subspan(at, count));
        if (!s.ok()) return s;
    }
    gradientIsZero_ = true;
    return absl::OkStatus();
}

/// Gives zeros to the exchange that a joiner enters by. A gradient that was given up may have been
/// computed since its state was adopted.
absl::Status ReplicaRank::Impl::bringNothing(uint64_t generation) {
    if (!gradientIsZero_)
        if (absl::Status s = clearGradient(); !s.ok()) return s;
    exchange_->ready(generation, 0, ~0ull);
    return absl::OkStatus();
}

absl::Status ReplicaRank::Impl::replay(const Delta& delta) {
    if (delta.record.step <= step_) return absl::OkStatus();
    if (!delta.record.skip && delta.reduced.size() != program_->reduced().size())
        return absl::DataLossError(absl::StrCat("the delta of step ", delta.record.step, " has ",
                                                delta.reduced.size(), " values for a shard of ",
                                                program_->reduced().size()));
    if (absl::Status s = update(delta.record, delta.reduced); !s.ok()) return s;
    post(protocol::Replayed{step_});
    return absl::OkStatus();
}

/// By the sum of the exchange this joiner entered: it stands where a contributor's would.
absl::Status ReplicaRank::Impl::replayExchanged(const CommitRecord& record) {
    if (record.step <= step_) return absl::OkStatus();
    if (absl::Status s = update(record, program_->reduced()); !s.ok()) return s;
    program_->awaitSum();  // the next exchange it enters has its gradient at once
    post(protocol::Replayed{step_});
    return absl::OkStatus();
}

absl::Status ReplicaRank::Impl::judgeReplay(uint64_t step) {
    program_->awaitSum();
    const StateStore::DeltaPtr delta = store_.delta(step);
    if (step != step_ || !kept_ || *kept_ + 1 != step || delta == nullptr) {
        spdlog::warn("step {} cannot be replayed: its state before is not kept", step);
        post(protocol::ReplayJudged{step, false, false});
        return absl::OkStatus();
    }
    absl::StatusOr<StateSnapshot> label = this->label();
    if (!label.ok()) return label.status();
    absl::StatusOr<const StateSnapshot*> held = snapshots_.await(*std::move(label));
    if (!held.ok()) return held.status();
    absl::Status s = program_->restoreKept();
    if (s.ok() && !delta->record.skip) s = program_->apply(delta->record, delta->reduced);
    if (!s.ok()) return s;
    const absl::StatusOr<uint64_t> replayed = program_->stateHash();
    if (!replayed.ok()) return replayed.status();
    const bool matches = *replayed == (*held)->hash;
    spdlog::info("step {} replayed: the state {} its replay", step,
                 matches ? "matches" : "differs from");
    // Its own replay is evidence, not a repair: what counts is decided by the coordinator.
    s = program_->importState(0, (*held)->bytes);
    if (s.ok()) s = program_->imported();
    if (!s.ok()) return s;
    post(protocol::ReplayJudged{step, true, matches});
    return absl::OkStatus();
}

absl::Status ReplicaRank::Impl::moveLayout(const protocol::MoveLayout& action) {
    protocol::LayoutMoveDone done;
    done.layout = action.layout;
    forgetBefore();  // the move needs room for a second state itself
    absl::StatusOr<uint64_t> moved = program_->moveLayout(action.expertShard);
    done.ok = moved.ok();
    if (moved.ok()) {
        done.bytesMoved = *moved;
        layout_ = action.layout;
        if (absl::Status s = layoutChanged(); !s.ok()) return s;
        absl::StatusOr<uint64_t> hash = stateHash();
        if (!hash.ok()) return hash.status();
        done.hash = *hash;
    } else {
        done.error = std::string(moved.status().message());
    }
    post(done);
    return absl::OkStatus();
}

/// Drops copies in the old layout: joiners get the state in the new one, under its own hash.
absl::Status ReplicaRank::Impl::layoutChanged() {
    absl::StatusOr<std::vector<int32_t>> placement = program_->expertShard();
    if (!placement.ok()) return placement.status();
    expertShard_ = *std::move(placement);
    snapshots_.clear();
    forgetBefore();
    store_.clearDeltas();
    bindExchange();
    hash_.reset();
    stands(false);
    return absl::OkStatus();
}

absl::Status ReplicaRank::Impl::settleLayout(const protocol::SettleLayout& action) {
    if (absl::Status s = program_->settleLayout(action.adopt); !s.ok()) return s;
    if (action.adopt) return takeRoomToKeep();
    layout_ = action.countsInstead;
    if (absl::Status s = layoutChanged(); !s.ok()) return s;
    return takeRoomToKeep();
}

absl::Status ReplicaRank::Impl::leave(const protocol::ExitRank& action, bool orphaned) {
    Work end;
    end.finished = true;
    end.why = action.why;
    end.end = action.ok ? RankEnd::kLeft : orphaned ? RankEnd::kOrphaned : RankEnd::kExpelled;
    if (action.checkpoint) {
        absl::Status s = writeCheckpoint("");
        if (s.ok()) s = snapshots_.await(*label()).status();
        if (!s.ok())
            spdlog::error("no checkpoint while leaving: {}", std::string(s.message()));
        else if (!checkpoints_->await(step_, kOrphanCheckpointPatience))
            spdlog::error("the checkpoint of step {} was not finished in time", step_);
    }
    // finishWith() let nothing in behind this task; the end itself is the one exception.
    queue_.end(std::move(end));
    return absl::OkStatus();
}

}  // namespace bulkhead::runtime
