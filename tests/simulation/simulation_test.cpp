// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>

#include "absl/strings/str_cat.h"
#include "backend/runtime/simulation/found_case.h"
#include "backend/runtime/simulation/minimise.h"
#include "backend/runtime/simulation/oracle.h"
#include "backend/runtime/simulation/story.h"

namespace bulkhead::simulation {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string storyOf(uint64_t seed, size_t faults) {
    const Setup setup = drawSetup(seed);
    const Schedule schedule = drawSchedule(seed, setup, faults);
    Minimised m{schedule, runTrial(seed, setup, schedule), 0};
    return tellStory(seed, setup, m, false);
}

/// Other seeds with every commit; `./dev soak` runs more of them.
TEST(SimulationTest, ASliceOfSeedsKeepsEveryInvariantAndHeals) {
    uint64_t faults = 0;
    uint64_t commits = 0;
    const uint64_t first = freshSeed();
    std::cout << "seeds " << first << ".." << first + 199
              << "; again: bulkhead-sim replay SEED --faults 50\n";
    for (uint64_t seed = first; seed < first + 200; ++seed) {
        const Verdict v = runTrial(seed, 50);
        faults += v.counts.faults;
        commits += v.counts.commits;
        if (!v.broken) continue;
        ADD_FAILURE() << storyOf(seed, 50);
        return;
    }
    EXPECT_GE(faults, 200u * 50u);
    EXPECT_GT(commits, faults / 10);
}

/// Each found something: a busy coordinator, states and gradients of a layout that no longer
/// counts, joiners that nobody could prove or serve while the job waited for them, a move of
/// experts whose step went void, the new incarnation of a replica blamed for its predecessor, a
/// contributor sent to fetch again because its source was lost, a state served in another layout,
/// numbers of layouts and epochs used twice, the word of one corrupt replica, a quorum from before
/// a move of experts, checkpoints that were removed or overlooked, an order to fetch from before
/// its replica contributed. Some broke the judge.
TEST(SimulationTest, SeedsThatOnceBrokeSomethingStayWhole) {
    const std::pair<uint64_t, size_t> found[] = {{4, 20},
                                                 {7, 20},
                                                 {10, 20},
                                                 {23, 20},
                                                 {30, 20},
                                                 {31, 20},
                                                 {49, 20},
                                                 {84, 20},
                                                 {100, 20},
                                                 {109, 20},
                                                 {122, 20},
                                                 {144, 20},
                                                 {1028, 60},
                                                 {1032, 60},
                                                 {19, 40},
                                                 {26, 40},
                                                 {30, 40},
                                                 {50, 40},
                                                 {100, 40},
                                                 {101, 40},
                                                 {146, 40},
                                                 {169, 40},
                                                 {233, 40},
                                                 {342, 40},
                                                 {365, 40},
                                                 {1308, 40},
                                                 {1749, 40},
                                                 {2633, 40},
                                                 {1181, 40},
                                                 {2465, 40},
                                                 {3403, 40},
                                                 {3990, 40},
                                                 {5250, 40},
                                                 {7111, 40},
                                                 {2665, 100},
                                                 {1804, 100},
                                                 {8237, 100},
                                                 {93, 100},
                                                 {160, 100},
                                                 {290, 100},
                                                 {960, 100},
                                                 {3690, 100},
                                                 {4642, 100},
                                                 {2794, 40},
                                                 {100694, 100},
                                                 {100271, 100},
                                                 {201693, 100},
                                                 {202127, 100},
                                                 {205130, 100},
                                                 {206676, 100},
                                                 {207535, 100},
                                                 {896372468, 100},
                                                 {1659483136, 100},
                                                 {12569448866, 100},
                                                 {22569453398, 100},
                                                 {22569454254, 100},
                                                 {54179655320, 100},
                                                 {3252087881, 50},
                                                 {896773834, 100}};
    for (const auto& [seed, faults] : found) {
        const Verdict v = runTrial(seed, faults);
        EXPECT_FALSE(v.broken) << storyOf(seed, faults);
    }
}

/// The job begins.
void begin(Oracle& oracle) {
    LogLineage lineage;
    lineage.lineage = 1;
    lineage.ledger.highWater = {0};
    oracle.appended(lineage);
    oracle.durable(lineage);
}

/// The judge looks at checkpoints that are in the log, and at others.
TEST(OracleTest, WhoeverVotedOnAStateContradictsACheckpointWithOtherHashes) {
    const Options options;
    std::string failures;
    Oracle oracle(options, [&](const char*, const std::string& detail) { failures += detail; });
    begin(oracle);
    for (uint64_t step = 1; step <= 5; ++step) {
        LogCommit commit;
        commit.record.lineage = 1;
        commit.record.step = step;
        if (step == 3) commit.figures.parity = {{{20}, {0, 1}, {1, 1}}};
        if (step == 5) commit.figures.parity = {{{40}, {1}, {1}}};
        oracle.durable(commit);
    }
    EXPECT_TRUE(oracle.isContradicted(1, 2, 0, {21}));
    EXPECT_TRUE(oracle.isContradicted(1, 4, 0, {41})) << "by one alone";
    EXPECT_FALSE(oracle.isContradicted(1, 2, 0, {20}));
    EXPECT_FALSE(oracle.isContradicted(1, 4, 0, {40}));
    EXPECT_FALSE(oracle.isContradicted(1, 4, 1, {41})) << "experts lie otherwise";
    EXPECT_FALSE(oracle.isContradicted(1, 3, 0, {31})) << "nobody compared it";
    EXPECT_FALSE(oracle.isContradicted(2, 4, 0, {41}));

    Report report;
    report.lineage = 1;
    report.hasState = report.ready = true;
    report.step = 5;
    report.hashes = {50};
    EXPECT_FALSE(oracle.isDenied(1, 5, 0, {51})) << "nobody told of it";
    oracle.reported(report);
    EXPECT_TRUE(oracle.isDenied(1, 5, 0, {51}));
    EXPECT_FALSE(oracle.isDenied(1, 5, 0, {50}));
    EXPECT_FALSE(oracle.isDenied(1, 5, 1, {51})) << "experts lie otherwise";
    report.replica = 1;
    report.hashes = {51};
    oracle.reported(report);
    EXPECT_FALSE(oracle.isDenied(1, 5, 0, {51})) << "one of two says the same";
    report.hashes = {50};
    oracle.reported(report);
    EXPECT_TRUE(oracle.isDenied(1, 5, 0, {51})) << "and takes it back";

    const auto saysOf = [&](uint64_t step, uint64_t hash) {
        failures.clear();
        LogCheckpoint checkpoint;
        checkpoint.lineage = 1;
        checkpoint.step = step;
        checkpoint.path = absl::StrCat("at", step);
        checkpoint.hashes = {hash};
        oracle.durable(checkpoint);
        return failures;
    };
    const std::string wrong = "counts, and is not the state that contributors agreed on";
    EXPECT_THAT(saysOf(2, 21), HasSubstr(wrong));
    EXPECT_THAT(saysOf(2, 20), Not(HasSubstr(wrong)));
    EXPECT_THAT(saysOf(4, 41), Not(HasSubstr(wrong))) << "one alone is not several who agree";
    LogLineage lineage;
    lineage.lineage = 2;
    lineage.fromStep = 4;
    lineage.ledger.highWater = {0};
    oracle.appended(lineage);
    oracle.durable(lineage);
    EXPECT_THAT(saysOf(2, 21), HasSubstr(wrong)) << "of a lineage before";
}

/// A joiner tells the hashes of step 0 behind its report of step 1, which has none.
TEST(OracleTest, AJoinerIsProvenByAReportThatALaterOneOvertook) {
    Options options;
    options.shards = 1;
    const Process trains({1, 0}, 1, 0, options, 1);
    const auto quorumAfter = [&](uint64_t snapshotOfTheLate, uint64_t hash) {
        std::string failures;
        Oracle oracle(options, [&](const char*, const std::string& detail) { failures += detail; });
        begin(oracle);
        LogCommit commit;
        commit.record.lineage = commit.record.step = 1;
        oracle.durable(commit);
        Report report;
        report.replica = 2;
        report.incarnation = 1;
        report.lineage = 1;
        report.hasState = report.ready = report.following = true;
        report.step = 1;
        oracle.reported(report);
        report.step = 0;
        report.snapshotStep = snapshotOfTheLate;
        report.hashes = {hash};
        oracle.reported(report);
        Quorum quorum;
        quorum.lineage = 1;
        quorum.step = 2;
        for (const int32_t r : {1, 2}) {
            Member member;
            member.contribution = {r, 1, {}};
            quorum.contributors.push_back(member);
        }
        failures.clear();
        oracle.announced(quorum, Policies{},
                         [&](RankId id, uint32_t) { return id.replica == 1 ? &trains : nullptr; });
        return failures;
    };
    const std::string wrong = "whose state after step 1 is not that of its records";
    const uint64_t right = moved(initialState(0), 0);
    EXPECT_THAT(quorumAfter(0, right), Not(HasSubstr(wrong)));
    EXPECT_THAT(quorumAfter(0, right + 1), HasSubstr(wrong));
    EXPECT_THAT(quorumAfter(7, right), HasSubstr(wrong)) << "it has fetched another state since";
}

TEST(SimulationTest, EqualSeedsGiveEqualRuns) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
        const Verdict a = runTrial(seed, 20);
        const Verdict b = runTrial(seed, 20);
        EXPECT_EQ(a.digest, b.digest);
        EXPECT_EQ(a.counts.events, b.counts.events);
        EXPECT_NE(a.digest, runTrial(seed + 1, 20).digest);
    }
}

TEST(SimulationTest, AnUndisturbedJobNeedsNoRedoAndLosesNothing) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        const Verdict v = runTrial(seed, 0);
        EXPECT_FALSE(v.broken) << *v.broken;
        EXPECT_EQ(v.counts.redone, 0u);
        const auto setup = drawSetup(seed);
        EXPECT_EQ(v.counts.starts, setup.options.replicas + setup.options.spares);
        EXPECT_EQ(v.counts.messages.dropped, 0u);
    }
}

}  // namespace
}  // namespace bulkhead::simulation
