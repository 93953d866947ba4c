// SPDX-License-Identifier: Apache-2.0
#include "backend/model/what_if.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "backend/model/ett.h"

namespace bulkhead::model {
namespace {

constexpr double kLlamaRunDays = 54;

const WhatIfPreset& preset(std::string_view name) {
    for (const WhatIfPreset& p : whatIfPresets())
        if (p.name == name) return p;
    ADD_FAILURE() << "no preset " << name;
    return whatIfPresets()[0];
}

double effective(std::string_view name) {
    return simulate(preset(name).scenario, kLlamaRunDays, 1).effective;
}

TEST(WhatIf, GivesThePublishedPointsFromThePublishedNumbers) {
    for (const WhatIfPreset& p : whatIfPresets())
        if (p.published > 0) {
            EXPECT_NEAR(effective(p.name), p.published, 0.02) << p.name;
        }
}

TEST(WhatIf, AgreesWithTheClosedFormWhereFailuresAreEven) {
    const FailureModel model{
        .interval = 18, .stall = 3, .degraded = 7, .rejoinStall = 0, .replicas = 12};
    EXPECT_NEAR(effective("published_ft"), predictFaultTolerant(model), 1e-3);
    EXPECT_NEAR(effective("published_sync"), predictRestartAll(18, 10), 1e-3);
}

TEST(WhatIf, EveryLossIsAccountedFor) {
    for (const WhatIfPreset& p : whatIfPresets()) {
        const WhatIfResult r = simulate(p.scenario, kLlamaRunDays, 7);
        const double sum = std::accumulate(r.lost.begin(), r.lost.end(), r.effective);
        EXPECT_NEAR(sum, 1.0, 1e-9) << p.name;
        for (const double part : r.lost) EXPECT_GE(part, 0) << p.name;
    }
}

TEST(WhatIf, IndependentFailuresOfNodesComeAtTheirRate) {
    const WhatIf& s = preset("bulkhead").scenario;
    // 12 x 8,192 / 8 nodes at 6.5 per 1,000 node-days: one in 18.03 minutes.
    EXPECT_NEAR(failureIntervalS(s) / 60, 18.03, 0.01);
    EXPECT_NEAR(simulate(s, 540, 3).meanIntervalS / failureIntervalS(s), 1, 0.02);
}

TEST(WhatIf, SynchronousRestartUnderIndependentFailuresFollowsTheRenewalFormula) {
    // A restart that is interrupted starts again: what is left of an interval T after a stall d is
    // E[max(0, T - d)] / E[T] = exp(-d / T).
    WhatIf s = preset("published_sync_exponential").scenario;
    EXPECT_NEAR(simulate(s, 5400, 1).effective, std::exp(-600.0 / 1080.0), 0.01);
}

TEST(WhatIf, SparesRaiseWhatAnActiveGpuDoesAndCostWhatTheyCost) {
    const WhatIfResult without = simulate(preset("bulkhead").scenario, kLlamaRunDays, 1);
    const WhatIfResult with = simulate(preset("bulkhead_spares").scenario, kLlamaRunDays, 1);
    EXPECT_GT(with.effective, without.effective + 0.02);
    EXPECT_NEAR(with.perProvisioned, with.effective * 12 / 14, 1e-12);
    EXPECT_LT(with.perProvisioned, without.perProvisioned);
}

TEST(WhatIf, WithoutFailuresNothingIsLost) {
    WhatIf s;
    s.failuresPer1000NodeDays = 0;
    const WhatIfResult r = simulate(s, 1, 1);
    EXPECT_DOUBLE_EQ(r.effective, 1);
    EXPECT_EQ(r.failures, 0);
}

TEST(WhatIf, AnOnlyReplicaTakesTheJobWithItAndGoesBackToTheCheckpoint) {
    WhatIf s;
    s.replicas = 1;
    s.spacing = FailureSpacing::kEven;
    s.intervalS = 10000;
    s.checkpointEveryS = 3000;
    s.restartS = 400;
    s.restartAllS = 600;
    const WhatIfResult r = simulate(s, 10, 1);
    EXPECT_EQ(r.wholeJobLost, r.failures);
    // Of each 10,000 s: 600 s until it is back. Checkpoints at 3,000, 6,000 and 9,000 of the
    // useful seconds; 400 s after the last one are trained twice.
    EXPECT_NEAR(r.effective, (10000 - 600 - 400) / 10000.0, 0.01);
    EXPECT_GT(r.samplesRedone, 0);
}

TEST(WhatIf, NoMoreIsLostThanWasTrainedHoweverThickFailuresCome) {
    WhatIf s = preset("bulkhead").scenario;
    s.intervalS = 0.01;
    const WhatIfResult r = simulate(s, 0.001, 1);
    EXPECT_GE(r.effective, 0);
    EXPECT_LT(r.effective, 0.01);
}

TEST(WhatIf, SameSeedSameResult) {
    const WhatIf& s = preset("bulkhead").scenario;
    EXPECT_EQ(simulate(s, 54, 5).effective, simulate(s, 54, 5).effective);
    EXPECT_NE(simulate(s, 54, 5).effective, simulate(s, 54, 6).effective);
}

TEST(WhatIf, NamesTheFieldThatIsOutOfRange) {
    WhatIf s;
    s.replicas = 2.5;
    EXPECT_THAT(std::string(checkWhatIf(s).message()),
                testing::HasSubstr("replicas is 2.5; expected a whole number from 1 to 256"));
    s.replicas = 2;
    s.stepS = std::nan("");
    EXPECT_THAT(std::string(checkWhatIf(s).message()), testing::HasSubstr("stepS"));
    for (const WhatIfPreset& p : whatIfPresets()) EXPECT_TRUE(checkWhatIf(p.scenario).ok());
}

TEST(WhatIf, ANumberSetByNameIsCheckedAndItsBoundsAreNamed) {
    WhatIf s;
    EXPECT_TRUE(setWhatIf(s, "fetchGBps", "2.5").ok());
    EXPECT_EQ(s.fetchGBps, 2.5);
    const auto refusal = [&](std::string_view key, std::string_view value) {
        return std::string(setWhatIf(s, key, value).message());
    };
    EXPECT_THAT(refusal("fetchGBps", "0"), testing::HasSubstr("a number from 0.001 to 1000 GB/s"));
    EXPECT_THAT(refusal("fetchGBps", "fast"), testing::HasSubstr("fetchGBps is nan; expected"));
    EXPECT_THAT(refusal("fetch", "2"), testing::HasSubstr("fetch is no number of a scenario"));
    EXPECT_THAT(refusal("fetch", "2"), testing::HasSubstr("fetchGBps"));
    EXPECT_EQ(s.fetchGBps, 2.5);
}

TEST(WhatIf, AJobOfAnotherSizeKeepsTheFailuresPerNodeThatItsIntervalMeant) {
    WhatIf s = preset("published_ft").scenario;
    EXPECT_NEAR(failureRate(s), 6.51, 0.01);
    ASSERT_TRUE(setWhatIf(s, "gpusPerReplica", "4096").ok());
    EXPECT_NEAR(failureIntervalS(s), 36 * 60, 1e-6);
    ASSERT_TRUE(setWhatIf(s, "failuresPer1000NodeDays", "2.3").ok());
    EXPECT_EQ(failureRate(s), 2.3);
    EXPECT_EQ(s.intervalS, 0);
}

TEST(WhatIf, EveryNumberOfAPresetHasASource) {
    const WhatIf nothing{};
    for (const WhatIfPreset& p : whatIfPresets())
        for (const WhatIfParameter& key : whatIfParameters()) {
            const double value = p.scenario.*key.field;
            if (value == 0 || value == nothing.*key.field) continue;
            EXPECT_NE(whatIfSource(p.name, key.key), "") << p.name << " " << key.key;
        }
}

}  // namespace
}  // namespace bulkhead::model
