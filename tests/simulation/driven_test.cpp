// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iostream>

#include "backend/runtime/simulation/driven_job.h"
#include "backend/runtime/simulation/found_case.h"
#include "backend/runtime/simulation/story.h"

namespace bulkhead::simulation {
namespace {

constexpr MonoNs kSoon = 60 * kSecond;

Verdict runDriven(uint64_t seed, size_t faults) {
    const Setup setup = drawDrivenSetup(seed);
    return runTrial(seed, setup, drawSchedule(seed, setup, faults));
}

std::string storyOf(uint64_t seed, size_t faults) {
    const Setup setup = drawDrivenSetup(seed);
    const Schedule schedule = drawSchedule(seed, setup, faults);
    return tellStory(seed, setup, {schedule, runTrial(seed, setup, schedule), 0}, false);
}

/// A job of three replicas of two shards that has committed five steps.
std::unique_ptr<DrivenJob> runningJob(uint32_t nodes) {
    Setup setup = drawDrivenSetup(1);
    setup.options.replicas = 3;
    setup.options.shards = 2;
    setup.options.spares = 0;
    setup.options.policies = {};
    setup.options.policies.restartLimit = 0;
    setup.environment = {};
    setup.environment.nodes = nodes;
    auto job = std::make_unique<DrivenJob>(setup, 1);
    job->start();
    EXPECT_TRUE(job->runUntil([&] { return job->committed() >= 5; }, kSoon)) << job->standing();
    return job;
}

constexpr size_t kProcesses = 6;

bool wholeAgain(DrivenJob& job, MonoNs within = kSoon) {
    return job.runUntil([&] { return job.living() == kProcesses && job.whole(); }, within);
}

Fault faultOf(FaultKind kind, MonoNs duration) {
    Fault f;
    f.kind = kind;
    f.replica = 1;
    f.duration = duration;
    f.parameter = 3;
    return f;
}

bool commits(DrivenJob& job, uint64_t steps) {
    const uint64_t until = job.committed() + steps;
    return job.runUntil([&] { return job.committed() >= until; }, kSoon);
}

/// Other seeds each time; whoever finds one broken replays it by its number.
TEST(DrivenTest, SeedsNobodyHasSeenKeepEveryInvariantAndHeal) {
    constexpr size_t kFaults = 50;
    const uint64_t first = freshSeed();
    std::cout << "seeds " << first << ".." << first + 99
              << "; again: bulkhead-sim replay --drivers SEED --faults " << kFaults << "\n";
    for (uint64_t seed = first; seed < first + 100; ++seed)
        if (runDriven(seed, kFaults).broken) {
            ADD_FAILURE() << storyOf(seed, kFaults);
            return;
        }
}

/// Each found something of the job: the last holder of a step whose memory was damaged served that
/// state for ever to two joiners, one of whom always waited for it; a checkpoint of a step
/// that its disk had lost, for which the log was taken for another run's; ranks of one replica that
/// computed or moved different things together (the last five but two); experts that moved while
/// one replica was not heard; a damaged state that the next coordinator heard of first; or of the
/// judge: the one that a replica had been started anew, which a disk lost; a checkpoint with a
/// flipped bit that a disk lost from the log and that was found again; an orphan that was about to
/// leave; a flipped gradient of a step that had been exchanged before from other samples.
TEST(DrivenTest, SeedsThatBrokeTheJobOrItsJudgeStayWhole) {
    for (const uint64_t seed :
         {896512085ull, 896518722ull, 5468463527ull, 896512764ull, 896518315ull, 1795528064ull,
          1795530202ull, 1795615794ull, 1795615981ull, 1795616194ull, 1795616280ull, 1795616594ull,
          1795626838ull, 1795636975ull, 3591283834ull}) {
        const Verdict v = runDriven(seed, 100);
        EXPECT_FALSE(v.broken) << seed << ": " << *v.broken << "\n" << v.standing;
    }
}

TEST(FoundTest, WhatOnceBrokeSomethingStaysWhole) {
    size_t cases = 0;
    for (const auto& entry : std::filesystem::directory_iterator(BULKHEAD_FOUND_CASES)) {
        if (entry.path().extension() != ".json") continue;
        std::ifstream in(entry.path());
        const auto found = parseCase(std::string(std::istreambuf_iterator<char>(in), {}));
        ASSERT_TRUE(found.ok()) << entry.path() << ": " << found.status();
        const Verdict v = runTrial(*found);
        EXPECT_FALSE(v.broken) << entry.path() << ": " << *v.broken;
        ++cases;
    }
    EXPECT_GT(cases, 0u);
}

TEST(FoundTest, ACaseIsReadBackAsItWasWritten) {
    const FoundCase found{7, true, "I2: something", drawSchedule(7, drawSetup(7), 30)};
    const auto again = parseCase(toText(found));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(toText(*again), toText(found));
    EXPECT_EQ(runTrial(*again).digest, runTrial(found).digest);
    EXPECT_FALSE(parseCase("{").ok());
    EXPECT_FALSE(
        parseCase(R"({"seed":1,"drivers":false,"broken":"","faults":[{"kind":"x"}]})").ok());
}

TEST(DrivenTest, EqualSeedsGiveEqualRuns) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
        const Verdict a = runDriven(seed, 20);
        const Verdict b = runDriven(seed, 20);
        EXPECT_EQ(a.digest, b.digest);
        EXPECT_EQ(a.counts.events, b.counts.events);
        EXPECT_NE(a.digest, runDriven(seed + 1, 20).digest);
    }
}

TEST(DrivenTest, APauseCanBeTakenBackBeforeItBegins) {
    const auto job = runningJob(3);
    Operation o;
    o.kind = OperationKind::kPause;
    job->operate(o);
    o.kind = OperationKind::kResume;
    job->operate(o);
    EXPECT_TRUE(commits(*job, 5)) << job->standing();
}

TEST(DrivenTest, AProcessThatOutlivedItsReplacementIsStopped) {
    const auto job = runningJob(3);
    job->hangRank(1, 0);
    job->strike(faultOf(FaultKind::kKillAgent, 5 * kSecond));
    EXPECT_TRUE(job->runUntil([&] { return job->living() > kProcesses; }, kSoon));
    EXPECT_TRUE(wholeAgain(*job)) << job->living() << " processes\n" << job->standing();
}

TEST(DrivenTest, AProcessThatCouldNotBeKilledIsKilledWhenItsAgentIsBack) {
    const auto job = runningJob(1);
    job->hangRank(1, 0);
    job->strike(faultOf(FaultKind::kKillAgent, 900 * kMillisecond));
    job->runFor(kSecond);
    // Long before the start of its successor is given up, which would kill it too.
    EXPECT_TRUE(wholeAgain(*job, 10 * kSecond)) << job->living() << " processes\n"
                                                << job->standing();
}

TEST(DrivenTest, AStartNobodyAnsweredIsNotMadeElsewhereUnderTheSameIncarnation) {
    const auto job = runningJob(3);
    Fault cut = faultOf(FaultKind::kCutAgent, 500 * kMillisecond);
    cut.trigger = Trigger::kStart;
    job->strike(cut);
    job->killReplica(1);
    EXPECT_TRUE(wholeAgain(*job)) << job->living() << " processes\n" << job->standing();
    EXPECT_TRUE(job->failures().empty()) << job->failures().front();
}

TEST(DrivenTest, ADrainedReplicaThatHangsIsKilledWhenItDoesNotLeave) {
    const auto job = runningJob(3);
    job->killReplica(1);
    EXPECT_TRUE(job->runUntil([&] { return job->living() == kProcesses; }, kSoon));
    job->hangRank(1, 1);
    job->runFor(20 * kMillisecond);  // its agent has told that it runs
    Operation o;
    o.kind = OperationKind::kDrain;
    o.replica = 1;
    job->operate(o);
    EXPECT_TRUE(job->runUntil([&] { return job->living() == kProcesses - 2; }, 20 * kSecond))
        << job->living() << " processes\n"
        << job->standing();
}

TEST(DrivenTest, AFullDiskUnderTheCommitLogLosesNoStepAndTheJobGoesOnByItself) {
    const auto job = runningJob(3);
    const uint64_t before = job->committed();
    const size_t entries = job->log().size();
    job->strike(faultOf(FaultKind::kFullDisk, 5 * kSecond));
    job->runFor(2 * kSecond);
    EXPECT_FALSE(job->coordinatorUp());
    EXPECT_EQ(job->living(), kProcesses) << "they hold the state";
    EXPECT_TRUE(job->runUntil([&] { return job->committed() >= before + 5; }, kSoon))
        << job->standing();
    EXPECT_TRUE(job->failures().empty()) << job->failures().front();
    for (size_t i = entries; i < job->log().size(); ++i)
        EXPECT_FALSE(std::holds_alternative<LogLineage>(job->log()[i])) << "it went back";
}

TEST(DrivenTest, ASlowDiskSlowsTheCommits) {
    const auto job = runningJob(3);
    const auto committedIn = [&](MonoNs time) {
        const uint64_t before = job->committed();
        job->runFor(time);
        return job->committed() - before;
    };
    const uint64_t usual = committedIn(2 * kSecond);
    job->strike(faultOf(FaultKind::kSlowDisk, 2 * kSecond));
    EXPECT_LT(2 * committedIn(2 * kSecond), usual);
    EXPECT_TRUE(job->failures().empty()) << job->failures().front();
}

/// Its moment came in a sync that lasts longer than the faults do.
TEST(DrivenTest, NothingStrikesOnceAllIsHealed) {
    const auto job = runningJob(3);
    std::vector<std::string> faults;
    job->story = [&](MonoNs, const std::string& who, const std::string& what) {
        if (who == "FAULT") faults.push_back(what);
    };
    job->strike(faultOf(FaultKind::kSlowDisk, 5 * kSecond));
    Fault cut = faultOf(FaultKind::kCutAgent, kSecond);
    cut.trigger = Trigger::kCommitDurable;
    job->strike(cut);
    const size_t before = job->log().size();
    ASSERT_TRUE(job->runUntil([&] { return job->log().size() > before; }, kSoon));
    faults.clear();
    job->healAll();
    job->runFor(kSecond);
    EXPECT_EQ(faults, std::vector<std::string>{"no more; everything that lasts is ended"});
}

TEST(DrivenTest, AJobGoesOnFromWhatADiskThatLiedStillHas) {
    const auto job = runningJob(3);
    job->strike(faultOf(FaultKind::kLyingDisk, 300 * kMillisecond));
    job->runFor(kSecond);
    EXPECT_TRUE(wholeAgain(*job)) << job->living() << " processes\n" << job->standing();
    EXPECT_TRUE(commits(*job, 5)) << job->standing();
    EXPECT_TRUE(job->failures().empty()) << job->failures().front();
}

TEST(DrivenTest, AJobThatBeginsWhileANodeIsLostBeginsOnce) {
    const auto job = runningJob(3);
    Fault cut = faultOf(FaultKind::kCutAgent, 6 * kSecond);
    cut.parameter = 1;
    job->strike(cut);
    job->strike(faultOf(FaultKind::kFullDisk, 4 * kSecond));
    EXPECT_TRUE(job->runUntil([&] { return !job->coordinatorUp(); }, kSoon));
    EXPECT_TRUE(wholeAgain(*job)) << job->living() << " processes\n" << job->standing();
    EXPECT_TRUE(job->failures().empty()) << job->failures().front();
}

TEST(DrivenTest, ANodeThatWasFrozenTakesItsRanksUpAgain) {
    const auto job = runningJob(3);
    job->strike(faultOf(FaultKind::kFreezeNode, 4 * kSecond));
    job->runFor(kSecond);
    EXPECT_TRUE(wholeAgain(*job)) << job->living() << " processes\n" << job->standing();
}

TEST(DrivenTest, WhatAControllerCommittedSurvivesItsPower) {
    const auto job = runningJob(3);
    for (int i = 0; i < 20; ++i) {
        job->runFor(job->rng.between(1, 60));
        job->killCoordinator(true);
        job->runFor(job->rng.between(1, 300));
        job->startCoordinator();
        ASSERT_TRUE(commits(*job, 3)) << job->standing();
    }
    EXPECT_TRUE(job->failures().empty()) << job->failures().front();
}

}  // namespace
}  // namespace bulkhead::simulation
