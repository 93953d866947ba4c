// SPDX-License-Identifier: Apache-2.0
// Faults that last: what they do to a job that goes on, and that they end, by themselves or on
// request.
#include <poll.h>
#include <signal.h>
#include <sys/mount.h>

#include <algorithm>
#include <filesystem>

#include "backend/runtime/agent/process.h"
#include "tests/fault/training_job.h"
#include "tests/support/small_disk.h"

namespace bulkhead::fault {
namespace {

using model::FaultKind;
using testing::HasSubstr;
using testing::IsEmpty;

class LastingFaultsTest : public TrainingJob {
  protected:
    uint64_t injected(const model::FaultSpec& fault) {
        const auto id = host_->controller().inject(run_, fault, 0, "", "test");
        EXPECT_TRUE(id.ok()) << id.status();
        const auto begun = await<model::FaultInjected>();
        EXPECT_EQ(begun ? begun->fault : 0, id.value_or(0));
        return id.value_or(0);
    }
    static model::FaultSpec slow(int32_t replica, double factor, uint64_t durationMs) {
        model::FaultSpec fault;
        fault.kind = FaultKind::kSlow;
        fault.replica = replica;
        fault.factor = factor;
        fault.durationMs = durationMs;
        return fault;
    }
    /// Nobody is suspected of anything for the length of this test.
    model::JobSpec patient() {
        model::JobSpec s = spec(0);
        s.timeouts.heartbeatMs = 60000;
        s.timeouts.chunkFloorMs = 60000;
        s.timeouts.progressFloorMs = 60000;
        return s;
    }
    /// A step in which some other replica waited longest for frames of this one.
    void expectWaitedFor(int32_t replica) {
        await<model::StepCommitted>([replica](const model::StepCommitted& c) {
            return std::any_of(c.replicas.begin(), c.replicas.end(), [&](const auto& r) {
                return r.replica != replica && r.waitedOn == replica;
            });
        });
    }
    void expectEnded(uint64_t fault, const std::string& outcome) {
        at_ = 0;  // it may have ended before what was awaited last
        const auto ended = await<model::FaultEnded>(
            [fault](const model::FaultEnded& e) { return e.fault == fault; });
        ASSERT_TRUE(ended.has_value());
        EXPECT_EQ(ended->outcome, outcome);
    }
    void end(uint64_t fault) {
        const absl::Status ended = host_->controller().endFault(run_, fault);
        EXPECT_TRUE(ended.ok()) << ended;
    }
    /// The job goes on with all replicas, and nobody was lost on the way here.
    void expectUnharmed() {
        const uint64_t step = all<model::StepCommitted>().back().record.step;
        await<model::StepCommitted>([&](const model::StepCommitted& c) {
            return c.record.step > step && c.record.contributors.size() == 3;
        });
        stopAndAudit();
        EXPECT_THAT(all<model::IncidentOpened>(), IsEmpty());
    }
};

TEST_F(LastingFaultsTest, ASlowReplicaIsWaitedForAndNotLost) {
    host();
    start(spec(0));
    awaitStep(3);
    const uint64_t timed = injected(slow(1, 4, 300));
    expectWaitedFor(1);
    expectEnded(timed, "healed");
    const uint64_t lasting = injected(slow(2, 4, 0));
    expectWaitedFor(2);
    end(lasting);
    expectEnded(lasting, "ended on request");
    expectUnharmed();
}

TEST_F(LastingFaultsTest, ADelayedReplicaIsWaitedForAndNotLost) {
    host();
    start(spec(0));
    awaitStep(3);
    model::FaultSpec delay;
    delay.kind = FaultKind::kDelayNetwork;
    delay.replica = 1;
    delay.delayMs = 20;
    delay.durationMs = 500;
    const uint64_t timed = injected(delay);
    expectWaitedFor(1);
    expectEnded(timed, "healed");
    delay.durationMs = 0;
    const uint64_t lasting = injected(delay);
    expectWaitedFor(1);
    end(lasting);
    expectEnded(lasting, "ended on request");
    expectUnharmed();
}

TEST_F(LastingFaultsTest, ACutThatIsShorterThanAnyBoundCostsOnlyItsTime) {
    host();
    start(patient());
    awaitStep(3);
    model::FaultSpec cut;
    cut.kind = FaultKind::kCutNetwork;
    cut.replica = 1;
    cut.durationMs = 300;
    expectEnded(injected(cut), "healed");
    cut.durationMs = 0;
    const uint64_t lasting = injected(cut);
    end(lasting);
    expectEnded(lasting, "ended on request");
    expectUnharmed();
}

TEST_F(LastingFaultsTest, AHangThatIsShorterThanAnyBoundCostsOnlyItsTime) {
    host();
    start(patient());
    awaitStep(3);
    model::FaultSpec hang;
    hang.kind = FaultKind::kHang;
    hang.replica = 1;
    hang.durationMs = 300;
    expectEnded(injected(hang), "healed");
    hang.atPhase = "compute";  // the rank stops itself; its agent wakes it
    expectEnded(injected(hang), "healed");
    hang.atPhase.clear();
    hang.durationMs = 0;
    const uint64_t lasting = injected(hang);
    end(lasting);
    expectEnded(lasting, "ended on request");
    expectUnharmed();
}

/// Expelled while its agent was away, so that nobody could kill it: awake again, it goes by itself.
TEST_F(LastingFaultsTest, WhoWakesAfterItWasExpelledFindsItselfFenced) {
    host(2);
    start(spec(0, 3));
    awaitStep(3);
    const auto ranks = all<model::RankStarted>();
    const auto victim = std::find_if(ranks.begin(), ranks.end(), [](const model::RankStarted& r) {
        return r.rank.replica == 1;
    });
    ASSERT_NE(victim, ranks.end());
    ASSERT_EQ(victim->node, "node1");
    host_->killAgent(1);
    ASSERT_EQ(::kill(victim->pid, SIGSTOP), 0);
    const auto opened = await<model::IncidentOpened>();
    EXPECT_EQ(opened->replica, 1);
    expectRejoined(1);
    ASSERT_EQ(::kill(victim->pid, SIGCONT), 0);
    const auto handle = runtime::openProcess(victim->pid);
    if (handle.ok()) {
        pollfd waits{handle->get(), POLLIN, 0};
        EXPECT_EQ(::poll(&waits, 1, static_cast<int>(patience_ / kMillisecond)), 1)
            << "it goes on as if nothing had happened";
    }
    stopAndAudit();
}

TEST_F(LastingFaultsTest, AFullCheckpointDiskIsSaidAndTrainingGoesOn) {
    char name[] = "/tmp/bulkhead-disk-XXXXXX";
    const std::string disk = ::mkdtemp(name);
    const absl::Status mounted = support::mountSmallDisk(disk);
    ASSERT_TRUE(mounted.ok()) << mounted;
    host();
    model::JobSpec s = spec(0);
    s.checkpointDir = disk + "/checkpoints";
    s.policies.checkpointEverySteps = 4;
    start(s);
    await<model::CheckpointWritten>();
    model::FaultSpec fill;
    fill.kind = FaultKind::kFillDisk;
    fill.node = "node0";
    const uint64_t fault = injected(fill);
    const auto failed =
        await<model::CheckpointWritten>([](const model::CheckpointWritten& c) { return !c.ok; });
    ASSERT_TRUE(failed.has_value());
    EXPECT_THAT(failed->error, HasSubstr("No space left"));
    EXPECT_THAT(failed->error, HasSubstr("fault " + std::to_string(fault)));
    awaitStep(failed->step + 2);
    end(fault);
    expectEnded(fault, "ended on request");
    await<model::CheckpointWritten>([](const model::CheckpointWritten& c) { return c.ok; });
    expectUnharmed();
    host_.reset();
    ::umount(disk.c_str());
    std::filesystem::remove(disk);
}

/// An undetectable fault is reported nowhere: the sum is wrong and the same for all replicas.
TEST_F(LastingFaultsTest, AFlippedGradientBitKeepsParityEqual) {
    host();
    start(spec(0));
    awaitStep(3);
    model::FaultSpec flip;
    flip.kind = FaultKind::kFlipGradient;
    flip.replica = 1;
    expectEnded(injected(flip), "done");
    awaitStep(all<model::StepCommitted>().back().record.step + 4);
    EXPECT_THAT(all<model::EvidenceSeen>(), IsEmpty());
    EXPECT_THAT(all<model::StepsSuspect>(), IsEmpty());
    expectUnharmed();
}

}  // namespace
}  // namespace bulkhead::fault
