// SPDX-License-Identifier: Apache-2.0
#include "tests/support/made_run.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <gmock/gmock.h>

#include <limits>

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

/// Keyframes of a run of 800 ranks, whose events are few and large.
int keyframesOf(const std::filesystem::path& file, std::unique_ptr<RunWriter> writing) {
    test::RunShape shape;
    shape.shards = 200;
    for (const model::Event& event : test::MadeRun(shape).events(30))
        EXPECT_TRUE(writing->append(event).ok());
    EXPECT_TRUE(writing->flush().ok());
    const int64_t run = writing->runId();
    SQLite::Database db(file.string());
    SQLite::Statement count(db, "SELECT count(*) FROM keyframes WHERE run = ?");
    count.bind(1, run);
    count.executeStep();
    EXPECT_TRUE((*RunReader::open(file))->verify(run).ok());
    return count.getColumn(0).getInt();
}

TEST_F(MadeRunFile, whoSeeksAmongLargeEventsFindsAKeyframeNear) {
    WriterOptions byEvents;
    byEvents.keyframeBytes = std::numeric_limits<size_t>::max();
    EXPECT_EQ(keyframesOf(file_, writer("events", byEvents)), 0);
    WriterOptions byBytes;
    byBytes.keyframeBytes = 50'000;
    byBytes.batchBytes = 1;
    EXPECT_GE(keyframesOf(file_, writer("bytes", byBytes)), 4);
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
