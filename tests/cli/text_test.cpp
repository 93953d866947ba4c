// SPDX-License-Identifier: Apache-2.0
#include "backend/cli/text.h"

#include <gmock/gmock.h>

#include "backend/cli/gpu_table.h"
#include "backend/cli/live_text.h"
#include "backend/model/json.h"

namespace bulkhead::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string line(model::EventBody body) {
    return eventLine({7, 1'000'000'000, model::Severity::kInfo, std::move(body)});
}

TEST(EventLineTest, WhatARunSaysStaysInItsLine) {
    model::RunFinished finished;
    finished.why = "no\n12:00:00.000       8  info     run_finished  ok=true";
    EXPECT_EQ(line(finished).find('\n'), std::string::npos);
    EXPECT_THAT(line(finished), HasSubstr("no\\x0a12:00"));
    EXPECT_EQ(table({{"RUN", "WHY"}, {"demo\nfake", "a"}}),
              "RUN           WHY\ndemo\\x0afake  a\n");
    model::RunState state;
    state.spec.name = "demo\nfake";
    state.explanation = "waits\nfake";
    state.finished = finished;
    EXPECT_THAT(stateText(state), Not(HasSubstr("\nfake")));
    EXPECT_THAT(stateText(state), Not(HasSubstr("\n12:00:00")));
}

TEST(EventLineTest, NumbersHaveTheUnitsPeopleReadAndJsonHasThemExactly) {
    model::IncidentClosed closed;
    closed.incident = 3;
    closed.survivorStallMs = 212.34567890123;
    closed.rejoinMs = 3456.7;
    closed.replicaSeconds = 3.3000000000000003;
    closed.outcome = "rejoined at step 120";
    const std::string text = line(closed);
    EXPECT_THAT(text, HasSubstr("incident=3"));
    EXPECT_THAT(text, HasSubstr("survivor_stall=212ms"));
    EXPECT_THAT(text, HasSubstr("rejoin=3.46s"));
    EXPECT_THAT(text, HasSubstr("replica_seconds=3.3 "));
    EXPECT_THAT(text, HasSubstr("outcome=\"rejoined at step 120\""));
    EXPECT_THAT(model::toJsonText(closed), HasSubstr("212.34567890123"));
}

TEST(EventLineTest, RanksBytesAndRangesAreShort) {
    model::RankExited exited;
    exited.rank = {2, 1};
    exited.signal = 9;
    EXPECT_THAT(line(exited), HasSubstr("rank=r2s1"));
    model::CheckpointWritten written;
    written.step = 50;
    written.bytes = 18'500'000;
    written.ms = 81.25;
    EXPECT_THAT(line(written), HasSubstr("bytes=18.5MB"));
    EXPECT_THAT(line(written), HasSubstr("took=81ms"));
    model::RangeQuarantined quarantined;
    quarantined.range = {1, 16, 20};
    EXPECT_THAT(line(quarantined), HasSubstr("range=1[16,20)"));
}

TEST(GpuTableTest, WhatADriverDoesNotTellIsADashAndNodesWithoutOneSayWhy) {
    model::RunState state;
    model::NodeView node;
    node.node = "node0";
    node.sample.emplace().gpus.resize(2);
    node.sample->gpus[0] = {0,     "GPU A", 97.0, 80ull << 30, 30ull << 30, 61.0,
                            512.5, 1980,    2619, 0,           79};
    node.sample->gpus[1].gpu = 1;
    state.nodes.push_back(node);
    node.node = "node1";
    node.sample->gpus.clear();
    node.sample->noGpus = "no NVIDIA driver here";
    state.nodes.push_back(node);
    for (const RankId rank : {RankId{0, 1}, RankId{1, 0}}) {
        model::RankView& view = state.ranks.emplace_back();
        view.rank = rank;
        view.node = "node0";
        view.gpus = {0};
    }
    model::GpuTroubled trouble{"node0", 0, "GPU A", 79, std::nullopt, 0, {{1, 0}}};
    state.gpuTroubles.push({1'000'000'000, trouble});
    const std::string text = gpusText(state);
    EXPECT_THAT(text, ::testing::ContainsRegex(
                          "node0 +0 +r0s1 r1s0 +GPU A +97 % +32.2/85.9 GB +61 C +51[23] W "
                          "+1980 MHz +2619 MHz +0 +79\n"));
    EXPECT_THAT(text, ::testing::ContainsRegex("node0 +1 +- +- +- +-/- GB +- +- +- +- +- +-\n"));
    EXPECT_THAT(text, HasSubstr("no GPU on node1: no NVIDIA driver here\n"));
    EXPECT_THAT(text, HasSubstr("GPU 0 (GPU A) of node0: Xid 79: the GPU has fallen off the bus"));
    EXPECT_THAT(line(trouble), HasSubstr("computed there: r1s0"));
    EXPECT_TRUE(isNotable({1, 0, model::Severity::kWarning, trouble}));
}

TEST(EventLineTest, WhatNamesNobodyIsLeftOut) {
    model::IncidentOpened opened;
    opened.incident = 1;
    opened.title = "the job waits";
    EXPECT_THAT(line(opened), Not(HasSubstr("replica=")));
    EXPECT_THAT(line(opened), Not(HasSubstr("fault=")));
}

TEST(RunFailedTest, TheReasonIsSplitIntoCauseAndRemedy) {
    model::RunFinished finished;
    finished.why = "no such plugin; check the job's workload";
    const client::Failure failure = runFailed(finished);
    EXPECT_EQ(failure.cause, "no such plugin");
    EXPECT_EQ(failure.remedy, "check the job's workload");
}

TEST(LiveTextTest, APreviewSaysWhatMovesAndWhatItSaves) {
    planner::LivePreview p;
    p.experts = 4;
    p.expertsMoved = 2;
    p.remoteNow = 0.5;
    p.forecast.remote = {0.1, 0.08, 0.12};
    p.forecast.remoteInSample = 0.09;
    p.forecast.load = {1.1, 1.05, 1.15};
    p.forecast.loadInSample = 1.06;
    p.forecast.tokensPerExpert = 5000;
    EXPECT_THAT(previewText(p), HasSubstr("moves 2 of 4 experts"));
    EXPECT_THAT(previewText(p), HasSubstr("- measured"));
    EXPECT_THAT(previewText(p), HasSubstr("10.0 % predicted (-80.0 %)"));
    EXPECT_THAT(previewText(p), HasSubstr("any shard"));
    EXPECT_THAT(previewText(p), Not(HasSubstr("routing moves")));
    p.remoteOlder = 0.08;
    p.remoteNewer = 0.12;
    EXPECT_THAT(previewText(p), HasSubstr("routing moves: the plan has 8.0 %"));
    EXPECT_THAT(previewText(p), HasSubstr("busiest shard over mean  1.100     -    -     1.060"));
    EXPECT_THAT(previewText(p), HasSubstr("note: no range can be told yet"));
    p.forecast.hasRange = true;
    EXPECT_THAT(previewText(p),
                HasSubstr("remote copies            10.0 %    8.0 %  12.0 %  9.0 %"));
    EXPECT_THAT(previewText(p), HasSubstr("1.100     1.050  1.150   1.060"));
    EXPECT_THAT(previewText(p), Not(HasSubstr("note:")));
    p.homes = {{"prose", {1, 0}}};
    EXPECT_THAT(previewText(p), HasSubstr("prose   100.0 %  0.0 %"));
}

TEST(LiveTextTest, AMoveHasWhatWasPredictedBesideWhatCame) {
    model::RunState s;
    EXPECT_EQ(layoutsText(s), "no expert has moved\n");
    model::LayoutView v;
    v.layout = 1;
    v.step = 120;
    v.grouped = true;
    v.predictedRemote = 0.5;
    v.before = {50, 1000, 800, 50'000'000};
    s.layouts.push(v);
    EXPECT_THAT(layoutsText(s), HasSubstr("by domain  80.0 %         50.0 %     -         -"));
    v.after = {10, 200, 102, 6'500'000};
    s.layouts.push(v);
    EXPECT_THAT(layoutsText(s), HasSubstr("51.0 %    +2.0 %  1.000           0.650"));
    model::ProposalView proposed;
    proposed.plan.step = 700;
    proposed.plan.why = "it drifted";
    s.proposals.push(proposed);
    EXPECT_THAT(layoutsText(s), HasSubstr("waiting  it drifted\napply it with"));
    s.proposals.back().dismissed = true;
    EXPECT_THAT(layoutsText(s), HasSubstr("dismissed  it drifted\n"));
    EXPECT_THAT(layoutsText(s), testing::Not(HasSubstr("apply it with")));
}

TEST(LiveTextTest, BytesAreThoseOfAReplicaAndThoseOfAll) {
    model::RunState s;
    s.model.expertBytes = 2'100'000;
    model::LayoutView v;
    v.layout = 1;
    v.expertsMoved = 4;
    v.bytesMoved = 16'800'000;
    s.layouts.push(v);
    EXPECT_THAT(layoutsText(s), HasSubstr("MB EACH REPLICA  MB IN ALL"));
    EXPECT_THAT(layoutsText(s), HasSubstr("4        8.4              16.8"));
}

TEST(LiveTextTest, AProposalSaysWhatBecameOfIt) {
    model::RunState s;
    const auto propose = [&](int64_t at, uint64_t layout, std::vector<int32_t> shard) {
        model::ProposalView p;
        p.timeNs = at;
        p.plan.layout = layout;
        p.plan.expertsMoved = 2;
        p.plan.expertShard = std::move(shard);
        s.proposals.push(p);
    };
    const auto move = [&](int64_t at, uint64_t layout, uint64_t experts) {
        model::LayoutView v;
        v.timeNs = at;
        v.layout = s.layout = layout;
        v.expertsMoved = experts;
        s.layouts.push(v);
    };
    propose(1, 0, {0, 1});
    propose(2, 0, {1, 0});
    EXPECT_STREQ(proposalFate(s, 0), "replaced");
    EXPECT_STREQ(proposalFate(s, 1), "waiting");
    move(3, 1, 2);
    s.expertShard = {1, 0};
    EXPECT_STREQ(proposalFate(s, 1), "applied");
    s.expertShard = {0, 1};
    EXPECT_STREQ(proposalFate(s, 1), "replaced") << "the move was another one";
    propose(4, 1, {1, 0});
    move(5, 2, 3);
    EXPECT_STREQ(proposalFate(s, 2), "replaced") << "by a move of three experts";
    propose(6, 2, {1, 0});
    s.proposals.back().dismissed = true;
    EXPECT_STREQ(proposalFate(s, 3), "dismissed");
}

TEST(LiveTextTest, RulesSayWhetherTheyAreKept) {
    const std::vector<model::ExpertRule> rules = {{1, 2, 0, true}, {0, 1, 0, false}};
    planner::LiveJob job;
    job.expertShard = {0, 1, 1, 0, 0, 1};
    job.counts.experts = 3;
    std::string text = rulesText(rules, job);
    EXPECT_THAT(text, HasSubstr("1      2       pinned to     0      1       not kept yet"));
    EXPECT_THAT(text, HasSubstr("0      1       forbidden on  0      1       kept"));
    job.layerNumbers = {1, 5};
    text = rulesText(rules, job);
    EXPECT_THAT(text, HasSubstr("5      2       pinned to     0      1       not kept yet"));
    EXPECT_THAT(text, HasSubstr("1      1       forbidden on  0      1       kept"));
    EXPECT_EQ(rulesText({}, job), "no expert is pinned or forbidden anywhere\n");
}

TEST(SummaryTest, ASummaryCountsTheReplicasThatTrainNow) {
    model::RunState state;
    state.spec.replicas = 2;
    state.phase = model::JobPhase::kStopping;
    state.quorum = model::QuorumDecided{};
    state.quorum->contributors.resize(2);
    EXPECT_THAT(summaryLine(state), HasSubstr("2/2 replicas")) << "nothing else is known";
    model::ReplicaView replica;
    replica.state = model::ReplicaState::kTraining;
    state.replicas.push_back(replica);
    replica.replica = 1;
    replica.state = model::ReplicaState::kAbsent;
    state.replicas.push_back(replica);
    EXPECT_THAT(summaryLine(state), HasSubstr("1/2 replicas"));
    state.lastCommit.emplace();
    state.lastCommit->scalars = {{"accuracy", 0.75}, {"depth", 12}};
    EXPECT_THAT(summaryLine(state), HasSubstr("accuracy 0.75  depth 12"));
    EXPECT_THAT(summaryJson(state), HasSubstr(R"("scalars":{"accuracy":0.75,"depth":12.0})"));
    model::Event event;
    event.body = *state.lastCommit;
    EXPECT_THAT(eventLine(event), HasSubstr(" accuracy=0.75 depth=12"));
}

}  // namespace
}  // namespace bulkhead::cli
