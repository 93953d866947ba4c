// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/incident_book.h"

#include <gmock/gmock.h>

#include "backend/common/clock.h"

namespace bulkhead::runtime {
namespace {

using model::EvidenceKind;
using model::IncidentPhaseKind;
using model::ReplicaState;

int64_t at(int64_t milliseconds) {
    return milliseconds * kMillisecond;
}

class IncidentBookTest : public testing::Test {
  protected:
    template <class T>
    std::vector<T> all() const {
        std::vector<T> out;
        for (const auto& e : events_)
            if (const T* t = std::get_if<T>(&e)) out.push_back(*t);
        return out;
    }
    double phaseMs(IncidentPhaseKind kind) const {
        for (const auto& p : all<model::IncidentPhase>())
            if (p.phase == kind) return static_cast<double>(p.endNs - p.beginNs) / kMillisecond;
        return -1;
    }
    static StepTiming step(uint64_t n, int64_t ms, std::vector<int32_t> contributors,
                           uint32_t attempt = 1) {
        StepTiming t;
        t.step = n;
        t.attempt = attempt;
        t.committedNs = at(ms);
        t.lastVoteNs = at(ms - 1);
        t.exchangeBeginNs = at(ms - 21);
        t.computeEndNs = at(ms - 200);
        t.contributors = std::move(contributors);
        return t;
    }
    static model::FaultSpec kill(int32_t replica) {
        model::FaultSpec f;
        f.replica = replica;
        return f;
    }

    std::vector<model::EventBody> events_;
    IncidentBook book_{4, [this](model::EventBody b, model::Severity) { events_.push_back(b); }};
};

TEST_F(IncidentBookTest, AKilledReplicaLeavesAllItsPhases) {
    book_.faultTookEffect(7, kill(2), {2}, at(1000));
    book_.evidence(2, at(1004));
    book_.lost(2, 1, 50, EvidenceKind::kProcessExit, "r2 lost", at(1005));
    book_.committed(step(50, 1060, {0, 1, 3}, 2));
    book_.replicaState(2, 2, ReplicaState::kStarting, at(1500));
    book_.replicaState(2, 2, ReplicaState::kFetching, at(1900));
    book_.replicaState(2, 2, ReplicaState::kReplaying, at(2300));
    book_.replicaState(2, 2, ReplicaState::kProven, at(2400));
    book_.committed(step(60, 2500, {0, 1, 2, 3}));

    const auto opened = all<model::IncidentOpened>();
    ASSERT_EQ(opened.size(), 1u);
    EXPECT_EQ(opened[0].fault, 7u);
    EXPECT_EQ(phaseMs(IncidentPhaseKind::kDetect), 4);
    EXPECT_EQ(phaseMs(IncidentPhaseKind::kDecide), 1);
    EXPECT_EQ(phaseMs(IncidentPhaseKind::kReform), 34);
    EXPECT_EQ(phaseMs(IncidentPhaseKind::kReexchange), 20);
    EXPECT_EQ(phaseMs(IncidentPhaseKind::kRestart), 495);
    EXPECT_EQ(phaseMs(IncidentPhaseKind::kInit), 400);
    EXPECT_EQ(phaseMs(IncidentPhaseKind::kFetch), 400);
    EXPECT_EQ(phaseMs(IncidentPhaseKind::kReplay), 100);
    EXPECT_EQ(phaseMs(IncidentPhaseKind::kJoin), 100);
    const auto closed = all<model::IncidentClosed>();
    ASSERT_EQ(closed.size(), 1u);
    EXPECT_EQ(closed[0].survivorStallMs, 39);
    EXPECT_EQ(closed[0].rejoinMs, 1500);
    EXPECT_EQ(closed[0].outcome, "rejoined at step 60");
}

TEST_F(IncidentBookTest, SurvivorsStillComputingDidNotWait) {
    book_.evidence(2, at(1000));
    book_.lost(2, 1, 50, EvidenceKind::kProcessExit, "r2 lost", at(1001));
    StepTiming t = step(50, 1500, {0, 1, 3});
    t.computeEndNs = at(1480);
    book_.committed(t);
    book_.close("the run ended", at(2000));
    EXPECT_EQ(all<model::IncidentClosed>()[0].survivorStallMs, 0);
    EXPECT_EQ(book_.stalledNs(), 0);
}

TEST_F(IncidentBookTest, ACompleteSumThatCommitsWithTheDeadDoesNotEndTheIncident) {
    book_.lost(2, 1, 50, EvidenceKind::kProcessExit, "r2 lost", at(1000));
    book_.committed(step(50, 1010, {0, 1, 2, 3}));
    EXPECT_EQ(phaseMs(IncidentPhaseKind::kReform), -1);
    book_.committed(step(51, 1300, {0, 1, 3}));
    EXPECT_GE(phaseMs(IncidentPhaseKind::kReform), 0);
}

TEST_F(IncidentBookTest, ADisturbanceClosesWithItsStep) {
    book_.faultTookEffect(3, kill(1), {1}, at(900));
    book_.evidence(1, at(950));
    book_.disturbed(1, 1, 20, EvidenceKind::kNonFinite, "r1: gradient not finite", at(951));
    book_.committed(step(20, 1100, {0, 1, 2, 3}));
    ASSERT_EQ(all<model::IncidentClosed>().size(), 1u);
    EXPECT_EQ(all<model::IncidentOpened>()[0].fault, 3u);
    EXPECT_EQ(all<model::IncidentClosed>()[0].rejoinMs, 0);
}

TEST_F(IncidentBookTest, AFaultExplainsOneLossOfAReplicaOnly) {
    book_.faultTookEffect(1, kill(2), {2}, at(1000));
    book_.lost(2, 1, 50, EvidenceKind::kProcessExit, "first", at(1005));
    book_.lost(2, 2, 52, EvidenceKind::kProcessExit, "second", at(1900));
    const auto opened = all<model::IncidentOpened>();
    ASSERT_EQ(opened.size(), 2u);
    EXPECT_EQ(opened[0].fault, 1u);
    EXPECT_EQ(opened[1].fault, 0u);
    EXPECT_EQ(opened[1].incident, 2u);
    EXPECT_EQ(all<model::IncidentClosed>().size(), 1u) << "the first ends when it is lost again";
}

TEST_F(IncidentBookTest, ANodeFaultExplainsEveryReplicaItHits) {
    model::FaultSpec node;
    node.kind = model::FaultKind::kKillNode;
    book_.faultTookEffect(4, node, {2, 3}, at(1000));
    book_.lost(2, 1, 50, EvidenceKind::kNodeLost, "r2", at(1005));
    book_.lost(3, 1, 50, EvidenceKind::kNodeLost, "r3", at(1006));
    EXPECT_EQ(all<model::IncidentOpened>()[0].fault, 4u);
    EXPECT_EQ(all<model::IncidentOpened>()[1].fault, 4u);
}

}  // namespace
}  // namespace bulkhead::runtime
