// SPDX-License-Identifier: GPL-3.0-only
#include "tests/app/support/sample_run.h"

#include <cmath>
#include <string>

namespace bulkhead::test {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int kStepMs = 380;
const char* const kDomainNames[] = {"code", "prose", "licence", "markup"};

model::JobSpec spec() {
    model::JobSpec s;
    s.name = "demo";
    s.replicas = SampleRun::kReplicas;
    s.shards = SampleRun::kShards;
    s.optimizer.decaySteps = 400;
    for (const char* name : kDomainNames) s.domains.push_back({name, {}});
    return s;
}

/// Experts on shards as a workload begins: the first ones on shard 0, and so on.
std::vector<int32_t> inBlocks() {
    std::vector<int32_t> shards;
    for (int i = 0; i < SampleRun::kMoeLayers * SampleRun::kExperts; ++i)
        shards.push_back(i % SampleRun::kExperts * SampleRun::kShards / SampleRun::kExperts);
    return shards;
}

}  // namespace

SampleRun::SampleRun()
    : states_(kReplicas, model::ReplicaState::kStarting), incarnations_(kReplicas, 1) {}

double SampleRun::noise() {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    return static_cast<double>(random_ % 10'000) / 5'000.0 - 1.0;
}

model::Event SampleRun::at(int64_t timeNs, model::EventBody body, model::Severity severity) {
    return {++seq_, timeNs, severity, std::move(body)};
}

void SampleRun::setState(std::vector<model::Event>& out, int64_t time, int32_t replica,
                         model::ReplicaState state, const char* why) {
    states_[static_cast<size_t>(replica)] = state;
    out.push_back(
        at(time, model::ReplicaChanged{replica, incarnations_[static_cast<size_t>(replica)], state,
                                       replica < 2 ? "node0" : "node1", step_, why}));
}

std::vector<model::Event> SampleRun::opening() {
    std::vector<model::Event> out;
    out.push_back(at(now_, model::RunStarted{spec(), "0.1.0", "workstation", ""}));
    out.push_back(at(now_, model::LineageOpened{1, 0, 1, "a fresh run"}));
    out.push_back(at(now_, model::NodeChanged{"node0", "127.0.0.1", 4, model::NodeState::kUp, ""}));
    out.push_back(at(now_, model::NodeChanged{"node1", "127.0.0.2", 4, model::NodeState::kUp, ""}));
    out.push_back(at(now_, model::ModelDescribed{{"llama-moe tiny",
                                                  1'512'448,
                                                  688'128,
                                                  12,
                                                  kMoeLayers,
                                                  kExperts,
                                                  1,
                                                  {1, 3, 5, 7, 9, 11},
                                                  294'912,
                                                  inBlocks()}}));
    for (int32_t r = 0; r < kReplicas; ++r) {
        setState(out, now_, r, model::ReplicaState::kStarting, "first start");
        for (int32_t s = 0; s < kShards; ++s) {
            out.push_back(
                at(now_ + 20 * kMs,
                   model::RankStarted{{r, s}, 1, 4200 + r * 2 + s, r < 2 ? "node0" : "node1"}));
            out.push_back(
                at(now_ + 90 * kMs,
                   model::RankOutput{
                       {r, s}, 1, true, "14:13:20.090 info groups built, 1512448 parameters"}));
        }
    }
    now_ += 900 * kMs;
    out.push_back(at(now_, model::JobPhaseChanged{model::JobPhase::kTraining, ""}));
    for (int32_t r = 0; r < kReplicas; ++r)
        setState(out, now_, r, model::ReplicaState::kTraining, "");
    return out;
}

std::vector<model::Event> SampleRun::nextStep() {
    std::vector<model::Event> out;
    ++step_;
    if (step_ == 40) lose(out, 2, 1);
    if (step_ == 90) lose(out, 1, 0);
    comeBack(out);
    commit(out);
    sample(out);
    if (step_ % 2 == 0) loads(out);
    if (step_ % 50 == 0)
        out.push_back(
            at(now_, model::CheckpointWritten{step_, 0, "/tmp/ckpt", 18'149'376, 142, true, ""}));
    return out;
}

std::vector<model::Event> SampleRun::events(int steps) {
    std::vector<model::Event> all = opening();
    for (int i = 0; i < steps; ++i)
        for (model::Event& e : nextStep()) all.push_back(std::move(e));
    return all;
}

void SampleRun::lose(std::vector<model::Event>& out, int32_t replica, uint64_t fault) {
    using enum model::IncidentPhaseKind;
    const int64_t t0 = now_ + 150 * kMs;
    const RankId rank{replica, 1};
    if (fault != 0) {
        model::FaultSpec spec;
        spec.kind = model::FaultKind::kKillRank;
        spec.replica = replica;
        spec.shard = 1;
        spec.atStep = step_;
        out.push_back(at(t0, model::FaultInjected{fault, spec, step_, "operator@console"},
                         model::Severity::kNotice));
    }
    const auto inc = incarnations_[static_cast<size_t>(replica)];
    out.push_back(at(t0 + 3 * kMs, model::RankExited{rank, inc, 4200, 0, 9, false},
                     model::Severity::kWarning));
    out.push_back(at(t0 + 4 * kMs,
                     model::EvidenceSeen{model::EvidenceKind::kProcessExit, replica, 1,
                                         "agent node1", "exited on signal 9"},
                     model::Severity::kWarning));
    ++incident_;
    out.push_back(at(t0 + 5 * kMs,
                     model::IncidentOpened{incident_, replica, inc, step_,
                                           model::EvidenceKind::kProcessExit, fault,
                                           "r" + std::to_string(replica) + " lost: r" +
                                               std::to_string(replica) + "s1 exited on signal 9"},
                     model::Severity::kWarning));
    setState(out, t0 + 5 * kMs, replica, model::ReplicaState::kBackingOff, "starts again in 0.5 s");
    ++epoch_;
    out.push_back(at(
        t0 + 6 * kMs,
        model::StepRedone{step_, epoch_, 2, {replica}, 0, "r" + std::to_string(replica) + " lost"},
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

void SampleRun::comeBack(std::vector<model::Event>& out) {
    using enum model::IncidentPhaseKind;
    if (away_ < 0 || step_ == awaySince_) return;
    const uint64_t n = step_ - awaySince_;
    const auto phase = [&](model::IncidentPhaseKind kind, int64_t from, int64_t to) {
        out.push_back(at(to, model::IncidentPhase{incident_, kind, from, to}));
    };
    if (n == 2) {
        ++incarnations_[static_cast<size_t>(away_)];
        phase(kRestart, awayNs_ + 5 * kMs, now_);
        setState(out, now_, away_, model::ReplicaState::kStarting, "restarted by agent node1");
        for (int32_t s = 0; s < kShards; ++s)
            out.push_back(at(now_, model::RankStarted{{away_, s}, 2, 5300 + s, "node1"}));
    } else if (n == 4) {
        phase(kInit, now_ - 2 * kStepMs * kMs, now_);
        setState(out, now_, away_, model::ReplicaState::kFetching, "");
    } else if (n == 5 || n == 6) {
        out.push_back(at(
            now_,
            model::CatchUpProgress{
                away_, 2, step_ - 1, n == 5 ? 7'340'032u : 16'777'216u, 18'149'376, 0, {0, 1, 3}}));
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
        if (incident_ == 1) out.push_back(at(now_, model::FaultEnded{1, "done"}));
        away_ = -1;
        ++epoch_;
    }
}

void SampleRun::commit(std::vector<model::Event>& out) {
    const double x = static_cast<double>(step_);
    model::QuorumDecided quorum;
    quorum.step = step_;
    quorum.epoch = epoch_;
    model::StepCommitted c;
    c.record.lineage = 1;
    c.record.term = 1;
    c.record.step = step_;
    c.record.epoch = epoch_;
    c.record.attempt = stallMs_ > 0 ? 2 : 1;
    for (int32_t r = 0; r < kReplicas; ++r) {
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
    quorum.explanation =
        away_ >= 0 ? "r" + std::to_string(away_) + " catches up; the others go on without it"
                   : "all replicas are ready";
    out.push_back(at(now_ + 5 * kMs, quorum));
    const auto n = quorum.contributors.size();
    const double stepMs = kStepMs + 14 * noise() + stallMs_;
    now_ += static_cast<int64_t>(stepMs * 1e6);
    c.record.contributors = quorum.contributors;
    c.record.samples = n * 4;
    c.record.tokens = n * 4 * 128;
    c.loss = 1.55 + 3.9 * std::exp(-x / 55) + 0.05 * noise();
    c.gradNorm = 0.7 + 2.6 * std::exp(-x / 40) + 0.12 * noise();
    c.learningRate = x < 20 ? 3e-3 * x / 20 : 3e-4 + 2.7e-3 * (1 + std::cos(x / 400 * 3.14159)) / 2;
    c.stepMs = stepMs;
    c.commitMs = 1.4;
    c.tokensPerSecond = static_cast<double>(c.record.tokens) / stepMs * 1000;
    useful_ += (stepMs - stallMs_) * static_cast<double>(n) / kReplicas;
    wall_ += stepMs;
    c.effectiveTime = useful_ / wall_;
    for (int d = 0; d < kDomains; ++d) c.domainLoss.push_back(c.loss + 0.25 * (d - 1.5));
    c.traffic.copies.assign(kDomains, c.record.tokens * kMoeLayers / kDomains);
    c.traffic.remote.assign(kDomains, c.record.tokens * kMoeLayers / kDomains / 2);
    c.traffic.bytes = c.record.tokens * kMoeLayers / 2 * 4 * 128 * sizeof(float);
    c.record.layout = layout_;
    stallMs_ = 0;
    out.push_back(at(now_, c));
}

model::Event SampleRun::moveExperts(const model::Action& action) {
    return at(now_, model::LayoutChanged{step_, ++layout_, true, 4'718'592, action.expertShard, "",
                                         action.domainShare, action.predictedRemote});
}

model::Event SampleRun::done(const model::Action& action) {
    return at(now_,
              model::OperatorActed{action, "", "test", std::string(model::OperatorActed::kDone)});
}

model::Event SampleRun::propose(const model::Action& action, const char* why) {
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

void SampleRun::sample(std::vector<model::Event>& out) {
    model::FleetSampled fleet;
    for (int32_t r = 0; r < kReplicas; ++r)
        for (int32_t s = 0; s < kShards; ++s) {
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
    out.push_back(at(now_ + kMs, fleet));
}

void SampleRun::loads(std::vector<model::Event>& out) {
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
