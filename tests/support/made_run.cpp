// SPDX-License-Identifier: Apache-2.0
#include "tests/support/made_run.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "backend/common/ledger_chain.h"

namespace bulkhead::test {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int kStepMs = 380;
constexpr uint64_t kCheckpointBytes = 18'149'376;
constexpr size_t kMostSources = 3;
const char* const kDomainNames[] = {"code", "prose", "licence", "markup"};

/// Two replicas on a node.
std::string nodeOf(int32_t replica) {
    return "node" + std::to_string(replica / 2);
}

std::string name(int32_t replica) {
    return "r" + std::to_string(replica);
}

/// Experts on shards as a workload begins: the first ones on shard 0, and so on.
std::vector<int32_t> inBlocks(int shards) {
    std::vector<int32_t> out;
    for (int i = 0; i < MadeRun::kMoeLayers * MadeRun::kExperts; ++i)
        out.push_back(i % MadeRun::kExperts * shards / MadeRun::kExperts);
    return out;
}

/// A hash for what has none: any bits will do, as long as they are the same for the same state.
uint64_t mixed(uint64_t value) {
    value ^= value >> 33;
    value *= 0xff51afd7ed558ccdull;
    value ^= value >> 33;
    value *= 0xc4ceb9fe1a85ec53ull;
    return value ^ value >> 33;
}

}  // namespace

RunShape largeRun() {
    RunShape shape;
    shape.replicas = 12;
    shape.shards = 8;
    shape.decaySteps = 100'000;
    shape.lossEvery = 400;
    shape.rollbackEvery = 30'000;
    shape.checkpointEvery = 500;
    shape.loadsEvery = 20;
    shape.compares = true;
    shape.hasGpus = true;
    return shape;
}

MadeRun::MadeRun(RunShape shape)
    : shape_(shape),
      random_(shape.seed),
      states_(static_cast<size_t>(shape.replicas), model::ReplicaState::kStarting),
      incarnations_(static_cast<size_t>(shape.replicas), 1) {}

model::JobSpec MadeRun::spec() const {
    model::JobSpec s;
    s.name = "demo";
    s.replicas = shape_.replicas;
    s.shards = shape_.shards;
    s.optimizer.decaySteps = shape_.decaySteps;
    for (const char* domain : kDomainNames) s.domains.push_back({domain, {}});
    return s;
}

uint64_t MadeRun::random() {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    return random_;
}

double MadeRun::noise() {
    return static_cast<double>(random() % 10'000) / 5'000.0 - 1.0;
}

model::Event MadeRun::at(int64_t timeNs, model::EventBody body, model::Severity severity) {
    return {++seq_, timeNs, severity, std::move(body)};
}

void MadeRun::setState(std::vector<model::Event>& out, int64_t time, int32_t replica,
                       model::ReplicaState state, const std::string& why) {
    states_[static_cast<size_t>(replica)] = state;
    out.push_back(
        at(time, model::ReplicaChanged{replica, incarnations_[static_cast<size_t>(replica)], state,
                                       nodeOf(replica), step_, why}));
}

void MadeRun::startRanks(std::vector<model::Event>& out, int32_t replica, int64_t timeNs,
                         int32_t firstPid) {
    const uint32_t incarnation = incarnations_[static_cast<size_t>(replica)];
    for (int32_t s = 0; s < shape_.shards; ++s)
        out.push_back(at(
            timeNs, model::RankStarted{{replica, s}, incarnation, firstPid + s, nodeOf(replica)}));
}

std::vector<model::Event> MadeRun::opening() {
    std::vector<model::Event> out;
    out.push_back(at(now_, model::RunStarted{spec(), "0.1.0", "workstation", ""}));
    link_ = chainLink(link_, LineageLink{lineage_, 0});
    out.push_back(at(now_, model::LineageOpened{lineage_, 0, 1, "a fresh run", link_}));
    const auto slots = static_cast<uint32_t>(2 * shape_.shards);
    for (int32_t r = 0; r < shape_.replicas; r += 2)
        out.push_back(at(now_, model::NodeChanged{nodeOf(r), "127.0.0." + std::to_string(1 + r / 2),
                                                  slots, model::NodeState::kUp, ""}));
    out.push_back(at(now_, model::ModelDescribed{{"llama-moe tiny",
                                                  1'512'448,
                                                  688'128,
                                                  12,
                                                  kMoeLayers,
                                                  kExperts,
                                                  1,
                                                  {1, 3, 5, 7, 9, 11},
                                                  294'912,
                                                  inBlocks(shape_.shards)}}));
    for (int32_t r = 0; r < shape_.replicas; ++r) {
        setState(out, now_, r, model::ReplicaState::kStarting, "first start");
        startRanks(out, r, now_ + 20 * kMs, 4200 + r * shape_.shards);
        for (int32_t s = 0; s < shape_.shards; ++s)
            out.push_back(
                at(now_ + 90 * kMs,
                   model::RankOutput{
                       {r, s}, 1, true, "14:13:20.090 info groups built, 1512448 parameters"}));
    }
    now_ += 900 * kMs;
    out.push_back(at(now_, model::JobPhaseChanged{model::JobPhase::kTraining, ""}));
    for (int32_t r = 0; r < shape_.replicas; ++r)
        setState(out, now_, r, model::ReplicaState::kTraining, "");
    return out;
}

std::vector<model::Event> MadeRun::nextStep() {
    std::vector<model::Event> out;
    const bool due = shape_.rollbackEvery > 0 && step_ >= rollbackAt_ + shape_.rollbackEvery;
    if (due && away_ < 0) goBack(out);
    ++step_;
    mayLose(out);
    comeBack(out);
    commit(out);
    sample(out);
    if (step_ % shape_.loadsEvery == 0) loads(out);
    if (step_ % shape_.checkpointEvery == 0) checkpoint(out);
    return out;
}

std::vector<model::Event> MadeRun::events(int steps) {
    std::vector<model::Event> all = opening();
    for (int i = 0; i < steps; ++i)
        for (model::Event& e : nextStep()) all.push_back(std::move(e));
    return all;
}

model::Event MadeRun::ending() {
    return at(now_, model::RunFinished{true, "all steps done", step_});
}

void MadeRun::mayLose(std::vector<model::Event>& out) {
    if (shape_.lossEvery == 0) {
        if (step_ == 40) lose(out, 2, true);
        if (step_ == 90) lose(out, 1, false);
    } else if (away_ < 0 && random() % shape_.lossEvery == 0) {
        const auto replica =
            static_cast<int32_t>(random() % static_cast<uint64_t>(shape_.replicas));
        lose(out, replica, random() % 2 == 0);
    }
}

/// Back to the last checkpoint: what was committed behind it does not count any more.
void MadeRun::goBack(std::vector<model::Event>& out) {
    rollbackAt_ = step_;
    const std::string where = "step " + std::to_string(checkpointStep_);
    out.push_back(at(now_, model::JobPhaseChanged{model::JobPhase::kWaiting,
                                                  "going back to the checkpoint of " + where}));
    ++lineage_;
    ++epoch_;
    link_ = chainLink(link_, LineageLink{lineage_, checkpointStep_});
    out.push_back(at(now_,
                     model::LineageOpened{lineage_, checkpointStep_, 1,
                                          "no replica has the state of a later step", link_},
                     model::Severity::kWarning));
    now_ += 4 * kStepMs * kMs;
    out.push_back(at(now_, model::JobPhaseChanged{model::JobPhase::kTraining, ""}));
    step_ = checkpointStep_;
    sample_ = checkpointSample_;
}

void MadeRun::lose(std::vector<model::Event>& out, int32_t replica, bool injected) {
    using enum model::IncidentPhaseKind;
    const int64_t t0 = now_ + 150 * kMs;
    const RankId rank{replica, shape_.shards > 1 ? 1 : 0};
    openFault_ = injected ? ++faults_ : 0;
    if (injected) {
        model::FaultSpec spec;
        spec.kind = model::FaultKind::kKillRank;
        spec.replica = replica;
        spec.shard = rank.shard;
        spec.atStep = step_;
        out.push_back(at(t0, model::FaultInjected{openFault_, spec, step_, "operator@console"},
                         model::Severity::kNotice));
    }
    const auto inc = incarnations_[static_cast<size_t>(replica)];
    out.push_back(at(t0 + 3 * kMs, model::RankExited{rank, inc, 4200, 0, 9, false},
                     model::Severity::kWarning));
    out.push_back(at(t0 + 4 * kMs,
                     model::EvidenceSeen{model::EvidenceKind::kProcessExit, replica, rank.shard,
                                         "agent " + nodeOf(replica), "exited on signal 9"},
                     model::Severity::kWarning));
    ++incident_;
    out.push_back(at(t0 + 5 * kMs,
                     model::IncidentOpened{incident_, replica, inc, step_,
                                           model::EvidenceKind::kProcessExit, openFault_,
                                           name(replica) + " lost: " + name(replica) + "s" +
                                               std::to_string(rank.shard) + " exited on signal 9"},
                     model::Severity::kWarning));
    setState(out, t0 + 5 * kMs, replica, model::ReplicaState::kBackingOff, "starts again in 0.5 s");
    ++epoch_;
    out.push_back(at(t0 + 6 * kMs,
                     model::StepRedone{step_, epoch_, 2, {replica}, 0, name(replica) + " lost"},
                     model::Severity::kNotice));
    const int64_t edges[] = {0, 4, 7, 46, 118};
    const model::IncidentPhaseKind kinds[] = {kDetect, kDecide, kReform, kReexchange};
    for (int i = 0; i < 4; ++i)
        out.push_back(at(t0 + edges[i + 1] * kMs,
                         model::IncidentPhase{incident_, kinds[i], t0 + edges[i] * kMs,
                                              t0 + edges[i + 1] * kMs}));
    stallMs_ = 118;
    now_ += 118 * kMs;
    away_ = replica;
    awaySince_ = step_;
    awayNs_ = t0;
}

void MadeRun::comeBack(std::vector<model::Event>& out) {
    using enum model::IncidentPhaseKind;
    if (away_ < 0 || step_ == awaySince_) return;
    const uint64_t n = step_ - awaySince_;
    const auto phase = [&](model::IncidentPhaseKind kind, int64_t from, int64_t to) {
        out.push_back(at(to, model::IncidentPhase{incident_, kind, from, to}));
    };
    if (n == 2) {
        ++incarnations_[static_cast<size_t>(away_)];
        phase(kRestart, awayNs_ + 5 * kMs, now_);
        setState(out, now_, away_, model::ReplicaState::kStarting,
                 "restarted by agent " + nodeOf(away_));
        startRanks(out, away_, now_, 5300);
    } else if (n == 4) {
        phase(kInit, now_ - 2 * kStepMs * kMs, now_);
        setState(out, now_, away_, model::ReplicaState::kFetching, "");
    } else if (n == 5 || n == 6) {
        std::vector<int32_t> sources;
        for (int32_t r = 0; r < shape_.replicas && sources.size() < kMostSources; ++r)
            if (r != away_) sources.push_back(r);
        out.push_back(
            at(now_, model::CatchUpProgress{away_, incarnations_[static_cast<size_t>(away_)],
                                            step_ - 1, n == 5 ? 7'340'032u : 16'777'216u,
                                            kCheckpointBytes, 0, std::move(sources)}));
    } else if (n == 7) {
        phase(kFetch, now_ - 3 * kStepMs * kMs, now_);
        setState(out, now_, away_, model::ReplicaState::kReplaying, "");
    } else if (n == 9) {
        phase(kReplay, now_ - 2 * kStepMs * kMs, now_);
        setState(out, now_, away_, model::ReplicaState::kProven,
                 "its hash equals the contributors'");
    } else if (n == 10) {
        phase(kJoin, now_ - kStepMs * kMs, now_);
        setState(out, now_, away_, model::ReplicaState::kTraining, "");
        out.push_back(
            at(now_,
               model::IncidentClosed{incident_, 46, static_cast<double>(now_ - awayNs_) / 1e6,
                                     static_cast<double>(now_ - awayNs_) / 1e9 + 0.14, 0,
                                     "rejoined at step " + std::to_string(step_)},
               model::Severity::kNotice));
        if (openFault_ != 0) out.push_back(at(now_, model::FaultEnded{openFault_, "done"}));
        away_ = -1;
        ++epoch_;
    }
}

void MadeRun::commit(std::vector<model::Event>& out) {
    const double x = static_cast<double>(step_);
    model::QuorumDecided quorum;
    quorum.step = step_;
    quorum.epoch = epoch_;
    model::StepCommitted c;
    c.record.lineage = lineage_;
    c.record.term = 1;
    c.record.step = step_;
    c.record.epoch = epoch_;
    c.record.attempt = stallMs_ > 0 ? 2 : 1;
    for (int32_t r = 0; r < shape_.replicas; ++r) {
        if (states_[static_cast<size_t>(r)] != model::ReplicaState::kTraining) continue;
        quorum.contributors.push_back(
            {r, incarnations_[static_cast<size_t>(r)], {{0, sample_, sample_ + 4}}});
        sample_ += 4;
        model::ReplicaLedger line;
        line.replica = r;
        line.computeMs = 290 + 8 * noise();
        line.exchangeMs = 62 + 5 * noise();
        line.exposedMs = 21 + 3 * noise();
        line.voteMs = 3.2;
        line.applyMs = 18 + noise();
        c.replicas.push_back(line);
    }
    if (away_ >= 0) quorum.joiners.push_back(away_);
    quorum.explanation = away_ >= 0 ? name(away_) + " catches up; the others go on without it"
                                    : "all replicas are ready";
    out.push_back(at(now_ + 5 * kMs, quorum));
    const auto n = quorum.contributors.size();
    const double stepMs = kStepMs + 14 * noise() + stallMs_;
    now_ += static_cast<int64_t>(stepMs * 1e6);
    c.record.contributors = quorum.contributors;
    c.record.samples = n * 4;
    c.record.tokens = n * 4 * 128;
    const double decay = static_cast<double>(shape_.decaySteps);
    const double part = x / decay;
    c.loss = 1.55 + 3.9 * std::exp(-x / (0.1375 * decay)) + 0.05 * noise();
    c.gradNorm = 0.7 + 2.6 * std::exp(-x / (0.1 * decay)) + 0.12 * noise();
    c.learningRate =
        part < 0.05 ? 3e-3 * part / 0.05 : 3e-4 + 2.7e-3 * (1 + std::cos(part * 3.14159)) / 2;
    c.stepMs = stepMs;
    c.commitMs = 1.4;
    c.tokensPerSecond = static_cast<double>(c.record.tokens) / stepMs * 1000;
    useful_ += (stepMs - stallMs_) * static_cast<double>(n) / shape_.replicas;
    wall_ += stepMs;
    c.effectiveTime = useful_ / wall_;
    for (int d = 0; d < kDomains; ++d) c.domainLoss.push_back(c.loss + 0.25 * (d - 1.5));
    c.traffic.copies.assign(kDomains, c.record.tokens * kMoeLayers / kDomains);
    c.traffic.remote.assign(kDomains, c.record.tokens * kMoeLayers / kDomains / 2);
    c.traffic.bytes = c.record.tokens * kMoeLayers / 2 * 4 * 128 * sizeof(float);
    c.record.layout = layout_;
    stallMs_ = 0;
    if (shape_.compares) compareStates(c);
    link_ = chainLink(link_, StepLink{c.record, c.loss, c.gradNorm, c.parity});
    c.link = link_;
    out.push_back(at(now_, c));
}

void MadeRun::compareStates(model::StepCommitted& step) {
    ParityGroup group;
    for (int32_t s = 0; s < shape_.shards; ++s) {
        const uint64_t hash = mixed(lineage_ << 48 ^ step_ << 16 ^ static_cast<uint64_t>(s));
        step.shards.push_back({s, hash, 40 + noise()});
        group.hashes.push_back(hash);
    }
    for (const Contribution& c : step.record.contributors) {
        group.replicas.push_back(c.replica);
        group.incarnations.push_back(c.incarnation);
    }
    step.parity.push_back(std::move(group));
}

void MadeRun::checkpoint(std::vector<model::Event>& out) {
    checkpointStep_ = step_;
    checkpointSample_ = sample_;
    out.push_back(
        at(now_, model::CheckpointWritten{step_, 0, "/tmp/ckpt", kCheckpointBytes, 142, true, ""}));
}

model::Event MadeRun::moveExperts(const model::Action& action) {
    return at(now_, model::LayoutChanged{step_, ++layout_, true, 4'718'592, action.expertShard, "",
                                         action.domainShare, action.predictedRemote});
}

model::Event MadeRun::done(const model::Action& action) {
    return at(now_,
              model::OperatorActed{action, "", "test", std::string(model::OperatorActed::kDone)});
}

model::Event MadeRun::propose(const model::Action& action, const char* why) {
    model::PlanProposed plan;
    plan.step = step_;
    plan.layout = layout_;
    plan.why = why;
    plan.measuredRemote = 0.51;
    plan.predictedRemote = action.predictedRemote;
    plan.expertsMoved = 12;
    plan.bytesMoved = 4'718'592;
    plan.expertShard = action.expertShard;
    plan.domainShare = action.domainShare;
    return at(now_, plan, model::Severity::kNotice);
}

void MadeRun::sample(std::vector<model::Event>& out) {
    model::FleetSampled fleet;
    for (int32_t r = 0; r < shape_.replicas; ++r)
        for (int32_t s = 0; s < shape_.shards; ++s) {
            const bool trains = states_[static_cast<size_t>(r)] == model::ReplicaState::kTraining;
            if (states_[static_cast<size_t>(r)] == model::ReplicaState::kBackingOff) continue;
            model::RankSample k;
            k.rank = {r, s};
            k.incarnation = incarnations_[static_cast<size_t>(r)];
            k.phase = trains ? model::RankPhase::kCompute : model::RankPhase::kFetch;
            k.step = trains ? step_ : 0;
            k.beatAgeMs = 40 + 30 * noise();
            k.progressAgeMs = 55 + 40 * noise();
            if (trains) k.tokensPerSecond = 620 + 20 * noise();
            k.cpuPercent = 23 + 2 * noise();
            k.rssBytes = static_cast<uint64_t>(61e6 + 1e6 * noise());
            fleet.ranks.push_back(k);
        }
    if (shape_.hasGpus && step_ % 10 == 0) fleet.nodes = gpus();
    out.push_back(at(now_ + kMs, fleet));
}

std::vector<model::NodeSample> MadeRun::gpus() {
    constexpr uint64_t kGigabyte = 1ull << 30;
    constexpr int32_t kMostGpus = 64;
    std::vector<model::NodeSample> nodes;
    for (int32_t r = 0; r < shape_.replicas; r += 2) {
        model::NodeSample node;
        node.node = nodeOf(r);
        node.memoryTotalBytes = 512 * kGigabyte;
        node.memoryAvailableBytes = 300 * kGigabyte + random() % kGigabyte;
        for (int32_t i = 0; i < std::min(2 * shape_.shards, kMostGpus); ++i) {
            model::GpuSample gpu;
            gpu.gpu = static_cast<uint32_t>(i);
            gpu.name = "NVIDIA H100 80GB HBM3";
            gpu.busyPercent = 92 + std::floor(6 * noise());
            gpu.memoryTotalBytes = 80 * kGigabyte;
            gpu.memoryUsedBytes = 61 * kGigabyte + random() % kGigabyte;
            gpu.temperatureCelsius = 58 + std::floor(4 * noise());
            gpu.powerWatts = 610 + std::floor(40 * noise());
            gpu.clockMhz = 1980;
            gpu.memoryClockMhz = 2619;
            gpu.eccUncorrected = 0;
            node.gpus.push_back(std::move(gpu));
        }
        nodes.push_back(std::move(node));
    }
    return nodes;
}

void MadeRun::loads(std::vector<model::Event>& out) {
    model::ExpertLoads e;
    e.step = step_;
    e.moeLayers = kMoeLayers;
    e.domains = kDomains;
    e.experts = kExperts;
    for (int l = 0; l < kMoeLayers; ++l)
        for (int d = 0; d < kDomains; ++d)
            for (int x = 0; x < kExperts; ++x) {
                // Each domain has a few favourites that differ from layer to layer.
                const bool favourite = (x + 3 * l + 4 * d) % kExperts < 3;
                const double mean = favourite ? 210 : 62 + 26 * std::sin(x * 1.7 + l);
                e.counts.push_back(static_cast<uint64_t>(mean + 14 * noise()));
            }
    out.push_back(at(now_ + 2 * kMs, e));
}

}  // namespace bulkhead::test
