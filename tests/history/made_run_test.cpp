// SPDX-License-Identifier: Apache-2.0
#include "tests/support/made_run.h"

#include <gmock/gmock.h>

#include "backend/common/codec.h"
#include "tests/history/store_fixture.h"
#include "tests/support/made_run_file.h"

namespace bulkhead::history {
namespace {

using MadeRunFile = StoreTest;

/// Everything that the shape of a large run has, within few steps.
test::RunShape shortButEventful() {
    test::RunShape shape = test::largeRun();
    shape.replicas = 5;
    shape.shards = 3;
    shape.decaySteps = 300;
    shape.lossEvery = 30;
    shape.rollbackEvery = 120;
    shape.checkpointEvery = 50;
    return shape;
}

TEST_F(MadeRunFile, addsUpWithLossesCheckpointsAndRollbacks) {
    ASSERT_TRUE(test::writeMadeRun(file_.string(), shortButEventful(), 300).ok());
    auto reading = reader();
    const auto run = reading->findRun("sample");
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(run->lastStep, 300u);
    EXPECT_GT(run->incidents, 3u);
    EXPECT_GT(run->faults, 1u);
    EXPECT_LT(run->faults, run->incidents);
    EXPECT_EQ(run->phase, "finished");
    EXPECT_GE(reading->checkpoints(run->id)->size(), 6u);
    const auto state = reading->stateAtSeq(run->id, run->lastSeq);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(state->counters.malformed, 0u);
    EXPECT_GT(state->counters.rollbacks, 0u);
    const auto incidents = reading->incidents(run->id);
    ASSERT_TRUE(incidents.ok()) << incidents.status();
    for (const model::IncidentView& incident : *incidents)
        EXPECT_THAT(incident.title, testing::HasSubstr(" lost: r"));
    const auto report = reading->audit(run->id, [] {
        return absl::StatusOr<std::vector<model::LogLink>>(absl::NotFoundError(""));
    });
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_TRUE(report->ok) << (report->findings.empty() ? "" : report->findings[0].what);
    EXPECT_EQ(report->steps, 300u);
    EXPECT_EQ(report->unlinked, 0u);
    EXPECT_EQ(report->twice, 0u);
    EXPECT_EQ(report->open, 0u);
    EXPECT_GT(report->compared, 300u);
}

TEST(MadeRun, isTheSameEveryTimeAndAnotherForAnotherSeed) {
    test::RunShape shape = shortButEventful();
    const auto bytes = [&] {
        std::string out;
        for (const model::Event& event : test::MadeRun(shape).events(60)) out += encode(event);
        return out;
    };
    const std::string first = bytes();
    EXPECT_EQ(bytes(), first);
    ++shape.seed;
    EXPECT_NE(bytes(), first);
}

}  // namespace
}  // namespace bulkhead::history
