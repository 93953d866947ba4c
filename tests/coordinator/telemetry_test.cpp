// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/telemetry.h"

#include <gmock/gmock.h>

#include "backend/runtime/coordinator/fact_events.h"

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
    EXPECT_DOUBLE_EQ(line.beatAgeMs, 1000);
    EXPECT_DOUBLE_EQ(line.progressAgeMs, 2000);
    EXPECT_FALSE(line.cpuPercent.has_value()) << "unknown is absent, not zero";
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
    fact.votes = {vote};
    fact.voteMs = {4};
    const FactContext context{
        [](MonoNs t) { return t; }, [](int32_t) { return std::string(); }, {}};
    const auto event = translate(fact, context);
    ASSERT_TRUE(event.has_value());
    const auto& body = std::get<model::StepCommitted>(event->body);
    ASSERT_EQ(body.shards.size(), 2u);
    EXPECT_EQ(body.shards[1].hash, 8u);
    EXPECT_DOUBLE_EQ(body.shards[1].gradSquares, 0.25);
    ASSERT_EQ(body.replicas.size(), 1u);
    EXPECT_DOUBLE_EQ(body.replicas[0].voteMs, 4);
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

}  // namespace
}  // namespace bulkhead::runtime
