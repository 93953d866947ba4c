// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/telemetry.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "backend/runtime/coordinator/fact_events.h"
#include "backend/runtime/coordinator/job_past.h"
#include "backend/runtime/coordinator/spec_options.h"

namespace bulkhead::runtime {
namespace {

using testing::ElementsAre;

protocol::Beat beat(uint32_t incarnation, uint64_t progress) {
    protocol::Beat b;
    b.rank = {1, 0};
    b.incarnation = incarnation;
    b.phase = protocol::Phase::kCompute;
    b.progress = progress;
    return b;
}

TEST(FleetBook, AgesTellSilenceFromStandstill) {
    FleetBook book;
    book.started({1, 0}, 1);
    book.beat(beat(1, 5), 1 * kSecond);
    book.beat(beat(1, 5), 2 * kSecond);
    const auto line = book.sample(3 * kSecond, false).ranks.at(0);
    EXPECT_EQ(line.phase, model::RankPhase::kCompute);
    EXPECT_EQ(line.beatAgeMs, 1000);
    EXPECT_EQ(line.progressAgeMs, 2000);
    EXPECT_FALSE(line.cpuPercent.has_value()) << "unknown is absent, not zero";
}

TEST(FleetBook, ARankThatHasNotBeatenHasNoAge) {
    FleetBook book;
    book.started({1, 0}, 1);
    const auto line = book.sample(3 * kSecond, false).ranks.at(0);
    EXPECT_FALSE(line.beatAgeMs);
    EXPECT_FALSE(line.progressAgeMs);
}

TEST(FleetBook, ABeatOfAnOlderIncarnationChangesNothing) {
    FleetBook book;
    book.started({1, 0}, 2);
    book.beat(beat(1, 5), kSecond);
    EXPECT_EQ(book.sample(kSecond, false).ranks.at(0).phase, model::RankPhase::kStarting);
}

TEST(FleetBook, AGoneRankHasNoFigures) {
    FleetBook book;
    book.started({1, 0}, 1);
    book.sampled(ProcessSample{{"run", {1, 0}, 1}, 50.0, 1000, 97.0, 2000, {1}});
    EXPECT_EQ(book.sample(0, false).ranks.at(0).cpuPercent, 50.0);
    book.exited({1, 0}, 1);
    EXPECT_EQ(book.sample(0, false).ranks.at(0).phase, model::RankPhase::kGone);
    EXPECT_FALSE(book.sample(0, false).ranks.at(0).cpuPercent.has_value());
    EXPECT_FALSE(book.sample(0, false).ranks.at(0).gpuPercent.has_value());
    EXPECT_FALSE(book.sample(0, false).ranks.at(0).gpuBytes.has_value());
    EXPECT_TRUE(book.sample(0, false).ranks.at(0).gpus.empty());
}

TEST(FleetBook, OfManyRanksASampleHasThoseWhoseTurnItIsAndThoseThatStandStill) {
    constexpr int32_t kRanks = 2000;
    FleetBook book;
    const auto has = [](const model::FleetSampled& sample, int32_t rank) {
        return std::ranges::any_of(sample.ranks,
                                   [&](const auto& line) { return line.rank.replica == rank; });
    };
    const auto beatAll = [&](MonoNs now, int32_t except) {
        for (int32_t r = 0; r < kRanks; ++r) {
            protocol::Beat b = beat(1, r == except ? 1 : static_cast<uint64_t>(now / kSecond));
            b.rank = {r, 0};
            book.beat(b, now);
        }
    };
    for (int32_t r = 0; r < kRanks; ++r) book.started({r, 0}, 1);
    beatAll(kSecond, -1);
    EXPECT_EQ(book.sample(kSecond, false).ranks.size(), size_t{kRanks}) << "all are new";

    constexpr int32_t kStuck = 1234;
    std::set<int32_t> told;
    for (MonoNs second = 2; second < 2 + 16; ++second) {
        beatAll(second * kSecond, kStuck);
        const auto sample = book.sample(second * kSecond, false);
        EXPECT_LE(sample.ranks.size(), FleetBook::kRanksAtOnce);
        EXPECT_TRUE(std::ranges::is_sorted(sample.ranks, {}, &model::RankSample::rank));
        for (const auto& line : sample.ranks) told.insert(line.rank.replica);
        EXPECT_TRUE(has(sample, kStuck)) << second;
    }
    EXPECT_EQ(told.size(), size_t{kRanks});

    beatAll(20 * kSecond, -1);
    const auto moves = book.sample(20 * kSecond, false);
    ASSERT_TRUE(has(moves, kStuck)) << "nobody goes on believing that it stands still";
    for (const auto& line : moves.ranks) EXPECT_EQ(line.progressAgeMs, 0) << line.rank.replica;
    book.exited({7, 0}, 1);
    EXPECT_TRUE(has(book.sample(21 * kSecond, false), 7));
}

TEST(FleetBook, NodesAreToldWhenAskedForAndNotOnceTheyAreLost) {
    FleetBook book;
    model::NodeSample node;
    node.node = "node1";
    node.gpus.resize(2);
    book.sampled(node);
    EXPECT_TRUE(book.sample(0, false).nodes.empty());
    ASSERT_EQ(book.sample(0, true).nodes.size(), 1u);
    EXPECT_EQ(book.sample(0, true).nodes[0].gpus.size(), 2u);
    book.lost("node1");
    EXPECT_TRUE(book.sample(0, true).nodes.empty());
}

TEST(ExpertBook, SumsContributorsAndStepsAndForgetsWhatItTold) {
    ExpertBook book;
    protocol::ModelDescribed model;
    model.moeLayers = 1;
    model.experts = 2;
    book.describe(model, 1);
    protocol::fact::StepCommitted step;
    step.votes.resize(2);
    step.votes[0].expertCounts = {1, 2};
    step.votes[1].expertCounts = {10, 20};
    book.committed(step);
    book.committed(step);
    const auto loads = book.take();
    ASSERT_TRUE(loads.has_value());
    EXPECT_THAT(loads->counts, ElementsAre(22, 44));
    EXPECT_FALSE(book.take().has_value());
    step.votes[0].expertCounts = {1, 2, 3};
    step.votes[1].expertCounts = {};
    book.committed(step);
    EXPECT_FALSE(book.take().has_value()) << "counts of another shape are left out";
}

TEST(RoutingBook, AsksForWhatIsMissingAndTellsWholeSamples) {
    RoutingBook book;
    protocol::ModelDescribed model;
    model.moeLayers = 2;
    model.topK = 1;
    book.describe(model);
    EXPECT_EQ(book.tokensOf(4), 0u);
    protocol::fact::StepCommitted step;
    step.record.step = 9;
    step.votes.resize(2);
    step.votes[0].routed = {{0, 5, {1, 2, 3, 4}}};  // two tokens
    step.votes[1].routed = {{1, 6, {1, 2, 3, 4}}, {1, 7, {1, 2, 3, 4}}};
    EXPECT_FALSE(book.committed(step).has_value()) << "nobody asked";
    book.ask(3);
    EXPECT_EQ(book.tokensOf(4), 1u);
    const auto told = book.committed(step);
    ASSERT_TRUE(told.has_value());
    EXPECT_EQ(told->step, 9u);
    EXPECT_EQ(told->samples.size(), 2u) << "the third is more than was asked for";
    EXPECT_EQ(told->tokensLeft, 0u);
    EXPECT_FALSE(book.committed(step).has_value());
    book.ask(1 << 20);
    EXPECT_EQ(book.tokensOf(4), (1u << 16) / 2 / 4) << "as much as an event should carry";
}

// The machine's enumerators are cast to the model's: they must stay in step.
TEST(FactEvents, TheMachineAndTheModelNameTheSameThings) {
    EXPECT_EQ(EnumNames<protocol::ReplicaState>::kNames, EnumNames<model::ReplicaState>::kNames);
    EXPECT_EQ(EnumNames<protocol::JobPhase>::kNames, EnumNames<model::JobPhase>::kNames);
    EXPECT_EQ(EnumNames<protocol::EvidenceKind>::kNames, EnumNames<model::EvidenceKind>::kNames);
    EXPECT_EQ(EnumNames<protocol::IncidentPhaseKind>::kNames,
              EnumNames<model::IncidentPhaseKind>::kNames);
    EXPECT_EQ(EnumNames<protocol::LrPolicy>::kNames, EnumNames<model::LrPolicy>::kNames);
    EXPECT_EQ(EnumNames<protocol::BatchPolicy>::kNames, EnumNames<model::BatchPolicy>::kNames);
    EXPECT_EQ(EnumNames<protocol::RecoveryPolicy>::kNames,
              EnumNames<model::RecoveryPolicy>::kNames);
    for (size_t i = 0; i < EnumNames<protocol::Phase>::kNames.size(); ++i)
        EXPECT_EQ(EnumNames<protocol::Phase>::kNames[i], EnumNames<model::RankPhase>::kNames[i]);
}

TEST(FactEvents, ACommitCarriesShardsAndContributors) {
    protocol::fact::StepCommitted fact;
    protocol::ReplicaVote vote;
    vote.replica = 3;
    vote.hashes = {7, 8};
    vote.gradSquares = {0.5, 0.25};
    vote.exchangeMs = 12;
    vote.traffic = {{1, 2}, {3, 4}, 5};
    fact.votes = {vote, vote};
    fact.voteMs = {4};
    const FactContext context{
        [](MonoNs t) { return t; }, [](int32_t) { return std::string(); }, {}};
    const auto event = translate(fact, context);
    ASSERT_TRUE(event.has_value());
    const auto& body = std::get<model::StepCommitted>(event->body);
    ASSERT_EQ(body.shards.size(), 2u);
    EXPECT_EQ(body.shards[1].hash, 8u);
    EXPECT_DOUBLE_EQ(body.shards[1].gradSquares, 0.25);
    ASSERT_EQ(body.replicas.size(), 2u);
    EXPECT_EQ(body.replicas[0].replica, 3);
    EXPECT_DOUBLE_EQ(body.replicas[0].exchangeMs, 12);
    EXPECT_DOUBLE_EQ(body.replicas[0].voteMs, 4);
    EXPECT_DOUBLE_EQ(body.replicas[1].voteMs, 0) << "nobody knows it";
    EXPECT_THAT(body.traffic.copies, ElementsAre(2, 4));
    EXPECT_THAT(body.traffic.remote, ElementsAre(6, 8));
    EXPECT_EQ(body.traffic.bytes, 10u);
}

TEST(FactEvents, WhoLeavesAJobThatEndsIsNoWarning) {
    const FactContext context{
        [](MonoNs t) { return t; }, [](int32_t) { return std::string(); }, {}};
    const auto severity = [&](protocol::ReplicaState state) {
        return translate(protocol::fact::ReplicaChanged{1, 1, state, 10, "it left"}, context)
            ->severity;
    };
    EXPECT_EQ(severity(protocol::ReplicaState::kAbsent), model::Severity::kNotice);
    EXPECT_EQ(severity(protocol::ReplicaState::kBackingOff), model::Severity::kWarning);
}

TEST(FactEvents, APhaseOfNoLengthStaysOneWhateverTheClocksDo) {
    int64_t drift = 0;
    const FactContext context{
        [&](MonoNs t) { return t - ++drift; }, [](int32_t) { return std::string(); }, {}};
    const auto event = translate(
        protocol::fact::IncidentPhase{1, protocol::IncidentPhaseKind::kReplay, 500, 500}, context);
    ASSERT_TRUE(event.has_value());
    const auto& phase = std::get<model::IncidentPhase>(event->body);
    EXPECT_EQ(phase.beginNs, phase.endNs);
}

TEST(JobPast, ARunThatIsTakenUpHasLastedSinceItBeganAndKeepsItsOpenIncidents) {
    class Later final : public Clock {
      public:
        MonoNs now() const override { return 5 * kSecond; }
        int64_t unixNs() const override { return 1000 * kSecond; }
    };
    model::RunState past;
    past.startedNs = 900 * kSecond;
    model::IncidentView closed;
    closed.incident = 3;
    closed.closedNs = 950 * kSecond;
    model::IncidentView open;
    open.incident = 2;
    open.replica = 1;
    past.incidents.push(closed);
    past.incidents.push(open);
    protocol::RecoveredState recovered;
    addPast(recovered, {}, past, Later());
    EXPECT_EQ(recovered.ranFor, 100 * kSecond);
    EXPECT_EQ(recovered.lastIncident, 3u);
    ASSERT_EQ(recovered.incidents.size(), 1u);
}

/// Its log is lost, its history tells of what it must not train on; what it has trained on stays
/// so.
TEST(JobPast, WhatHistoryKnowsToBeQuarantinedIsWithheldFromARunThatGoesOn) {
    protocol::DataLedger ledger(2);
    ASSERT_TRUE(ledger.lease(1, 0, 8).ok());
    protocol::LogCheckpoint checkpoint;
    ledger.giveBackStep(1);
    checkpoint.ledger = ledger.state();
    checkpoint.ledger.pooled = {{0, 2, 4}, {1, 0, 4}};
    checkpoint.ledger.committed = {{0, 0, 2}};
    model::RunState past;
    past.quarantined.push({1, {0, 0, 3}, "not finite"});
    past.quarantined.push({2, {1, 6, 8}, "not finite"});
    withholdQuarantined(checkpoint, past);
    EXPECT_THAT(checkpoint.ledger.quarantined,
                testing::ElementsAre(SampleRange{0, 2, 3}, SampleRange{1, 6, 8}));
    EXPECT_THAT(checkpoint.ledger.committed, testing::ElementsAre(SampleRange{0, 0, 2}));
    EXPECT_THAT(checkpoint.ledger.highWater, testing::ElementsAre(4, 8));
    EXPECT_TRUE(protocol::DataLedger::restore(checkpoint.ledger, {}).ok());
}

TEST(SpecOptions, EveryPolicyGoesToTheMachineAndComesBack) {
    model::Policies p;
    p.lr = model::LrPolicy::kLinear;
    p.batch = model::BatchPolicy::kConstant;
    p.recovery = model::RecoveryPolicy::kRestartAll;
    p.minReplicas = 2;
    p.parityEverySteps = 3;
    p.checkpointEverySteps = 4;
    p.checkpointsKept = 5;
    p.restartLimit = 6;
    p.fetchBytesPerSecond = 7;
    p.deltaBudgetBytes = 8;
    model::Policies rest;
    rest.deltaBudgetBytes = p.deltaBudgetBytes;  // the machine does not know it
    EXPECT_EQ(modelPolicies(machinePolicies(p), rest), p);
    p.parityEverySteps.reset();
    EXPECT_EQ(modelPolicies(machinePolicies(p), rest), p) << "what the machine is to choose too";
}

TEST(SpecOptions, TheMachineIsToldWhatTheJobSays) {
    model::JobSpec s;
    s.replicas = 5;
    s.shards = 3;
    s.spares = 2;
    s.steps = 77;
    s.sequenceLength = 64;
    s.samplesPerReplica = 9;
    s.domains.resize(4);
    s.optimizer = {0.1, 0.2, 3, 4, 0.5, 0.6, 0.7, 0.8, 0.9};
    s.policies.minReplicas = 3;
    s.timeouts = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    const protocol::Options o = machineOptions(s, Secret::ofText("job"));
    EXPECT_EQ(std::tuple(o.replicas, o.shards, o.spares, o.steps), std::tuple(5u, 3u, 2u, 77u));
    EXPECT_EQ(o.secret, Secret::ofText("job"));
    EXPECT_EQ(std::tuple(o.sequenceLength, o.samplesPerReplica, o.domains),
              std::tuple(64u, 9u, 4u));
    const protocol::Optimizer optimizer{0.1, 0.2, 3, 4, 0.5, 0.6, 0.9};
    EXPECT_EQ(o.optimizer, optimizer);
    EXPECT_EQ(o.policies.minReplicas, 3u);
    protocol::Timeouts t;
    t.beatMs = 1;
    t.heartbeatMs = 2;
    t.progressFloorMs = 3;
    t.progressMultiple = 4;
    t.chunkFloorMs = 5;
    t.chunkMultiple = 6;
    t.joinMs = 7;
    t.orphanMs = 8;
    t.startMs = 9;
    EXPECT_EQ(o.timeouts, t);
    s.domains.clear();
    EXPECT_EQ(machineOptions(s, {}).domains, 1u);
    s.command = {"python3"};
    EXPECT_EQ(machineOptions(s, {}).optimizer, std::nullopt);
}

TEST(JobPast, WhatHistoryLacksOfTheLogIsToldAndNothingTwice) {
    protocol::LogCommit first;
    first.record.lineage = 1;
    first.record.step = 1;
    protocol::LogCommit second = first;
    second.record.step = 2;
    protocol::LogLineage lineage;
    lineage.lineage = 1;
    lineage.fromStep = 0;
    lineage.why = "new";
    const std::vector<protocol::LogEntry> entries = {
        protocol::LogTerm{4},
        lineage,
        first,
        second,
        protocol::LogLayout{7, 3, {1}, {2}, 0.5},
        protocol::LogQuarantine{{0, 4, 8}, "not finite"}};
    model::RunState past;
    EXPECT_EQ(firstUntold(entries, past), 0u);
    past.lastCommit.emplace();
    past.lastCommit->record = first.record;
    EXPECT_EQ(firstUntold(entries, past), 3u);
    past.lastCommit->record.step = 9;
    EXPECT_EQ(firstUntold(entries, past), entries.size()) << "not in this log";
    past.lastCommit->record = first.record;
    past.lastCommit->record.lineage = 2;
    EXPECT_EQ(firstUntold(entries, past), entries.size());

    EXPECT_FALSE(untoldFact(entries, 0, past).has_value());
    const auto opened = std::get<protocol::fact::LineageOpened>(*untoldFact(entries, 1, past));
    EXPECT_EQ(std::tuple(opened.lineage, opened.term), std::tuple(1u, 4u));
    EXPECT_EQ(std::get<protocol::fact::StepCommitted>(*untoldFact(entries, 3, past)).record.step,
              2u);
    const auto moved = std::get<protocol::fact::LayoutChanged>(*untoldFact(entries, 4, past));
    EXPECT_EQ(std::tuple(moved.step, moved.layout, moved.ok), std::tuple(2u, 7u, true));
    EXPECT_TRUE(untoldFact(entries, 5, past).has_value());

    past.lineage = 1;
    EXPECT_FALSE(untoldFact(entries, 1, past).has_value());
    model::LayoutView told;
    told.step = 2;
    told.layout = 7;
    told.ok = false;
    past.layouts.push(told);
    EXPECT_TRUE(untoldFact(entries, 4, past).has_value()) << "that one failed";
    told.ok = true;
    past.layouts.push(told);
    EXPECT_FALSE(untoldFact(entries, 4, past).has_value());
    model::QuarantineView quarantined;
    quarantined.range = {0, 4, 8};
    past.quarantined.push(quarantined);
    EXPECT_FALSE(untoldFact(entries, 5, past).has_value());
}

}  // namespace
}  // namespace bulkhead::runtime
