// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/checkpoint_desk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "bulkhead/state_hash.h"

namespace bulkhead::runtime {
namespace {

namespace fs = std::filesystem;

/// The leader of replica 1, two shards; the other shard's file is made here.
class CheckpointDeskTest : public ::testing::Test {
  protected:
    CheckpointDeskTest()
        : folder_(fs::path(::testing::TempDir()) / ("desk_" + std::to_string(::getpid()))) {
        settings_.run = "4f1c";
        settings_.spec.checkpointDir = folder_.string();
        settings_.spec.shards = 2;
        settings_.spec.policies.checkpointsKept = 1;
        settings_.rank = {1, 0};
        settings_.incarnation = 3;
        fs::create_directories(folder_);
    }
    ~CheckpointDeskTest() override { fs::remove_all(folder_); }

    std::unique_ptr<CheckpointDesk> desk() {
        CheckpointDesk::Hooks hooks;
        hooks.shardWritten = [this](const protocol::RankCheckpoint& part) { own_ = part; };
        hooks.damaged = [this](const absl::Status& why) { damaged_ = why; };
        hooks.done = [this](const protocol::CheckpointDone& d) { done_.push_back(d); };
        return std::make_unique<CheckpointDesk>(settings_, diskFiles(), clock_, std::move(hooks));
    }
    static std::shared_ptr<StateSnapshot> snapshot(uint64_t step, uint64_t layout) {
        auto s = std::make_shared<StateSnapshot>();
        s->lineage = 1;
        s->step = s->last.step = step;
        s->layout = layout;
        s->bytes.assign(100, {});
        s->hash = bulkhead_state_hash(s->bytes.data(), s->bytes.size());
        return s;
    }
    /// Both shards report, the other one from `otherLayout`.
    void write(CheckpointDesk& desk, uint64_t step, uint64_t layout, uint64_t otherLayout) {
        desk.write(snapshot(step, layout), "");
        desk.drain();
        desk.shardReported(own_);
        protocol::RankCheckpoint other = own_;
        other.rank.shard = 1;
        other.layout = otherLayout;
        desk.shardReported(other);
        desk.drain();
    }

    const fs::path folder_;
    CheckpointSettings settings_;
    SystemClock clock_;
    protocol::RankCheckpoint own_;
    absl::Status damaged_;
    std::vector<protocol::CheckpointDone> done_;
};

TEST_F(CheckpointDeskTest, NothingIsRemovedUntilTheCoordinatorSaysSo) {
    const auto d = desk();
    for (const uint64_t step : {10, 20, 30}) write(*d, step, 0, 0);
    ASSERT_EQ(done_.size(), 3u);
    EXPECT_EQ(listCheckpoints(diskFiles(), folder_.string()).size(), 3u)
        << "checkpoints_kept is not a rank's";
    d->discard({done_[0].path, "/somewhere/else/manifest.json", done_[0].path});
    d->drain();
    EXPECT_FALSE(fs::exists(fs::path(done_[0].path).parent_path()));
    EXPECT_TRUE(fs::exists(done_[1].path));
    EXPECT_TRUE(fs::exists(done_[2].path));
}

TEST_F(CheckpointDeskTest, ShardsThatLieInTwoLayoutsAreNoCheckpoint) {
    const auto d = desk();
    write(*d, 10, 0, 1);
    EXPECT_TRUE(done_.empty());
    EXPECT_TRUE(listCheckpoints(diskFiles(), folder_.string()).empty());
    write(*d, 10, 1, 1);
    ASSERT_EQ(done_.size(), 1u);
    EXPECT_TRUE(done_[0].ok) << done_[0].error;
    EXPECT_EQ(done_[0].layout, 1u);
    EXPECT_EQ(readManifest(diskFiles(), done_[0].path)->layout, 1u);
    EXPECT_EQ(readManifest(diskFiles(), done_[0].path)->run, "4f1c");
}

TEST_F(CheckpointDeskTest, AShardThatCouldNotBeWrittenMakesItNoCheckpoint) {
    const auto d = desk();
    d->write(snapshot(10, 0), "");
    d->drain();
    d->shardReported(own_);
    protocol::RankCheckpoint other = own_;
    other.rank.shard = 1;
    other.ok = false;
    other.error = "no room";
    d->shardReported(other);
    d->drain();
    ASSERT_EQ(done_.size(), 1u);
    EXPECT_FALSE(done_[0].ok);
    EXPECT_EQ(done_[0].error, "no room");
    EXPECT_TRUE(listCheckpoints(diskFiles(), folder_.string()).empty());
}

/// The coordinator asks again when the answer was lost with a connection, and writes its log by it:
/// what it may have logged already must not be touched.
TEST_F(CheckpointDeskTest, OneThatIsWholeIsToldAgainAndNotWrittenAgain) {
    const auto d = desk();
    write(*d, 10, 0, 0);
    ASSERT_TRUE(done_.at(0).ok);
    const auto written = fs::last_write_time(done_[0].path);
    write(*d, 10, 0, 0);
    ASSERT_EQ(done_.size(), 2u);
    EXPECT_TRUE(done_[1].ok) << done_[1].error;
    EXPECT_EQ(done_[1].path, done_[0].path);
    EXPECT_EQ(fs::last_write_time(done_[0].path), written);
    d->discard({done_[0].path});
    write(*d, 10, 0, 0);
    ASSERT_EQ(done_.size(), 3u);
    EXPECT_TRUE(fs::exists(done_[2].path)) << "it was removed meanwhile";
}

TEST_F(CheckpointDeskTest, AStateThatChangedSinceItWasHashedIsNoCheckpoint) {
    const auto d = desk();
    const auto damaged = snapshot(10, 0);
    damaged->bytes[7] ^= std::byte{1};
    d->write(damaged, "");
    d->drain();
    EXPECT_FALSE(own_.ok);
    EXPECT_TRUE(absl::IsInternal(damaged_));
    EXPECT_THAT(own_.error, ::testing::HasSubstr("memory of this rank is damaged"));
}

TEST_F(CheckpointDeskTest, AManifestNamesNoFileThatIsNotThere) {
    const auto d = desk();
    d->write(snapshot(10, 0), "");
    d->drain();
    protocol::RankCheckpoint other = own_;
    other.rank.shard = 1;
    other.file = "shard-1.state";
    d->shardReported(other);
    d->shardReported(own_);
    d->drain();
    ASSERT_EQ(done_.size(), 1u);
    EXPECT_FALSE(done_[0].ok);
    EXPECT_THAT(done_[0].error, ::testing::HasSubstr("shard-1.state"));
    EXPECT_TRUE(listCheckpoints(diskFiles(), folder_.string()).empty());
}

TEST_F(CheckpointDeskTest, AShardThatReportsAgainAfterTheEndChangesNothing) {
    const auto d = desk();
    write(*d, 10, 0, 0);
    d->shardReported(own_);
    d->drain();
    EXPECT_EQ(done_.size(), 1u);
    EXPECT_EQ(listCheckpoints(diskFiles(), folder_.string()).size(), 1u);
}

TEST_F(CheckpointDeskTest, AShardThatTheReplicaDoesNotHaveCountsForNothing) {
    const auto d = desk();
    d->write(snapshot(10, 0), "");
    d->drain();
    for (const int32_t shard : {-1, 2}) {
        protocol::RankCheckpoint other = own_;
        other.rank.shard = shard;
        d->shardReported(other);
    }
    d->shardReported(own_);
    d->drain();
    EXPECT_TRUE(done_.empty()) << "shard 1 has not written its part";
}

TEST(CheckpointThread, runsJobsInOrderAndDrains) {
    CheckpointThread thread;
    std::vector<int> order;
    for (int i = 0; i < 100; ++i) thread.post([&order, i] { order.push_back(i); });
    thread.drain();
    ASSERT_EQ(order.size(), 100u);
    EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

}  // namespace
}  // namespace bulkhead::runtime
