// SPDX-License-Identifier: Apache-2.0
#include "backend/model/run_state.h"

#include <gtest/gtest.h>

#include "backend/common/codec.h"
#include "backend/model/event_json.h"
#include "backend/model/gpu_text.h"
#include "backend/model/incident_card.h"
#include "tests/model/random_events.h"

namespace bulkhead::model {
namespace {

constexpr int64_t kT0 = 1'700'000'000'000'000'000;

/// A run told event by event, `ms` after its start.
class Story {
  public:
    template <class Body>
    Story& at(int64_t ms, Body body) {
        Event e;
        e.seq = state.seq + 1;
        e.timeNs = kT0 + ms * 1'000'000;
        e.body = std::move(body);
        apply(state, e);
        return *this;
    }
    Story& start(uint32_t replicas = 4, uint32_t shards = 2) {
        RunStarted e;
        e.spec.replicas = replicas;
        e.spec.shards = shards;
        e.spec.policies.minReplicas = 2;
        return at(0, e);
    }
    Story& commit(int64_t ms, uint64_t step, std::vector<int32_t> members, double stepMs = 100,
                  uint64_t lineage = 1) {
        StepCommitted e;
        e.record.step = step;
        e.record.lineage = lineage;
        e.record.samples = 10 * members.size();
        e.record.tokens = 100 * members.size();
        e.stepMs = stepMs;
        for (int32_t r : members) {
            e.record.contributors.push_back({r, 1, {}});
            ReplicaLedger line;
            line.replica = r;
            line.computeMs = 50 + r;
            e.replicas.push_back(line);
        }
        return at(ms, e);
    }
    RunState state;
};

TEST(RunState, listsEveryReplicaAndRankFromTheStart) {
    Story story;
    story.start(3, 2);
    ASSERT_EQ(story.state.replicas.size(), 3u);
    ASSERT_EQ(story.state.ranks.size(), 6u);
    EXPECT_EQ(story.state.replicas[2].state, ReplicaState::kAbsent);
    EXPECT_EQ(story.state.ranks[3].rank, (RankId{1, 1}));
    EXPECT_EQ(story.state.policies.minReplicas, 2u);
    EXPECT_EQ(story.state.startedNs, kT0);
}

TEST(RunState, aReplicaIsOnTheNodesOfItsRanks) {
    Story story;
    story.start(2, 3);
    const auto nodes = [&](int32_t replica) {
        std::string all;
        for (const std::string& node :
             nodesOf(story.state, story.state.replicas.at(static_cast<size_t>(replica))))
            all += node + " ";
        return all;
    };
    EXPECT_EQ(nodes(1), "");
    story.at(1, ReplicaChanged{1, 1, ReplicaState::kStarting, "node7", 0, ""});
    EXPECT_EQ(nodes(1), "node7 ");
    story.at(2, RankStarted{{0, 0}, 1, 70, "node0", {}, ""});
    for (int32_t shard = 0; shard < 3; ++shard)
        story.at(3, RankStarted{{1, shard}, 1, 71 + shard, shard < 2 ? "node1" : "node2", {}, ""});
    EXPECT_EQ(nodes(0), "node0 ");
    EXPECT_EQ(nodes(1), "node1 node2 ");
}

TEST(RunState, aNodesGpusAreAsLastToldAndGoWithTheNode) {
    Story story;
    story.start();
    story.at(10, NodeChanged{"node0", "127.0.0.1", 4, NodeState::kUp, ""});
    FleetSampled fleet;
    fleet.nodes.resize(1);
    fleet.nodes[0].node = "node0";
    fleet.nodes[0].gpus.resize(2);
    fleet.nodes[0].gpus[1].temperatureCelsius = 61;
    story.at(20, fleet);
    story.at(30, FleetSampled{});  // nobody named: as before
    const NodeView& node = story.state.nodes.at(0);
    ASSERT_TRUE(node.sample.has_value());
    EXPECT_EQ(node.sampledNs, kT0 + 20'000'000);
    EXPECT_EQ(node.sample->gpus.at(0).temperatureCelsius, std::nullopt);
    EXPECT_EQ(node.sample->gpus.at(1).temperatureCelsius, 61);
    EXPECT_EQ(story.state.counters.malformed, 0u);
    story.at(40, NodeChanged{"node0", "127.0.0.1", 4, NodeState::kLost, "its agent is gone"});
    story.at(41, fleet);  // under way when it was lost
    EXPECT_FALSE(story.state.nodes.at(0).sample.has_value());
    story.at(50, NodeChanged{"node0", "127.0.0.1", 4, NodeState::kForgotten, "forgotten by ann"});
    EXPECT_TRUE(story.state.nodes.empty());
}

TEST(RunState, aNodeWithMoreGpusThanThereCanBeIsRefused) {
    Story story;
    story.start();
    story.at(10, NodeChanged{"node0", "127.0.0.1", 4, NodeState::kUp, ""});
    FleetSampled fleet;
    fleet.nodes.resize(1);
    fleet.nodes[0].node = "node0";
    fleet.nodes[0].gpus.resize(Limits::kGpusPerNode + 1);
    story.at(20, fleet);
    EXPECT_FALSE(story.state.nodes.at(0).sample.has_value());
    EXPECT_EQ(story.state.counters.malformed, 1u);
}

TEST(GpuText, aTroubleSaysWhatItIsAndWhatToDo) {
    GpuTroubled trouble;
    trouble.node = "node1";
    trouble.gpu = 3;
    trouble.xid = 79;
    EXPECT_EQ(gpuName(trouble), "GPU 3 of node1");
    EXPECT_NE(troubleText(trouble).find("Xid 79: the GPU has fallen off the bus; cordon"),
              std::string::npos);
    EXPECT_EQ(severityOf(trouble), Severity::kError);
    EXPECT_EQ(ranksText(trouble), "no rank of this run computed there");
    trouble.ranks = {{0, 1}, {2, 0}};
    EXPECT_EQ(ranksText(trouble), "computed there: r0s1, r2s0");
    trouble.xid = 31;  // the program's own doing
    EXPECT_EQ(severityOf(trouble), Severity::kWarning);
    trouble.xid = 4711;
    EXPECT_EQ(severityOf(trouble), Severity::kError);
    trouble.xid.reset();
    trouble.eccUncorrected = 1;
    EXPECT_NE(troubleText(trouble).find("1 memory error that could not"), std::string::npos);
    EXPECT_EQ(severityOf(trouble), Severity::kError);
}

TEST(RunState, keepsALaneOfWhatEachReplicaDid) {
    Story story;
    story.start();
    story.at(10, ReplicaChanged{2, 1, ReplicaState::kStarting, "node0", 0, "first start"});
    story.at(20, ReplicaChanged{2, 1, ReplicaState::kTraining, "node0", 0, ""});
    story.at(500, ReplicaChanged{2, 1, ReplicaState::kBackingOff, "node0", 5, "signal 9"});
    const ReplicaView* view = findReplica(story.state, 2);
    ASSERT_NE(view, nullptr);
    ASSERT_EQ(view->lane.size(), 4u);
    EXPECT_EQ(view->lane[2].state, ReplicaState::kTraining);
    EXPECT_EQ(view->lane[2].beginNs, kT0 + 20'000'000);
    EXPECT_EQ(view->lane[2].endNs, kT0 + 500'000'000);
    EXPECT_EQ(view->lane.back().endNs, 0);
    EXPECT_EQ(view->losses, 1u);
    EXPECT_EQ(view->why, "signal 9");
}

TEST(RunState, doesNotCallADrainALoss) {
    Story story;
    story.start();
    story.at(20, ReplicaChanged{2, 1, ReplicaState::kTraining, "", 0, ""});
    story.at(30, ReplicaChanged{2, 1, ReplicaState::kDrained, "", 3, "by operator"});
    EXPECT_EQ(findReplica(story.state, 2)->losses, 0u);
}

TEST(RunState, keepsTheSuccessorWhenAnOldExitIsReportedLate) {
    Story story;
    story.start();
    story.at(1, RankStarted{{1, 0}, 1, 100, "node0"});
    story.at(2, RankStarted{{1, 0}, 2, 200, "node0"});
    story.at(3, RankExited{{1, 0}, 1, 100, 0, 9, false});
    const RankView* rank = findRank(story.state, {1, 0});
    EXPECT_EQ(rank->pid, 200);
    EXPECT_EQ(rank->phase, RankPhase::kStarting);
    ASSERT_TRUE(rank->lastExit);
    EXPECT_EQ(rank->lastExit->signal, 9);
    EXPECT_EQ(story.state.counters.rankExits, 1u);
}

TEST(RunState, boundsTheOutputOfARank) {
    Story story;
    story.start();
    for (int i = 0; i < 100; ++i)
        story.at(i, RankOutput{{0, 1}, 1, true, std::to_string(i) + std::string(2000, 'x')});
    const RankView* rank = findRank(story.state, {0, 1});
    ASSERT_EQ(rank->output.size(), 40u);
    EXPECT_EQ(rank->output.total(), 100u);
    EXPECT_EQ(rank->output[0].line.substr(0, 3), "60x");
    EXPECT_LE(rank->output.back().line.size(), Limits::kLineText);
}

TEST(RunState, explainsWhatItWaitsFor) {
    Story story;
    story.start();
    story.at(5, JobPhaseChanged{JobPhase::kWaiting, "waiting for r3"});
    QuorumDecided quorum;
    quorum.explanation = "waiting for r3, last beat 1.2 s ago";
    story.at(9, quorum);
    EXPECT_EQ(story.state.explanation, "waiting for r3, last beat 1.2 s ago");
    story.at(10, JobPhaseChanged{JobPhase::kTraining, ""});
    story.at(11, quorum);
    EXPECT_EQ(story.state.explanation, "");
    EXPECT_EQ(story.state.phaseSinceNs, kT0 + 10'000'000);
}

TEST(RunState, marksStepsBehindARollbackAsSuperseded) {
    Story story;
    story.start();
    story.at(0, LineageOpened{1, 0, 1, "fresh"});
    for (uint64_t step = 1; step <= 10; ++step)
        story.commit(static_cast<int64_t>(step) * 100, step, {0, 1});
    story.at(2000, LineageOpened{2, 6, 2, "all replicas lost"});
    story.commit(2100, 7, {0, 1}, 100, 2);
    const RunState& s = story.state;
    ASSERT_EQ(s.steps.size(), 11u);
    EXPECT_FALSE(s.steps[5].superseded);  // step 6
    EXPECT_TRUE(s.steps[6].superseded);   // step 7 of lineage 1
    EXPECT_TRUE(s.steps[9].superseded);
    EXPECT_FALSE(s.steps[10].superseded);
    EXPECT_EQ(s.counters.stepsSuperseded, 4u);
    EXPECT_EQ(s.counters.samplesSuperseded, 80u);
    EXPECT_EQ(s.counters.rollbacks, 1u);
    ASSERT_EQ(s.superseded.size(), 1u);
    EXPECT_EQ(s.superseded[0].last, 10u);
    // A second, deeper rollback reaches past those that are superseded already.
    story.at(3000, LineageOpened{3, 2, 3, "again"});
    EXPECT_EQ(story.state.counters.stepsSuperseded, 9u);
    EXPECT_FALSE(story.state.steps[1].superseded);
    EXPECT_TRUE(story.state.steps[2].superseded);
}

TEST(RunState, marksSuspectSteps) {
    Story story;
    story.start();
    for (uint64_t step = 1; step <= 10; ++step)
        story.commit(static_cast<int64_t>(step) * 100, step, {0, 1});
    story.at(1100, StepsSuspect{7, 9, "parity"});
    EXPECT_FALSE(story.state.steps[6].suspect);  // step 7: the range is (7, 9]
    EXPECT_TRUE(story.state.steps[7].suspect);
    EXPECT_TRUE(story.state.steps[8].suspect);
    EXPECT_FALSE(story.state.steps[9].suspect);
}

TEST(RunState, keepsHowOftenStatesAreCompared) {
    Story story;
    story.start();
    EXPECT_FALSE(story.state.parityPace);
    story.at(100, ParityPaced{1, 0.5, 240});
    story.at(200, ParityPaced{2, 3.8, 240});
    EXPECT_EQ(story.state.parityPace, (ParityPaced{2, 3.8, 240}));
}

TEST(RunState, keepsTheLedgerOfTheLastStepByReplica) {
    Story story;
    story.start();
    story.commit(100, 1, {0, 1, 2, 3});
    story.commit(200, 2, {0, 1, 3});
    EXPECT_EQ(story.state.lastCommit->record.step, 2u);
    EXPECT_EQ(findReplica(story.state, 2)->lastContributedStep, 1u);
    EXPECT_EQ(findReplica(story.state, 3)->lastContributedStep, 2u);
    EXPECT_DOUBLE_EQ(findReplica(story.state, 3)->ledger->computeMs, 53);
    EXPECT_EQ(story.state.counters.samples, 70u);
    EXPECT_EQ(story.state.counters.tokens, 700u);
}

class Incident : public testing::Test {
  protected:
    void SetUp() override {
        story.start();
        story.commit(100, 1, {0, 1, 2, 3});
        FaultSpec spec;
        spec.kind = FaultKind::kKillReplica;
        spec.replica = 2;
        story.at(140, FaultInjected{7, spec, 2, "operator"});
        story.at(150, EvidenceSeen{EvidenceKind::kProcessExit, 2, 1, "agent node0", "signal 9"});
        story.at(151, EvidenceSeen{EvidenceKind::kTransportReset, 0, 1, "r1s0", "of another"});
        story.at(152, IncidentOpened{1, 2, 1, 2, EvidenceKind::kProcessExit, 7, "r2 lost"});
        story.at(160, EvidenceSeen{EvidenceKind::kTransportReset, 2, 0, "r1s0", "reset"});
    }
    Story story;
    static int64_t ns(int64_t ms) { return kT0 + ms * 1'000'000; }
};

TEST_F(Incident, gathersItsEvidenceFromBeforeAndAfter) {
    const IncidentView* view = findIncident(story.state, 1);
    ASSERT_NE(view, nullptr);
    ASSERT_EQ(view->evidence.size(), 2u);
    EXPECT_EQ(view->evidence[0].evidence.reporter, "agent node0");
    EXPECT_EQ(view->evidence[1].evidence.reporter, "r1s0");
    EXPECT_EQ(findReplica(story.state, 2)->openIncident, 1u);
}

TEST_F(Incident, isTiedToTheFaultThatCausedIt) {
    ASSERT_NE(findFault(story.state, 7), nullptr);
    EXPECT_EQ(findFault(story.state, 7)->incidents, std::vector<uint64_t>{1});
    story.at(300, FaultEnded{7, "done"});
    EXPECT_EQ(findFault(story.state, 7)->endedNs, ns(300));
}

TEST_F(Incident, booksItsStallOnTheStepThatAbsorbedIt) {
    story.at(170, IncidentPhase{1, IncidentPhaseKind::kDetect, ns(140), ns(150)});
    story.at(170, IncidentPhase{1, IncidentPhaseKind::kReform, ns(152), ns(170)});
    story.at(170, IncidentPhase{1, IncidentPhaseKind::kRestart, ns(150), ns(800)});
    story.commit(250, 2, {0, 1, 3}, 150);
    EXPECT_DOUBLE_EQ(story.state.steps.back().stallMs, 28);
    story.commit(350, 3, {0, 1, 3});
    EXPECT_DOUBLE_EQ(story.state.steps.back().stallMs, 0);
    // Reported only now, of a step that is committed.
    story.at(360, IncidentPhase{1, IncidentPhaseKind::kDecide, ns(150), ns(152)});
    EXPECT_DOUBLE_EQ(story.state.steps[1].stallMs, 30);
    EXPECT_EQ(story.state.stalls.size(), 3u);
    EXPECT_DOUBLE_EQ(findIncident(story.state, 1)->survivorStallMs, 30);
}

TEST(RunState, keepsThePhasesOfTheJobWithTheirTimes) {
    Story story;
    story.start().at(100, JobPhaseChanged{JobPhase::kTraining, ""});
    story.at(200, JobPhaseChanged{JobPhase::kTraining, "still"});
    story.at(900, JobPhaseChanged{JobPhase::kPaused, ""});
    ASSERT_EQ(story.state.phases.size(), 3u);
    EXPECT_EQ(story.state.phases[1].phase, JobPhase::kTraining);
    EXPECT_EQ(story.state.phases[1].beginNs, kT0 + 100'000'000);
    EXPECT_EQ(story.state.phases[1].endNs, kT0 + 900'000'000);
    EXPECT_EQ(story.state.phases[2].endNs, 0);
}

TEST(RunState, aStepThatComesLateWithNobodyLostIsAStall) {
    Story story;
    story.start().at(0, JobPhaseChanged{JobPhase::kTraining, ""});
    for (int i = 1; i <= 10; ++i) story.commit(100 * i, static_cast<uint64_t>(i), {0, 1});
    story.at(3000, JobPhaseChanged{JobPhase::kTraining, "2 s are not long"});
    EXPECT_FALSE(frozenStretch(story.state).has_value());
    story.at(9000, JobPhaseChanged{JobPhase::kTraining, ""});
    ASSERT_TRUE(frozenStretch(story.state).has_value());
    EXPECT_EQ(frozenStretch(story.state)->beginNs, kT0 + 1'100'000'000);
    story.commit(10000, 11, {0, 1}, 9000);
    EXPECT_FALSE(frozenStretch(story.state).has_value());
    ASSERT_EQ(story.state.stalls.size(), 1u);
    EXPECT_EQ(story.state.stalls[0].incident, 0u);
    EXPECT_EQ(story.state.stalls[0].endNs, kT0 + 10'000'000'000);
    EXPECT_DOUBLE_EQ(story.state.typicalStepMs, 100);
}

TEST(RunState, aClockThatIsSetForwardAndBackFreezesNothing) {
    constexpr int kAhead = 7'200'000;
    Story story;
    story.start().at(0, JobPhaseChanged{JobPhase::kTraining, ""});
    for (int i = 1; i <= 10; ++i) story.commit(100 * i, static_cast<uint64_t>(i), {0, 1});
    story.commit(kAhead + 1100, 11, {0, 1}, 100);
    EXPECT_TRUE(story.state.stalls.empty());
    EXPECT_FALSE(frozenStretch(story.state).has_value());
    story.at(1150, JobPhaseChanged{JobPhase::kTraining, ""});
    EXPECT_FALSE(frozenStretch(story.state).has_value());
    for (int i = 12; i <= 20; ++i) {
        story.commit(100 * i, static_cast<uint64_t>(i), {0, 1}, 100);
        EXPECT_FALSE(frozenStretch(story.state).has_value()) << i;
    }
    EXPECT_EQ(openProblems(story.state), 0u);
    EXPECT_DOUBLE_EQ(story.state.typicalStepMs, 100);
    // A late step is detected again from here on.
    story.at(9000, JobPhaseChanged{JobPhase::kTraining, ""});
    ASSERT_TRUE(frozenStretch(story.state).has_value());
    EXPECT_EQ(frozenStretch(story.state)->beginNs, kT0 + 2'100'000'000);
}

TEST(RunState, aPauseIsNoStall) {
    Story story;
    story.start().at(0, JobPhaseChanged{JobPhase::kTraining, ""});
    story.commit(100, 1, {0, 1});
    story.at(150, JobPhaseChanged{JobPhase::kPaused, ""});
    story.at(60000, JobPhaseChanged{JobPhase::kTraining, ""});
    story.commit(60100, 2, {0, 1}, 60000);
    EXPECT_TRUE(story.state.stalls.empty());
}

TEST_F(Incident, countsItsCostOnceWhenClosed) {
    IncidentClosed closed{1, 30, 2000, 4.5, 12, "rejoined at step 20"};
    story.at(2200, closed);
    story.at(2300, closed);
    const Counters& c = story.state.counters;
    EXPECT_EQ(c.incidents, 1u);
    EXPECT_EQ(c.incidentsOpen, 0u);
    EXPECT_EQ(c.rejoins, 1u);
    EXPECT_DOUBLE_EQ(c.replicaSeconds, 4.5);
    EXPECT_EQ(c.samplesRedone, 12u);
    EXPECT_EQ(c.malformed, 1u);
    EXPECT_EQ(findReplica(story.state, 2)->openIncident, 0u);
}

TEST(RunState, measuresExpertImbalance) {
    Story story;
    // One layer, two domains, four experts: 6 2 0 0 of 8, busiest 6 over mean 2 = 3.
    story.at(1, ExpertLoads{5, 1, 2, 4, {4, 1, 0, 0, 2, 1, 0, 0}});
    const ExpertView& e = story.state.experts;
    EXPECT_DOUBLE_EQ(e.history.back().worst, 3);
    // Of all steps of the last stretches, not of the last report alone: 8 10 0 0 of 18.
    story.at(2, ExpertLoads{6, 1, 2, 4, {2, 8, 0, 0, 0, 0, 0, 0}});
    EXPECT_DOUBLE_EQ(e.history.back().worst, 10 / 4.5);
    EXPECT_DOUBLE_EQ(e.history.back().mean, 10 / 4.5);
    EXPECT_EQ(e.recent(), (std::vector<uint64_t>{6, 9, 0, 0, 2, 1, 0, 0}));
    // A hundred steps later what was then is forgotten.
    story.at(3, ExpertLoads{60, 1, 2, 4, {0, 0, 0, 5, 0, 0, 0, 0}});
    story.at(4, ExpertLoads{120, 1, 2, 4, {0, 0, 5, 5, 0, 0, 0, 0}});
    EXPECT_DOUBLE_EQ(e.history.back().worst, 10 / 3.75);
    EXPECT_EQ(e.total[0], 6u);
    EXPECT_EQ(e.history.size(), 4u);
}

TEST(RunState, ignoresAndCountsWhatIsImpossible) {
    Story story;
    story.start();
    const size_t replicas = story.state.replicas.size();
    story.at(1, ReplicaChanged{-1, 1, ReplicaState::kTraining, "", 0, ""});
    story.at(1, ReplicaChanged{Limits::kReplicas, 1, ReplicaState::kTraining, "", 0, ""});
    story.at(1, RankStarted{{0, Limits::kShards}, 1, 1, ""});
    story.at(1, ExpertLoads{1, 1u << 31, 1u << 31, 1u << 31, {1}});
    story.at(1, ExpertLoads{1, 2, 2, 2, {1}});
    story.at(1, IncidentClosed{99, 0, 0, 0, 0, ""});
    story.at(1, FaultEnded{0, ""});
    EXPECT_EQ(story.state.counters.malformed, 7u);
    EXPECT_EQ(story.state.replicas.size(), replicas);
}

class AnyEvents : public testing::TestWithParam<std::tuple<uint64_t, bool>> {};

TEST_P(AnyEvents, seekingGivesWhatFoldingGives) {
    const auto [seed, hostile] = GetParam();
    RandomEvents random(seed, hostile);
    std::vector<Event> events;
    for (uint64_t seq = 1; seq <= 600; ++seq) events.push_back(random.event(seq));
    const size_t cut = static_cast<size_t>(random.below(events.size()));
    RunState whole;
    std::string keyframe = encodeKeyframe(whole);
    for (size_t i = 0; i < events.size(); ++i) {
        apply(whole, events[i]);
        if (i + 1 == cut) keyframe = encodeKeyframe(whole);
    }
    absl::StatusOr<RunState> resumed = decodeKeyframe(keyframe);
    ASSERT_TRUE(resumed.ok()) << resumed.status();
    for (size_t i = cut; i < events.size(); ++i) apply(*resumed, events[i]);
    EXPECT_EQ(encodeKeyframe(*resumed), encodeKeyframe(whole));
}

TEST_P(AnyEvents, survivesJson) {
    const auto [seed, hostile] = GetParam();
    RandomEvents random(seed, hostile);
    RunState state;
    for (uint64_t seq = 1; seq <= 300; ++seq) {
        const Event event = random.event(seq);
        const absl::StatusOr<Event> back =
            fromJsonText<Event>(toJsonText(event), UnknownKeys::kRefuse);
        ASSERT_TRUE(back.ok()) << back.status();
        // Bytes that are not UTF-8 are replaced in JSON, by contract.
        if (!hostile) {
            ASSERT_EQ(encode(*back), encode(event)) << toJsonText(event);
        }
        apply(state, event);
    }
    const absl::StatusOr<RunState> back = fromJsonText<RunState>(toJsonText(state));
    ASSERT_TRUE(back.ok()) << back.status();
    if (!hostile) {
        EXPECT_EQ(encodeKeyframe(*back), encodeKeyframe(state));
    }
}

INSTANTIATE_TEST_SUITE_P(Seeds, AnyEvents,
                         testing::Combine(testing::Range<uint64_t>(1, 13), testing::Bool()));

TEST(RunState, staysWithinItsBoundsHoweverLongTheRun) {
    Story story;
    story.start();
    for (uint64_t step = 1; step <= 21'000; ++step)
        story.commit(static_cast<int64_t>(step), step, {0, 1, 2, 3});
    EXPECT_EQ(story.state.steps.size(), 20'000u);
    EXPECT_EQ(story.state.steps[0].step, 1001u);
    EXPECT_EQ(story.state.steps.back().step, 21'000u);
    EXPECT_EQ(story.state.counters.commits, 21'000u);
}

TEST(RunState, keepsTheWholeRunInStretchesWhereStepsAreForgotten) {
    RunState state;
    constexpr uint64_t kSteps = 70'000;
    for (uint64_t step = 1; step <= kSteps; ++step) {
        StepCommitted commit;
        commit.record.step = step;
        commit.record.samples = 2;
        commit.loss = static_cast<double>(step);
        apply(state, Event{step, static_cast<int64_t>(step), Severity::kInfo, commit});
    }
    const auto& early = state.earlierSteps;
    ASSERT_FALSE(early.empty());
    EXPECT_EQ(early[0].first, 1u);
    EXPECT_EQ(early.back().last + 1, state.steps[0].step);
    uint64_t steps = state.steps.size();
    for (const StepStretch& s : early) {
        steps += s.steps;
        EXPECT_EQ(s.loss.least, static_cast<double>(s.first));
        EXPECT_EQ(s.loss.greatest, static_cast<double>(s.last));
        EXPECT_LE(s.steps, early.width());
    }
    EXPECT_EQ(steps, kSteps);
    // A rollback behind what is kept one by one takes whole stretches with it.
    const size_t before = early.size();
    state.lineage = 1;
    LineageOpened back{2, 30'000, 1, "test", {}};
    apply(state, Event{kSteps + 1, kSteps + 1, Severity::kInfo, back});
    EXPECT_LT(early.size(), before);
    EXPECT_LE(early.back().first, 30'000u);
    EXPECT_NEAR(static_cast<double>(state.counters.stepsSuperseded), 40'000,
                static_cast<double>(early.width()));
}

TEST(RunState, aLaneThatChangesWithoutEndKeepsItsRangeAndItsTraining) {
    RunState state;
    constexpr int kChanges = 5000;
    for (int i = 0; i < kChanges; ++i) {
        ReplicaChanged change;
        change.state = i % 2 == 0 ? ReplicaState::kTraining : ReplicaState::kBackingOff;
        change.incarnation = static_cast<uint32_t>(i);
        // Three seconds of training, one of waiting, from 1 s on.
        const int64_t at = 1 + (i / 2) * 4 + (i % 2) * 3;
        apply(state,
              Event{static_cast<uint64_t>(i) + 1, at * 1'000'000'000, Severity::kInfo, change});
    }
    const auto& lane = state.replicas[0].lane;
    EXPECT_LE(lane.size(), 512u);
    EXPECT_EQ(lane[0].beginNs, 1'000'000'000);
    EXPECT_EQ(lane.back().endNs, 0);
    uint64_t stretches = 0;
    double trained = 0;
    for (size_t i = 0; i < lane.size(); ++i) {
        if (i > 0) {
            EXPECT_EQ(lane[i].beginNs, lane[i - 1].endNs);
        }
        stretches += lane[i].stretches;
        trained += lane[i].trained();
    }
    EXPECT_EQ(stretches, static_cast<uint64_t>(kChanges));
    EXPECT_NEAR(trained, kChanges / 2 * 3000.0, 1);
}

TEST(Keyframe, isTheSameWhereverItsRingsBegin) {
    Story whole;
    whole.start();
    Story resumed;
    for (int i = 0; i < 200; ++i) {
        if (i == 100) resumed.state = *decodeKeyframe(encodeKeyframe(whole.state));
        for (Story* story : {&whole, &resumed})
            if (story == &whole || i >= 100)
                story->at(i, EvidenceSeen{EvidenceKind::kProcessExit, i % 4, 0, "agent", ""});
    }
    EXPECT_EQ(encodeKeyframe(resumed.state), encodeKeyframe(whole.state));
}

TEST(Keyframe, refusesWhatIsNone) {
    EXPECT_EQ(decodeKeyframe("abc").status().code(), absl::StatusCode::kInvalidArgument);
    std::string bytes = encodeKeyframe(RunState{});
    std::string foreign = bytes;
    foreign[0] = static_cast<char>(foreign[0] ^ 1);
    EXPECT_EQ(decodeKeyframe(foreign).status().code(), absl::StatusCode::kFailedPrecondition);
    bytes.pop_back();
    EXPECT_EQ(decodeKeyframe(bytes).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Keyframe, withRandomBytesFlippedNeverCrashesTheFold) {
    RandomEvents random(99, false);
    RunState state;
    for (uint64_t seq = 1; seq <= 300; ++seq) apply(state, random.event(seq));
    const std::string good = encodeKeyframe(state);
    int decoded = 0;
    for (int round = 0; round < 300; ++round) {
        std::string bytes = good;
        for (int flips = 0; flips < 3; ++flips)
            bytes[8 + random.below(bytes.size() - 8)] = static_cast<char>(random.below(256));
        absl::StatusOr<RunState> odd = decodeKeyframe(bytes);
        if (!odd.ok()) continue;
        ++decoded;
        for (uint64_t seq = 301; seq <= 350; ++seq) apply(*odd, random.event(seq));
    }
    EXPECT_GT(decoded, 0);
}

}  // namespace
}  // namespace bulkhead::model
