// SPDX-License-Identifier: Apache-2.0
#include "backend/model/incident_card.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/model/event_json.h"
#include "backend/model/incident_phases.h"

namespace bulkhead::model {
namespace {

using testing::Gt;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int64_t kSecond = 1'000'000'000;

/// A job of three replicas with a step a second and 100 tokens of each replica in it.
class Cards : public testing::Test {
  protected:
    Cards() {
        RunStarted start;
        start.spec.name = "demo";
        start.spec.replicas = 3;
        start.spec.shards = 2;
        tell(start);
        tell(NodeChanged{"node0", "", 6, NodeState::kUp, ""});
        tell(JobPhaseChanged{JobPhase::kTraining, ""});
        for (int32_t r = 0; r < 3; ++r) set(r, ReplicaState::kTraining);
        train(10);
    }
    template <class Body>
    void tell(Body body) {
        apply(state, Event{state.seq + 1, now, Severity::kInfo, std::move(body)});
    }
    void set(int32_t replica, ReplicaState to, const char* why = "") {
        tell(ReplicaChanged{replica, 1, to, "node0", step, why});
    }
    void train(int steps, std::vector<int32_t> members = {0, 1, 2}) {
        for (int i = 0; i < steps; ++i) {
            now += kSecond;
            StepCommitted commit;
            commit.record.step = ++step;
            commit.record.tokens = 100 * members.size();
            commit.stepMs = 1000;
            for (const int32_t r : members) commit.record.contributors.push_back({r, 1, {}});
            tell(commit);
        }
    }
    void lose(uint64_t incident, int32_t replica, uint64_t fault = 0) {
        tell(EvidenceSeen{EvidenceKind::kProcessExit, replica, 1, "agent node0", "signal 9"});
        tell(IncidentOpened{incident, replica, 1, step, EvidenceKind::kProcessExit, fault,
                            "r2 lost: signal 9"});
        set(replica, ReplicaState::kBackingOff);
    }
    void pass(uint64_t incident, IncidentPhaseKind phase, int seconds) {
        const int64_t from = now;
        now += seconds * kSecond;
        tell(IncidentPhase{incident, phase, from, now});
    }
    /// The whole way back, `seconds` for each of its five parts.
    void recover(uint64_t incident, int32_t replica, int seconds) {
        const int64_t from = now;
        for (const auto phase :
             {IncidentPhaseKind::kRestart, IncidentPhaseKind::kInit, IncidentPhaseKind::kFetch,
              IncidentPhaseKind::kReplay, IncidentPhaseKind::kJoin})
            pass(incident, phase, seconds);
        set(replica, ReplicaState::kTraining);
        const double away = durationMs(from, now);
        tell(IncidentClosed{incident, 0, away, away / 1000, 0, "rejoined"});
    }
    IncidentCard card(uint64_t incident) {
        return incidentCard(state, *findIncident(state, incident), prices);
    }

    RunState state;
    Prices prices;
    int64_t now = 1000 * kSecond;
    uint64_t step = 0;
};

TEST_F(Cards, aJobInOrderHasNone) {
    EXPECT_THAT(incidentCards(state), IsEmpty());
    EXPECT_EQ(openProblems(state), 0u);
}

TEST_F(Cards, theFirstRecoveryOfARunHasNoTimeToGoBy) {
    lose(1, 2);
    const IncidentCard c = card(1);
    EXPECT_TRUE(c.open);
    EXPECT_FALSE(c.back);
    EXPECT_THAT(c.backText, HasSubstr("no recovery to go by"));
    EXPECT_THAT(c.evidence, SizeIs(1));
    EXPECT_EQ(c.evidence[0], "at once, agent node0: process exit of r2s1, signal 9");
    EXPECT_THAT(c.now, HasSubstr("2 of 3 replicas train on"));
    EXPECT_FALSE(c.action) << "it comes back by itself";
    EXPECT_FALSE(c.advice.empty());
    EXPECT_EQ(openProblems(state), 1u);
}

TEST_F(Cards, laterOnesAreMeasuredByThoseBefore) {
    for (const auto& [incident, seconds] : {std::pair{1, 1}, {2, 2}, {3, 4}}) {
        lose(static_cast<uint64_t>(incident), 2);
        recover(static_cast<uint64_t>(incident), 2, seconds);
    }
    lose(4, 2);
    std::optional<Return> back = card(4).back;
    ASSERT_TRUE(back);
    EXPECT_EQ(back->of, 3u);
    EXPECT_DOUBLE_EQ(back->leastMs, 5000);
    EXPECT_DOUBLE_EQ(back->likelyMs, 10'000);
    EXPECT_DOUBLE_EQ(back->mostMs, 20'000);
    pass(4, IncidentPhaseKind::kRestart, 1);
    pass(4, IncidentPhaseKind::kInit, 1);
    back = card(4).back;
    EXPECT_DOUBLE_EQ(back->likelyMs, 6000) << "fetch, replay and join are left";
    EXPECT_FALSE(back->overdue);
    now += 60 * kSecond;
    set(2, ReplicaState::kStarting);
    const IncidentCard late = card(4);
    EXPECT_TRUE(late.back->overdue);
    ASSERT_TRUE(late.action);
    EXPECT_EQ(late.action->kind, ActionKind::kRestartReplica);
    EXPECT_EQ(commandLine(*late.action, "demo"), "bulkheadctl restart 2 --job demo");
}

TEST_F(Cards, aTransferUnderWayTellsItsOwnPace) {
    lose(1, 2);
    recover(1, 2, 2);
    lose(2, 2);
    pass(2, IncidentPhaseKind::kRestart, 1);
    pass(2, IncidentPhaseKind::kInit, 1);
    set(2, ReplicaState::kFetching);
    now += 10 * kSecond;
    tell(CatchUpProgress{2, 1, step, 1000, 4000, 0, {0, 1}});
    const std::optional<Return> back = card(2).back;
    ASSERT_TRUE(back);
    // Three quarters are left and a quarter took ten seconds; replay and join took two each.
    EXPECT_NEAR(back->likelyMs, 30'000 + 4000, 1);
    EXPECT_FALSE(back->overdue);
}

TEST_F(Cards, theCostCountsReplicaAndSurvivorsAndWhatTheyWouldHaveTrained) {
    FleetSampled fleet;
    for (int32_t s = 0; s < 2; ++s) {
        RankSample rank;
        rank.rank = {2, s};
        rank.incarnation = 1;
        rank.gpus = {static_cast<uint32_t>(s)};
        fleet.ranks.push_back(rank);
    }
    tell(fleet);
    prices.gpuHour = 3600;
    lose(1, 2);
    const int64_t from = now;
    tell(IncidentPhase{1, IncidentPhaseKind::kDetect, from, from + kSecond / 2});
    now += 8 * kSecond;
    set(2, ReplicaState::kStarting);
    const Cost cost = card(1).cost.value();
    EXPECT_DOUBLE_EQ(cost.replicaSeconds, 8 + 0.5 * 2);
    EXPECT_DOUBLE_EQ(cost.gpuHours, 9 * 2 / 3600.0);
    EXPECT_NEAR(cost.tokens, 9 * 100, 1);
    ASSERT_TRUE(cost.money);
    EXPECT_NEAR(*cost.money, 18, 1e-9);
    EXPECT_THAT(card(1).costText, HasSubstr("18.00 USD so far"));
}

TEST_F(Cards, evidenceSaysWhetherItCameBeforeTheIncidentOrAfter) {
    tell(EvidenceSeen{EvidenceKind::kTransportReset, 2, 0, "r1s0", ""});
    now += kSecond / 1000;
    lose(1, 2);
    now += 3 * kSecond;
    tell(EvidenceSeen{EvidenceKind::kMissedHeartbeat, 2, -1, "coordinator", ""});
    EXPECT_THAT(card(1).evidence,
                testing::ElementsAre("1 ms before, r1s0: transport reset of r2s0",
                                     "at once, agent node0: process exit of r2s1, signal 9",
                                     "3 s after, coordinator: missed heartbeat"));
}

TEST_F(Cards, theStallIsDetectDecideAndReFormAndTheExchangeAgainIsToldApart) {
    lose(1, 2);
    for (const auto& [phase, seconds] : {std::pair{IncidentPhaseKind::kDetect, 1},
                                         {IncidentPhaseKind::kDecide, 2},
                                         {IncidentPhaseKind::kReform, 4},
                                         {IncidentPhaseKind::kReexchange, 8}})
        pass(1, phase, seconds);
    const IncidentView& incident = *findIncident(state, 1);
    EXPECT_EQ(incident.survivorStallMs, 7000);
    double stood = 0;
    for (const PhaseView& phase : incident.phases)
        if (stopsSurvivors(phase.phase)) stood += phase.ms();
    EXPECT_EQ(stood, incident.survivorStallMs);
    tell(IncidentClosed{1, 7000, 15'000, 29, 0, "rejoined at step 20"});
    EXPECT_THAT(card(1).now,
                HasSubstr("The others stood still for 7 s, then exchanged again for 8 s."));
}

TEST_F(Cards, nobodyIsSaidToHaveStoodStillForAReplicaThatGaveNoPart) {
    lose(1, 2);
    pass(1, IncidentPhaseKind::kDetect, 1);
    tell(IncidentClosed{1, 0, 0, 1, 0, "given up"});
    EXPECT_THAT(card(1).now, HasSubstr("The others did not stand still."));
}

TEST_F(Cards, aReplicaThatIsLostOftenHasItsNodeCordoned) {
    tell(NodeChanged{"node1", "", 6, NodeState::kUp, ""});
    for (uint64_t i = 1; i <= 3; ++i) {
        lose(i, 2);
        recover(i, 2, 1);
    }
    const IncidentCard c = card(3);
    ASSERT_TRUE(c.action);
    EXPECT_EQ(c.action->kind, ActionKind::kCordon);
    EXPECT_EQ(c.action->node, "node0");
    EXPECT_THAT(c.advice, HasSubstr("3 times"));
}

TEST_F(Cards, aNodeIsNotBlamedForWhatHappensToAllOrHasNoOther) {
    const auto loses = [&](int32_t replica, uint64_t first) {
        for (uint64_t i = first; i < first + 3; ++i) {
            lose(i, replica);
            recover(i, replica, 1);
        }
    };
    loses(2, 1);
    IncidentCard c = card(3);
    EXPECT_FALSE(c.action.has_value());
    EXPECT_THAT(c.advice, HasSubstr("there is no other node, and replica 2 was lost 3 times"));
    tell(NodeChanged{"node1", "", 6, NodeState::kUp, ""});
    loses(1, 4);
    c = card(6);
    EXPECT_FALSE(c.action.has_value());
    EXPECT_THAT(c.advice, HasSubstr("replica 1 was lost 3 times within the last hour, and others"));
}

TEST_F(Cards, aFaultThatLastsIsToBeEnded) {
    FaultSpec hang;
    hang.kind = FaultKind::kHang;
    hang.replica = 2;
    tell(FaultInjected{1, hang, step, "anna"});
    lose(1, 2, 1);
    EXPECT_EQ(card(1).endFault, 1u);
    EXPECT_THAT(card(1).happened, HasSubstr("injected by anna"));
    tell(FaultEnded{1, "ended"});
    EXPECT_EQ(card(1).endFault, 0u);
}

TEST_F(Cards, whatStandsHasACardOfItsOwn) {
    tell(JobPhaseChanged{JobPhase::kPaused, "paused by anna"});
    set(1, ReplicaState::kHeld);
    tell(NodeChanged{"node0", "", 6, NodeState::kCordoned, "memory errors"});
    tell(CheckpointWritten{step, 0, "/ckpt", 0, 0, false, "no room"});
    std::vector<Problem> problems;
    std::vector<ActionKind> actions;
    for (const IncidentCard& c : incidentCards(state)) {
        problems.push_back(c.problem);
        if (c.action) actions.push_back(c.action->kind);
        EXPECT_FALSE(c.title.empty() || c.happened.empty() || c.now.empty() || c.advice.empty())
            << toJsonText(c);
    }
    EXPECT_EQ(problems, (std::vector{Problem::kPaused, Problem::kReplicaOut, Problem::kNodeOut,
                                     Problem::kCheckpoint}));
    EXPECT_EQ(actions, (std::vector{ActionKind::kResume, ActionKind::kReleaseRejoin,
                                    ActionKind::kUncordon, ActionKind::kCheckpoint}));
    tell(RunFinished{true, "done", step});
    EXPECT_EQ(openProblems(state), 0u) << "nothing is to be done to a run that has ended";
}

TEST_F(Cards, aFrozenStepNamesTheRankThatWaitsLongest) {
    now += 20 * kSecond;
    FleetSampled fleet;
    RankSample rank;
    rank.rank = {1, 0};
    rank.incarnation = 1;
    rank.phase = RankPhase::kExchange;
    rank.progressAgeMs = 19'000;
    fleet.ranks.push_back(rank);
    tell(fleet);
    const std::vector<IncidentCard> cards = incidentCards(state);
    ASSERT_THAT(cards, SizeIs(1));
    EXPECT_EQ(cards[0].problem, Problem::kNoProgress);
    EXPECT_THAT(cards[0].evidence[0], HasSubstr("r1s0: no progress for 19 s, phase exchange"));
    EXPECT_EQ(cards[0].action->replica, 1);
    EXPECT_THAT(cards[0].cost->replicaSeconds, Gt(3 * 10));
}

TEST_F(Cards, theTextOfACardHasEveryLineAndTheCommand) {
    lose(1, 2);
    recover(1, 2, 1);
    lose(2, 2);
    now += 100 * kSecond;
    set(2, ReplicaState::kStarting);
    const std::string text = cardText(card(2), state.startedNs, "demo");
    for (const char* part :
         {"#2 r2 lost", "(open since ", "\n  happened    ", "\n  evidence    ", "\n  now         ",
          "\n  back        Overdue", "\n  cost        ", "\n  do          Restart it",
          "\n              bulkheadctl restart 2 --job demo\n"})
        EXPECT_THAT(text, HasSubstr(part));
}

}  // namespace
}  // namespace bulkhead::model
