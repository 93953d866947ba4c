// SPDX-License-Identifier: Apache-2.0
// Attacks by authorised callers, and by servers that a daemon's programs connect to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "backend/service/request_log.h"
#include "bulkhead/v1/service.pb.h"
#include "tests/attack/victim.h"

namespace bulkhead::attack {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(CallerAttack, LargeRequestsThatAreRefusedOrDoneLeaveNoneOfTheirBytes) {
    constexpr size_t kBytes = 4 << 20;
    service::RequestLog log;
    v1::StartJobRequest request;
    request.mutable_text()->set_text(std::string(kBytes, 'x'));
    v1::JobInfo response;
    const size_t before = ::mallinfo2().uordblks + ::mallinfo2().hblkhd;
    for (int i = 0; i < 20; ++i) {
        const bool refused = i % 2 == 0;
        (void)log.once("id" + std::to_string(i), request, response, [&] {
            return refused ? absl::InvalidArgumentError("no job") : absl::OkStatus();
        });
    }
    const size_t after = ::mallinfo2().uordblks + ::mallinfo2().hblkhd;
    EXPECT_LT(after, before + kBytes);
}

class DaemonAttack : public ::testing::Test {
  protected:
    DaemonAttack() : dir_(::testing::TempDir() + "bulkhead-attack-XXXXXX") {
        ::mkdtemp(dir_.data());
        victim_ = std::make_unique<Victim>(BULKHEAD_BIN, dir_);
    }
    ~DaemonAttack() override {
        victim_.reset();
        if (!HasFailure()) std::filesystem::remove_all(dir_);
    }
    void SetUp() override {
        static const absl::Status alone = ownLoopback();
        ASSERT_TRUE(alone.ok()) << alone;
    }
    std::string dir_;
    std::unique_ptr<Victim> victim_;
};

TEST_F(DaemonAttack, JobsThatNoMachineHoldsAreRefusedAndNothingOfThemIsKept) {
    const absl::Status started = victim_->start();
    ASSERT_TRUE(started.ok()) << started;
    for (const auto& [absurd, said] : {std::pair{"shards=16384", "expected 1 to 64"},
                                       {"replicas=4096", "at most 64"},
                                       {"spares=4294967295", "at most 64"},
                                       {"connections=4294967295", "expected 1 to 16"},
                                       {"sequence_length=4294967295", "sequence_length"},
                                       {"samples_per_replica=4294967295", "samples_per_replica"},
                                       {"bucket_bytes=9223372036854775807", "expected 4096 to"}}) {
        const absl::Status refused = victim_->begin(2, {absurd});
        EXPECT_THAT(std::string(refused.message()), HasSubstr(said)) << absurd;
    }
    EXPECT_TRUE(std::filesystem::is_empty(dir_ + "/controller/jobs"));
    const absl::Status trains = victim_->train(1);
    EXPECT_TRUE(trains.ok()) << trains;
}

TEST_F(DaemonAttack, TheMemoryOfLargeRequestsThatAreRefusedIsGivenBack) {
    constexpr double kMiB = 1 << 20;
    const absl::Status started = victim_->start();
    ASSERT_TRUE(started.ok()) << started;
    const auto resident = [this] {
        std::ifstream file("/proc/" + std::to_string(victim_->controller()) + "/statm");
        double pages = 0;
        file >> pages >> pages;
        return pages * static_cast<double>(::sysconf(_SC_PAGESIZE)) / kMiB;
    };
    client::JobText job;
    job.fileName = "large.toml";
    job.text = "nonsense = 1\n#" + std::string(1900 << 10, 'x');
    const double before = resident();
    for (int i = 0; i < 30; ++i)
        EXPECT_FALSE(ask<model::JobInfo>([&](auto answer) {
                         victim_->console().startJob(job, {}, answer);
                     }).ok());
    EXPECT_LT(resident(), before + 12) << "MiB; 60 such requests took 45 once";
}

TEST_F(DaemonAttack, JobsThatEndedHoldNoDescriptors) {
    const absl::Status started = victim_->start();
    ASSERT_TRUE(started.ok()) << started;
    const auto descriptors = [this] {
        return std::distance(std::filesystem::directory_iterator(
                                 "/proc/" + std::to_string(victim_->controller()) + "/fd"),
                             std::filesystem::directory_iterator());
    };
    const auto endOne = [this] {
        const absl::Status begun = victim_->begin(1);
        ASSERT_TRUE(begun.ok()) << begun;
        ASSERT_TRUE(ask<model::JobInfo>([&](auto answer) {
                        victim_->console().stopJob(victim_->jobId(), false, {}, answer);
                    }).ok());
        const absl::Status ended = victim_->await("the end of the job", [this] {
            const auto job = victim_->job();
            return job.ok() && job.value().phase == model::JobPhase::kFinished;
        });
        ASSERT_TRUE(ended.ok()) << ended;
    };
    endOne();
    const auto before = descriptors();
    constexpr int kJobs = 24;
    for (int i = 0; i < kJobs; ++i) endOne();
    // The last ones may not be in the history yet: their jobs end faster than a disk syncs.
    EXPECT_LT(descriptors(), before + 4 * kJobs) << "each held eight once";
}

TEST_F(DaemonAttack, AnAgentTellsNothingToAControllerThatHasNotItsKeyAndRunsNothingForIt) {
    auto tap = Tap::begin();
    ASSERT_TRUE(tap.ok()) << tap.status();
    victim_->agentOf("the-secret-of-another-controller");
    const absl::Status started = victim_->start();
    ASSERT_TRUE(started.ok()) << started;
    ASSERT_TRUE(victim_->begin(1).ok());
    // It calls, is sent away, and calls again.
    std::vector<Stream> heard;
    const absl::Status called = victim_->await("three calls of the agent", [&] {
        heard = (*tap)->streams();
        return std::count_if(heard.begin(), heard.end(), [](const Stream& stream) {
                   return stream.called && stream.to == Victim::kControlPort;
               }) >= 3;
    });
    ASSERT_TRUE(called.ok()) << called;
    const Pieces pieces = victim_->pieces();
    for (const Stream& stream : heard)
        if (stream.to == Victim::kControlPort || stream.from == Victim::kControlPort) {
            EXPECT_THAT(pieces.in(stream.bytes), IsEmpty());
        }
    std::ifstream children("/proc/" + std::to_string(victim_->agent()) + "/task/" +
                           std::to_string(victim_->agent()) + "/children");
    pid_t child = 0;
    EXPECT_FALSE(children >> child) << "it runs process " << child;
    EXPECT_EQ(victim_->job().value().contributors, 0u);
}

}  // namespace
}  // namespace bulkhead::attack
