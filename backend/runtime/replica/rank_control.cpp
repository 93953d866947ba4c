// SPDX-License-Identifier: Apache-2.0
// The control thread of a rank: messages in, the machine's actions out.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/common/codec.h"
#include "backend/common/file_system.h"
#include "backend/common/limits.h"
#include "backend/model/event_json.h"
#include "backend/runtime/replica/rank_impl.h"

namespace bulkhead::runtime {
namespace {

constexpr size_t kKeysKept = 16;

PeerChoice choiceOf(model::TransportChoice choice) {
    switch (choice) {
        case model::TransportChoice::kShm:
            return PeerChoice::kShm;
        case model::TransportChoice::kTcp:
            return PeerChoice::kTcp;
        case model::TransportChoice::kAuto:
            break;
    }
    return PeerChoice::kAuto;
}

Algorithm algorithmOf(model::AllReduce choice) {
    switch (choice) {
        case model::AllReduce::kDirect:
            return Algorithm::kDirect;
        case model::AllReduce::kRing:
            return Algorithm::kRing;
        case model::AllReduce::kHierarchical:
            return Algorithm::kHierarchical;
        case model::AllReduce::kAuto:
            break;
    }
    return Algorithm::kAuto;
}

}  // namespace

/// The job's figure is for a source as a whole; each of its shards keeps its part.
uint64_t ReplicaRank::Impl::deltaBudget(const model::JobSpec& spec) const {
    return spec.policies.deltaBudgetBytes / std::max(1u, spec.shards);
}

void ReplicaRank::Impl::post(protocol::RankInput input) {
    reactor_->post([this, input = std::move(input)] { feed(input); });
}

void ReplicaRank::Impl::feed(const protocol::RankInput& input) {
    if (options_.probe.input) options_.probe.input(input);
    const protocol::RankActions actions = machine_.step(clock_.now(), input);
    for (const protocol::RankAction& action : actions) {
        if (options_.probe.action) options_.probe.action(action);
        std::visit([this](const auto& a) { on(a); }, action);
    }
}

void ReplicaRank::Impl::received(const protocol::ToReplica& message) {
    if (const auto* keep = std::get_if<protocol::KeepSnapshot>(&message); keep && keep->keep) {
        store_.allow(keep->key);
        store_.follow();
    }
    if (const auto* welcome = std::get_if<protocol::Welcome>(&message)) {
        absl::StatusOr<model::JobSpec> spec = model::fromJsonText<model::JobSpec>(welcome->jobJson);
        if (spec.ok()) {
            store_.setDeltaBudget(deltaBudget(*spec));
            checkpoints_->update(*spec, welcome->jobJson);
        } else {
            spdlog::warn("the job in the welcome cannot be read, the job file counts: {}",
                         std::string(spec.status().message()));
        }
    }
    feed(protocol::FromCoordinator{message});
}

/// A rank that was taken before goes on for as long as an orphan does: the controller may be put
/// back to the version before, and the state is here.
void ReplicaRank::Impl::refused(const absl::Status& why) {
    if (machine_.term() == 0) return cannotGoOn(why);
    spdlog::error("{}", std::string(why.message()));
}

void ReplicaRank::Impl::fromSibling(const protocol::ToLeader& message) {
    if (const auto* relay = std::get_if<protocol::Relay>(&message)) {
        if (relay->up) coordinator_->sendRaw(relay->payload);
        return;
    }
    if (const auto* part = std::get_if<protocol::RankCheckpoint>(&message))
        return checkpoints_->shardReported(*part);
    if (const auto* go = std::get_if<protocol::GroupGo>(&message)) return queue_.go(go->tasks);
    if (const auto* never = std::get_if<protocol::GroupNever>(&message)) return giveUp(never->task);
    if (const auto* ready = std::get_if<protocol::GroupReady>(&message)) return groupReady(*ready);
    absl::StatusOr<std::optional<protocol::ToCoordinator>> folded = fold_.add(message);
    if (!folded.ok())
        spdlog::warn("a sibling's message was refused: {}", std::string(folded.status().message()));
    else if (folded->has_value())
        sendUp(**folded);
}

void ReplicaRank::Impl::toLeader(const protocol::ToLeader& message) {
    if (leader_) return fromSibling(message);
    if (leaderLink_ != nullptr) leaderLink_->send(message);
}

void ReplicaRank::Impl::pushTogether(TrainingTask task) {
    if (options_.spec.shards > 1)
        readyFor_ = {options_.rank, options_.incarnation, *task.group, false};
    else
        task.group.reset();
    queue_.push(std::move(task));
    tellReady();
}

void ReplicaRank::Impl::tellReady() {
    if (readyFor_) toLeader(*readyFor_);
}

/// Leader only. A task that has begun goes on, whoever asks.
void ReplicaRank::Impl::groupReady(const protocol::GroupReady& ready) {
    if (ready.incarnation != options_.incarnation) return;
    if (ready.withdrawn && agreement_.withdraw(ready.rank.shard, ready.task)) {
        leaderLink_->sendToSiblings(protocol::GroupNever{ready.task});
        return giveUp(ready.task);
    }
    if (!ready.withdrawn && !agreement_.ready(ready.rank.shard, ready.task)) return;
    leaderLink_->sendToSiblings(protocol::GroupGo{agreement_.begun()});
    queue_.go(agreement_.begun());
}

void ReplicaRank::Impl::giveUp(const protocol::GroupTask& move) {
    if (readyFor_ && readyFor_->task == move) readyFor_.reset();
    if (!queue_.cancel(move)) return;
    protocol::LayoutMoveDone done;
    done.layout = move.layout;
    done.ok = false;
    done.error = "the job went on before all ranks of the replica were ready to move";
    feed(done);
}

void ReplicaRank::Impl::sendUp(const protocol::ToCoordinator& message) {
    if (coordinator_ != nullptr && coordinator_->send(message)) return;
    // A cut between this rank and the coordinator is not a death: a sibling may still get through.
    const protocol::Relay relay{true, encode(message)};
    if (leader_)
        leaderLink_->sendToSibling(relay);
    else if (leaderLink_ != nullptr)
        leaderLink_->send(relay);
}

std::string ReplicaRank::Impl::coordinatorNow() const {
    if (options_.controllerNote.empty()) return options_.coordinator;
    const std::string noted = diskFiles().read(options_.controllerNote).value_or("");
    return noted.empty() ? options_.coordinator : noted;
}

void ReplicaRank::Impl::beat() {
    coordinator_->follow();
    protocol::Beat beat;
    beat.rank = options_.rank;
    beat.incarnation = options_.incarnation;
    beat.phase = machine_.phase();
    beat.step = machine_.appliedStep();
    beat.progress = progress_;
    beat.keepMs = machine_.keepMs();
    beat.hashMs = machine_.hashMs();
    {
        const MutexLock lock(figuresMutex_);
        beat.gradNorm = gradNorm_;
        beat.gradStep = gradStep_;
    }
    if (machine_.hasState() && exchange_ != nullptr) beat.progress += exchange_->progress();
    sendUp(beat);
    feed(protocol::RankTick{});
}

void ReplicaRank::Impl::on(const protocol::BuildReplica& action) {
    if (!leader_ && !action.formed.ranks.empty())
        leaderLink_ = LeaderLink::follow(
            *reactor_, options_.host->network(), action.formed.ranks[0].control,
            options_.secrets.replica, [this](const protocol::ToLeader& m) { fromSibling(m); },
            [this] {
                tellReady();
                feed(protocol::LeaderBack{});
            });
    queue_.push({[this, action] { return build(action); }, std::nullopt});
}

ExchangeGroup ReplicaRank::Impl::groupOf(const protocol::Quorum& quorum) const {
    ExchangeGroup group;
    group.key = {quorum.term, quorum.epoch, quorum.step, quorum.attempt};
    group.secret = quorum.exchangeKey;
    group.transport = choiceOf(options_.spec.transport);
    group.wire =
        options_.spec.wire == model::WireType::kBfloat16 ? WireType::kBfloat16 : WireType::kFloat32;
    group.algorithm = algorithmOf(options_.spec.allReduce);
    group.connections = options_.spec.connections;
    group.chunkTimeout = static_cast<MonoNs>(quorum.chunkTimeoutMs) * kMillisecond;
    group.connectTimeout = std::max<MonoNs>(group.chunkTimeout, 2 * kSecond);
    for (const protocol::Member& member : quorum.contributors) {
        if (member.contribution.replica == options_.rank.replica)
            group.self = static_cast<int32_t>(group.peers.size());
        const protocol::RankEndpoint& rank = member.ranks[static_cast<size_t>(options_.rank.shard)];
        group.peers.push_back({member.contribution.replica, member.contribution.incarnation,
                               rank.host, rank.data, rank.shm});
    }
    return group;
}

/// Every replica of the job computes, and no spare follows.
bool ReplicaRank::Impl::complete(const protocol::Quorum& quorum) const {
    const auto computes = std::count_if(quorum.contributors.begin(), quorum.contributors.end(),
                                        [](const protocol::Member& m) { return !m.entering; });
    return options_.spec.spares == 0 &&
           static_cast<size_t>(computes) == size_t{options_.spec.replicas};
}

void ReplicaRank::Impl::on(const protocol::BeginStep& action) {
    const protocol::Quorum& quorum = action.quorum;
    const auto shard = static_cast<size_t>(options_.rank.shard);
    for (const protocol::Member& member : quorum.contributors)
        if (member.ranks.size() <= shard) {
            spdlog::error("the quorum of step {} names no shard {} of r{}", quorum.step, shard,
                          member.contribution.replica);
            return;
        }
    if (quorum.contributors.size() > kMaxGroupMembers)
        return queue_.push({[members = quorum.contributors.size()] {
                                return absl::FailedPreconditionError(absl::StrCat(
                                    "a step of ", members, " replicas: an exchange takes ",
                                    kMaxGroupMembers, " at most"));
                            },
                            std::nullopt});
    if (!action.enter) catchUp_->stop();  // a contributor has nothing to catch up with
    keepBefore_ = quorum.keepBefore ? quorum.step : 0;
    if (complete(quorum)) store_.unfollow();
    const ExchangeGroup group = groupOf(quorum);
    const protocol::ExchangeId id{quorum.step, quorum.epoch, quorum.attempt};
    keys_[id] = group.key;
    while (keys_.size() > kKeysKept) keys_.erase(keys_.begin());
    {
        const MutexLock lock(figuresMutex_);
        entering_.reset();
        if (action.enter) entering_ = id;
        incarnations_.clear();
        for (const ExchangePeer& peer : group.peers) incarnations_[peer.replica] = peer.incarnation;
    }
    Work work;
    if (action.compute) {
        // Computation that is still running belongs to a gradient that is no longer awaited.
        queue_.dropWork(quorum.step);
        protocol::GroupTask task{false, quorum.layout, quorum.step, 0, action.ranges};
        for (const protocol::Member& member : quorum.contributors)
            if (member.contribution.replica == options_.rank.replica)
                task.computation = member.computation;
        work.step = quorum.step;
        work.ranges = action.ranges;
        work.domainShare = quorum.domainShare;
        work.routedTokens = quorum.routedTokens;
        work.generation = exchange_->restart();
        pushTogether({nullptr, work, std::move(task)});
    } else if (action.enter) {
        spdlog::info("step {}: exchanging with the contributors", quorum.step);
        queue_.push({[this, generation = exchange_->restart()] { return bringNothing(generation); },
                     std::nullopt});
    } else {
        spdlog::info("step {}: exchange again, attempt {} of epoch {}: {}", quorum.step,
                     quorum.attempt, quorum.epoch, quorum.explanation);
    }
    exchange_->begin(id, group);
}

void ReplicaRank::Impl::on(const protocol::AbortExchange& action) {
    const auto it = keys_.find(action.id);
    if (it == keys_.end() || exchange_ == nullptr) return;
    spdlog::info("step {}: exchange aborted: {}", action.id.step, action.why);
    exchange_->abort(it->second, action.why);
}

void ReplicaRank::Impl::on(const protocol::DropStep& action) {
    queue_.dropWork(action.step);
    if (exchange_ == nullptr) return;
    exchange_->restart();
    for (const auto& [id, key] : keys_)
        if (id.step == action.step) exchange_->abort(key, "the step fell away");
}

void ReplicaRank::Impl::on(const protocol::ApplyCommit& action) {
    queue_.push({[this, action] { return applyCommit(action); }, std::nullopt});
}

void ReplicaRank::Impl::on(const protocol::HashState& action) {
    queue_.push({[this, step = action.step] { return tellHash(step); }, std::nullopt});
}

void ReplicaRank::Impl::on(const protocol::WriteCheckpoint& action) {
    queue_.push({[this, action] {
                     // Overtaken: the coordinator asks again with a later commit.
                     if (action.step != step_) return absl::OkStatus();
                     return writeCheckpoint(action.dataPosition);
                 },
                 std::nullopt});
}

void ReplicaRank::Impl::on(const protocol::RemoveCheckpoints& action) {
    checkpoints_->discard(action.paths);
}

void ReplicaRank::Impl::on(const protocol::TakeSnapshot& action) {
    queue_.push({[this, step = action.step] { return takeSnapshot(step); }, std::nullopt});
}

void ReplicaRank::Impl::on(const protocol::DropSnapshot& action) {
    store_.dropSnapshot(action.step);
}

void ReplicaRank::Impl::on(const protocol::BeginFetch& action) {
    spdlog::info("fetching the state of step {} from {} sources", action.fetch.snapshotStep,
                 action.fetch.sources.size());
    catchUp_->fetch(action.fetch);
}

void ReplicaRank::Impl::on(const protocol::ReplayCommit& action) {
    if (action.exchanged && !action.record.skip)
        return queue_.push(
            {[this, record = action.record] { return replayExchanged(record); }, std::nullopt});
    if (!action.record.skip) return catchUp_->replay(action.record);
    queue_.push({[this, delta = Delta{action.record, {}}] { return replay(delta); }, std::nullopt});
}

void ReplicaRank::Impl::on(const protocol::JudgeReplay& action) {
    queue_.push({[this, step = action.step] { return judgeReplay(step); }, std::nullopt});
}

void ReplicaRank::Impl::on(const protocol::MoveLayout& action) {
    protocol::GroupTask task;
    task.moves = true;
    task.layout = action.layout;
    pushTogether({[this, action] { return moveLayout(action); }, std::nullopt, std::move(task)});
}

void ReplicaRank::Impl::on(const protocol::AbandonMove& action) {
    if (!readyFor_ || !readyFor_->task.moves || readyFor_->task.layout != action.layout) return;
    readyFor_->withdrawn = true;
    tellReady();
}

void ReplicaRank::Impl::on(const protocol::SettleLayout& action) {
    queue_.push({[this, action] { return settleLayout(action); }, std::nullopt});
}

void ReplicaRank::Impl::on(const protocol::InjectFault& action) {
    faults_->inject(action.fault);
}

void ReplicaRank::Impl::on(const protocol::SendUp& action) {
    sendUp(action.message);
}

void ReplicaRank::Impl::on(const protocol::SendLeader& action) {
    toLeader(action.message);
}

void ReplicaRank::Impl::on(const protocol::ExitRank& action) {
    if (leaving_.exchange(true)) return;
    spdlog::log(action.ok ? spdlog::level::info : spdlog::level::warn, "leaving: {}", action.why);
    if (!action.ok && !action.checkpoint) checkpoints_->forbid();
    catchUp_->stop();
    for (const auto& [id, key] : keys_) exchange_->abort(key, "the rank leaves");
    program_->interrupt();
    const bool orphaned = !action.ok && !coordinator_->connected();
    queue_.finishWith({[this, action, orphaned] { return leave(action, orphaned); }, std::nullopt});
}

void ReplicaRank::Impl::requestLeave() {
    reactor_->post([this] {
        feed(protocol::Terminate{});
        if (!leaving_)
            spdlog::warn(
                "asked to end by a signal: it leaves when another replica or a checkpoint has its "
                "state; a second signal ends it at once");
    });
}

void ReplicaRank::Impl::reportHopeless(const std::string& why) {
    reactor_->post([this, why] {
        sendUp(protocol::RankHopeless{options_.rank, options_.incarnation, why});
    });
}

void ReplicaRank::Impl::exchanged(const ExchangeResult& result) {
    protocol::RankVote vote = figuresOf(result);
    ++progress_;
    if (!result.complete) {
        if (!absl::IsAborted(result.status)) {
            spdlog::warn("step {} attempt {}: exchange failed: {}", result.id.step,
                         result.id.attempt, std::string(result.status.message()));
            accuse(result);
        }
        faults_->enter(result.id.step, protocol::Phase::kVote);
        return post(protocol::ExchangeDone{result.id, false, std::move(vote), result.poisoned});
    }
    {
        const MutexLock lock(figuresMutex_);
        if (entering_ == result.id) return post(protocol::ExchangeDone{result.id, true, vote});
    }
    // The sum of squares is the program's arithmetic and so the training thread's. Where the
    // exchange is as fast as backward, only there the figures of this step are sure to be in.
    queue_.push({[this, id = result.id, vote]() mutable {
                     addFigures(vote);
                     absl::StatusOr<double> squares = program_->sumOfSquares(program_->reduced());
                     if (!squares.ok()) return squares.status();
                     vote.gradSquares = *squares;
                     faults_->enter(id.step, protocol::Phase::kVote);
                     post(protocol::ExchangeDone{id, true, vote});
                     return absl::OkStatus();
                 },
                 std::nullopt});
}

ExpertTraffic trafficOf(const std::vector<uint64_t>& expertCounts, size_t domains, size_t experts,
                        const std::vector<int32_t>& placement, int32_t shard) {
    ExpertTraffic traffic;
    if (placement.empty()) return traffic;
    traffic.copies.resize(domains);
    traffic.remote.resize(domains);
    const uint64_t* count = expertCounts.data();
    for (size_t layer = 0; layer < placement.size() / experts; ++layer)
        for (size_t domain = 0; domain < domains; ++domain)
            for (size_t expert = 0; expert < experts; ++expert, ++count) {
                const bool here = placement[layer * experts + expert] == shard;
                traffic.copies[domain] += *count;
                traffic.remote[domain] += here ? 0 : *count;
            }
    return traffic;
}

protocol::RankVote ReplicaRank::Impl::figuresOf(const ExchangeResult& result) {
    protocol::RankVote vote;
    vote.exchangeMs = result.exchangeMs;
    vote.exposedMs = result.exposedMs;
    vote.waitedOnMs = result.stats.waitedMs;
    vote.waitedOn = result.stats.waitedOn;
    vote.bytes = result.stats.bytesSent + result.stats.bytesReceived;
    for (const FailedPeer& peer : result.failedPeers) vote.failedPeers.push_back(peer.replica);
    return vote;
}

void ReplicaRank::Impl::addFigures(protocol::RankVote& vote) {
    const MutexLock lock(figuresMutex_);
    vote.computeMs = computeMs_;
    vote.lossSum = figures_.lossSum;
    vote.tokens = figures_.tokens;
    vote.domainLossSum = figures_.domainLossSum;
    vote.domainTokens = figures_.domainTokens;
    vote.expertCounts = figures_.expertCounts;
    vote.routed = figures_.routed;
    vote.traffic = figures_.traffic;
    vote.scalars = figures_.scalars;
}

void ReplicaRank::Impl::accuse(const ExchangeResult& result) {
    for (const FailedPeer& peer : result.failedPeers) {
        protocol::Evidence evidence;
        evidence.kind = peer.fault == PeerFault::kTimeout ? protocol::EvidenceKind::kChunkTimeout
                                                          : protocol::EvidenceKind::kTransportReset;
        evidence.accused = {peer.replica, options_.rank.shard};
        evidence.reporter = absl::StrCat("r", options_.rank.replica, "/s", options_.rank.shard);
        evidence.detail = peer.detail;
        evidence.step = result.id.step;
        evidence.epoch = result.id.epoch;
        evidence.attempt = result.id.attempt;
        {
            const MutexLock lock(figuresMutex_);
            const auto it = incarnations_.find(peer.replica);
            if (it == incarnations_.end()) continue;
            evidence.incarnation = it->second;
        }
        reactor_->post([this, evidence] { sendUp(evidence); });
    }
}

}  // namespace bulkhead::runtime
