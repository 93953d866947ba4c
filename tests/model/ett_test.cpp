// SPDX-License-Identifier: Apache-2.0
#include "backend/model/ett.h"

#include <gtest/gtest.h>

namespace bulkhead::model {
namespace {

TEST(EffectiveTime, countsAReplicaForItsShareAndNotTheStall) {
    EffectiveTime ett;
    EXPECT_DOUBLE_EQ(ett.value(), 1);
    ett.addStep(100, 0, 4, 4);
    ett.addStep(100, 20, 3, 4);
    EXPECT_DOUBLE_EQ(ett.value(), (100 + 60) / 200.0);
    ett.addIdle(200);
    EXPECT_DOUBLE_EQ(ett.value(), 160 / 400.0);
    ett.takeBack(100, 20, 3, 4);
    EXPECT_DOUBLE_EQ(ett.value(), 100 / 400.0);
}

TEST(EffectiveTime, isAlwaysAPartOfOne) {
    EffectiveTime ett;
    ett.addStep(100, 500, 4, 4);
    EXPECT_DOUBLE_EQ(ett.value(), 0);
    ett.addStep(-5, 0, 4, 4);
    ett.addStep(100, -5, 9, 4);
    EXPECT_DOUBLE_EQ(ett.value(), 0.5);
}

TEST(Prediction, givesThePapersFigures) {
    EXPECT_NEAR(predictFaultTolerant({18, 3, 7, 0, 12}), (8 + 7 * 11.0 / 12) / 18, 1e-12);
    EXPECT_NEAR(predictFaultTolerant({18, 3, 7, 0, 12}), 0.80, 0.005);
    EXPECT_NEAR(predictRestartAll(18, 10), 0.44, 0.005);
}

TEST(Prediction, staysWithinBoundsWhenFailuresNeverCease) {
    EXPECT_DOUBLE_EQ(predictFaultTolerant({10, 20, 50, 3, 4}), 0);
    EXPECT_DOUBLE_EQ(predictFaultTolerant({10, 0, 50, 0, 4}), 0.75);
    EXPECT_DOUBLE_EQ(predictRestartAll(10, 20), 0);
}

TEST(Prediction, followsTheIncidentsOfARun) {
    RunState state;
    EXPECT_FALSE(predictForRun(state));
    state.spec.replicas = 4;
    state.startedNs = 0;
    state.lastEventNs = 20'000'000'000;
    state.counters.incidents = 2;
    state.counters.survivorStallMs = 1000;
    state.counters.rejoinMs = 5000;
    // Interval 10 s, stall 0.5 s, 2 s without one of four.
    ASSERT_TRUE(predictForRun(state));
    EXPECT_NEAR(*predictForRun(state), (10 - 0.5 - 2 * 0.25) / 10, 1e-12);
}

}  // namespace
}  // namespace bulkhead::model
