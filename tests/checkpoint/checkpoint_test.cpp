// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include <filesystem>
#include <fstream>

#include "bulkhead/state_hash.h"

namespace bulkhead::runtime {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::shared_ptr<StateSnapshot> makeSnapshot(uint64_t step, size_t bytes = 5000) {
    auto s = std::make_shared<StateSnapshot>();
    s->lineage = 2;
    s->step = step;
    s->layout = 3;
    s->expertShard = {1, 0};
    s->last.step = step;
    s->last.contributors = {{1, 4, {{0, 8, 16}}}};
    s->bytes.assign(bytes, static_cast<std::byte>(step));
    s->hash = bulkhead_state_hash(s->bytes.data(), s->bytes.size());
    return s;
}

class CheckpointTest : public ::testing::Test {
  protected:
    void SetUp() override {
        folder_ =
            (fs::path(::testing::TempDir()) / ("ckpt_" + std::to_string(::getpid()))).string();
        fs::create_directories(folder_);
    }
    void TearDown() override { fs::remove_all(folder_); }

    /// Two shards and their manifest; returns its path.
    std::string write(uint64_t step) {
        const std::string folder = folder_ + "/" + checkpointFolder(2, step, 3, 1, 1);
        CheckpointManifest m;
        m.job = "demo";
        m.run = "4f1c";
        m.step = step;
        m.lineage = 2;
        m.term = 9;
        m.layout = 3;
        m.expertShard = {1, 0};
        m.replica = 1;
        m.shards = 2;
        m.seed = 11;
        m.corpusHash = 0xfedcba9876543210ull;
        m.dataPosition = "{\"high\": [128]}";
        m.jobJson = "{}";
        m.last = makeSnapshot(step)->last;
        m.records = {m.last, m.last};
        for (int32_t shard : {0, 1}) {
            auto file = writeShardFile(diskFiles(), folder, shard, *makeSnapshot(step));
            EXPECT_TRUE(file.ok()) << file.status();
            m.files.push_back(*file);
        }
        auto path = writeManifest(diskFiles(), folder, m);
        EXPECT_TRUE(path.ok()) << path.status();
        return *path;
    }
    std::string folder_;
};

size_t filesIn(const std::string& folder) {
    size_t n = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) n += entry.is_regular_file();
    return n;
}

TEST_F(CheckpointTest, AnotherOneUnderItsNameIsNotWhatTheLogMeans) {
    const auto manifest = readManifest(diskFiles(), write(20));
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    const std::vector<uint64_t> hashes = {manifest->files[0].hash, manifest->files[1].hash};
    EXPECT_TRUE(checkIsMeant("/c", *manifest, 20, hashes).ok());
    EXPECT_TRUE(checkIsMeant("/c", *manifest, 0, {}).ok()) << "an older log does not say";
    EXPECT_THAT(std::string(checkIsMeant("/c", *manifest, 40, hashes).message()),
                HasSubstr("/c holds step 20 where the job's log has one of step 40"));
    EXPECT_THAT(std::string(checkIsMeant("/c", *manifest, 20, {hashes[0], 7}).message()),
                HasSubstr("another state of step 20"));
}

TEST_F(CheckpointTest, comesBackAsItWas) {
    const std::string path = write(50);
    auto manifest = readManifest(diskFiles(), path);
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    EXPECT_EQ(manifest->step, 50u);
    EXPECT_EQ(manifest->corpusHash, 0xfedcba9876543210ull);
    EXPECT_EQ(manifest->dataPosition, "{\"high\": [128]}");
    EXPECT_EQ(manifest->last, makeSnapshot(50)->last);
    EXPECT_EQ(manifest->records, (std::vector{manifest->last, manifest->last}));
    auto state = readShardFile(diskFiles(), path, *manifest, 1);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ((*state)->bytes, makeSnapshot(50)->bytes);
    EXPECT_EQ((*state)->expertShard, (std::vector<int32_t>{1, 0}));
    EXPECT_THAT(std::string(readShardFile(diskFiles(), path, *manifest, 2).status().message()),
                HasSubstr("2 shards"));
}

TEST_F(CheckpointTest, whatAReplicaKeepsForItselfLiesBehindTheStateAndIsCheckedByItself) {
    auto snapshot = makeSnapshot(50);
    snapshot->local.assign(300, std::byte{9});
    const std::string folder = folder_ + "/" + checkpointFolder(2, 50, 3, 1, 1);
    CheckpointManifest m;
    m.step = 50;
    m.lineage = 2;
    m.layout = 3;
    m.shards = 1;
    m.files.push_back(*writeShardFile(diskFiles(), folder, 0, *snapshot));
    const std::string manifest = folder + "/manifest.json", shard = folder + "/shard-0.state";
    auto state = readShardFile(diskFiles(), manifest, m, 0);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ((*state)->bytes, snapshot->bytes);
    EXPECT_EQ((*state)->local, snapshot->local);
    const std::string whole = *diskFiles().read(shard);
    const auto refused = [&](const std::string& bytes, uint64_t listed, const char* why) {
        std::ofstream(shard, std::ios::binary) << bytes;
        m.files[0].bytes = listed;
        EXPECT_THAT(std::string(readShardFile(diskFiles(), manifest, m, 0).status().message()),
                    HasSubstr(why));
    };
    std::string changed = whole;
    changed.back() ^= 1;
    refused(changed, whole.size(), "its local state has another hash");
    refused(whole, whole.size() + 1, "ends otherwise than its manifest says");
    refused(whole, whole.size() - 308, "ends otherwise than its manifest says");
    refused(whole.substr(0, whole.size() - 1), whole.size(), "ends too early");
}

TEST_F(CheckpointTest, anotherTextThanItWasTrainedOnIsNamedByBothHashes) {
    const std::string path = write(50);
    const auto manifest = readManifest(diskFiles(), path);
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    EXPECT_TRUE(checkSameText(path, *manifest, 0xfedcba9876543210ull, "a.txt").ok());
    const absl::Status other = checkSameText(path, *manifest, 0x12, "a.txt");
    EXPECT_TRUE(absl::IsFailedPrecondition(other));
    for (const char* said : {path.c_str(), "fedcba9876543210", "0000000000000012", "a.txt"})
        EXPECT_THAT(std::string(other.message()), HasSubstr(said));
}

TEST_F(CheckpointTest, oneWhoseHashesAreOfTheStateAsOneRunIsStillRead) {
    const auto snapshot = makeSnapshot(50, 40000);
    const uint64_t now = snapshot->hash;
    const uint64_t then = XXH3_64bits(snapshot->bytes.data(), snapshot->bytes.size());
    ASSERT_NE(then, now);
    const std::string folder = folder_ + "/" + checkpointFolder(2, 50, 3, 1, 1);
    CheckpointManifest m;
    m.version = 1;
    m.step = 50;
    m.lineage = snapshot->lineage;
    m.layout = snapshot->layout;
    m.shards = 1;
    m.files.push_back(*writeShardFile(diskFiles(), folder, 0, *snapshot));
    m.files[0].hash = then;
    const std::string shard = folder + "/" + m.files[0].name;
    std::string bytes = *diskFiles().read(shard);
    const auto as = [](const uint64_t& hash) {
        return std::string(reinterpret_cast<const char*>(&hash), sizeof(hash));
    };
    const size_t at = bytes.find(as(now));
    ASSERT_NE(at, std::string::npos);
    std::ofstream(shard, std::ios::binary) << bytes.replace(at, sizeof(now), as(then));
    const std::string path = *writeManifest(diskFiles(), folder, m);
    const auto manifest = readManifest(diskFiles(), path);
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    const auto state = readShardFile(diskFiles(), path, *manifest, 0);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ((*state)->bytes, snapshot->bytes);
    EXPECT_EQ((*state)->hash, now) << "what the workload will say of it";
    m.version = kManifestVersion;
    EXPECT_TRUE(absl::IsDataLoss(readShardFile(diskFiles(), path, m, 0).status()));
    m.version = kManifestVersion + 1;
    const auto newer = readManifest(diskFiles(), *writeManifest(diskFiles(), folder, m));
    EXPECT_THAT(std::string(newer.status().message()), HasSubstr("its version is 3, this program"));
}

TEST_F(CheckpointTest, aManifestOfFourGigabytesIsRefusedWithoutBeingRead) {
    const std::string path = write(20);
    ASSERT_EQ(storedCheckpoints(diskFiles(), folder_).size(), 1u);
    fs::resize_file(path, uint64_t{4} << 30);
    const auto manifest = readManifest(diskFiles(), path);
    ASSERT_FALSE(manifest.ok());
    EXPECT_THAT(std::string(manifest.status().message()), HasSubstr("a manifest has at most"));
    EXPECT_TRUE(storedCheckpoints(diskFiles(), folder_).empty());
}

TEST_F(CheckpointTest, aFolderWithoutManifestIsNoCheckpoint) {
    write(50);
    const std::string half = folder_ + "/" + checkpointFolder(2, 60, 3, 1, 1);
    ASSERT_TRUE(writeShardFile(diskFiles(), half, 0, *makeSnapshot(60)).ok());
    ASSERT_EQ(listCheckpoints(diskFiles(), folder_).size(), 1u);
    EXPECT_THAT(listCheckpoints(diskFiles(), folder_)[0], HasSubstr("step000000050"));
}

TEST_F(CheckpointTest, onlyWhatLiesInTheJobsOwnFolderIsRemoved) {
    const std::string own = write(50);
    const std::string kept = write(60);
    const std::string other = folder_ + "-other";
    discardOwnCheckpoint(diskFiles(), other, own);
    EXPECT_TRUE(fs::exists(own)) << "of another job";
    discardOwnCheckpoint(diskFiles(), folder_, folder_ + "/manifest.json");
    EXPECT_TRUE(fs::exists(kept)) << "the checkpoint folder itself is no checkpoint";
    discardOwnCheckpoint(diskFiles(), folder_, own);
    EXPECT_FALSE(fs::exists(fs::path(own).parent_path()));
    EXPECT_TRUE(fs::exists(kept));
}

TEST_F(CheckpointTest, theSameStepInAnotherLayoutOverwritesNothing) {
    EXPECT_NE(checkpointFolder(2, 50, 3, 1, 1), checkpointFolder(2, 50, 4, 1, 1));
    EXPECT_NE(checkpointFolder(2, 50, 3, 1, 1), checkpointFolder(2, 50, 3, 1, 2));
    EXPECT_LT(checkpointFolder(2, 9, 4, 1, 1), checkpointFolder(2, 10, 3, 1, 1));
}

TEST_F(CheckpointTest, storedOnesAreThoseWithAManifestAndAllTheirFiles) {
    const std::string whole = write(50);
    const std::string lacking = write(60);
    fs::remove(fs::path(lacking).parent_path() / "shard-1.state");
    const std::string garbled = write(70);
    std::ofstream(garbled, std::ios::trunc) << "{";
    const std::string half = folder_ + "/" + checkpointFolder(2, 80, 3, 1, 1);
    ASSERT_TRUE(writeShardFile(diskFiles(), half, 0, *makeSnapshot(80)).ok());
    const auto stored = storedCheckpoints(diskFiles(), folder_);
    ASSERT_EQ(stored.size(), 1u);
    EXPECT_EQ(stored[0].path, whole);
    EXPECT_EQ(stored[0].last.step, 50u);
    EXPECT_EQ(stored[0].layout, 3u);
    EXPECT_EQ(stored[0].hashes.size(), 2u);
    EXPECT_TRUE(storedCheckpoints(diskFiles(), folder_ + "/nosuch").empty());
}

TEST_F(CheckpointTest, whatWasNeverFinishedIsRemovedByALaterOneOfTheSameReplica) {
    const auto part = [&](uint64_t step, int32_t replica) {
        const std::string folder = folder_ + "/" + checkpointFolder(2, step, 3, replica, 1);
        EXPECT_TRUE(writeShardFile(diskFiles(), folder, 0, *makeSnapshot(step)).ok());
        return folder;
    };
    const std::string old = part(40, 1);
    const std::string another = part(40, 2);
    const std::string younger = part(60, 1);
    const std::string whole = write(30);
    discardUnfinished(diskFiles(), fs::path(write(50)).parent_path().string());
    EXPECT_FALSE(fs::exists(old));
    EXPECT_TRUE(fs::exists(another));
    EXPECT_TRUE(fs::exists(younger));
    EXPECT_TRUE(fs::exists(whole));
}

TEST_F(CheckpointTest, aFlippedBitIsFoundWhereverItIs) {
    const std::string path = write(50);
    const auto manifest = readManifest(diskFiles(), path);
    const std::string shard = fs::path(path).parent_path() / "shard-1.state";
    const std::string whole = *diskFiles().read(shard);
    // The header, the begin of the state behind it, and the end.
    for (size_t at = 0; at < whole.size(); at += at < 100 ? 1 : whole.size() / 8) {
        std::string damaged = whole;
        damaged[at] = static_cast<char>(damaged[at] ^ 4);
        std::ofstream(shard, std::ios::binary) << damaged;
        EXPECT_TRUE(absl::IsDataLoss(readShardFile(diskFiles(), path, *manifest, 1).status()))
            << "byte " << at;
    }
}

TEST_F(CheckpointTest, damageIsFoundAndNamed) {
    const std::string path = write(50);
    auto manifest = readManifest(diskFiles(), path);
    const std::string shard = fs::path(path).parent_path() / "shard-1.state";
    {
        std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(-1, std::ios::end);
        file.put('!');
    }
    auto state = readShardFile(diskFiles(), path, *manifest, 1);
    EXPECT_TRUE(absl::IsDataLoss(state.status()));
    EXPECT_THAT(std::string(state.status().message()),
                HasSubstr("shard-1.state is damaged: the hash of its state is "));
    const auto read = [&](int32_t shard, const CheckpointManifest& m) {
        return std::string(readShardFile(diskFiles(), path, m, shard).status().message());
    };
    CheckpointManifest edited = *manifest;
    edited.step = 51;
    EXPECT_THAT(read(0, edited), HasSubstr(path + " names: step 50, expected 51"));
    const std::string other = fs::path(write(60)).parent_path();
    fs::copy_file(other + "/shard-0.state", fs::path(path).parent_path() / "shard-0.state",
                  fs::copy_options::overwrite_existing);
    EXPECT_THAT(read(0, *manifest), HasSubstr("names: step 60, expected 50, state_hash "));
    fs::copy_file(shard, fs::path(path).parent_path() / "shard-0.state",
                  fs::copy_options::overwrite_existing);
    EXPECT_THAT(read(0, *manifest), HasSubstr("names: shard 1, expected 0"));
    fs::remove(fs::path(path).parent_path() / "shard-0.state");
    EXPECT_THAT(read(0, *manifest), HasSubstr("shard-0.state is missing"));
    fs::resize_file(shard, 100);
    EXPECT_TRUE(absl::IsDataLoss(readShardFile(diskFiles(), path, *manifest, 1).status()));
    std::ofstream(path, std::ios::trunc) << "{\"version\": 1}";
    EXPECT_THAT(std::string(readManifest(diskFiles(), path).status().message()),
                HasSubstr("no checkpoint manifest"));
    EXPECT_TRUE(absl::IsNotFound(readManifest(diskFiles(), folder_ + "/nosuch").status()));
}

TEST_F(CheckpointTest, aFullDiskLeavesNothingBehindAndSaysSo) {
    const std::string folder = folder_ + "/" + checkpointFolder(2, 50, 3, 1, 1);
    const pid_t child = ::fork();
    if (child == 0) {
        ::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit{1 << 20, 1 << 20};
        ::setrlimit(RLIMIT_FSIZE, &limit);
        const auto file = writeShardFile(diskFiles(), folder, 0, *makeSnapshot(50, 8 << 20));
        const bool said = absl::IsResourceExhausted(file.status()) &&
                          std::string(file.status().message()).find("shard-0") != std::string::npos;
        ::_exit(said && filesIn(folder) == 0 ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST_F(CheckpointTest, aWriterKilledAtAnyMomentLeavesOnlyWholeCheckpoints) {
    for (int round = 0; round < 20; ++round) {
        int begun[2];
        ASSERT_EQ(::pipe(begun), 0);
        const pid_t child = ::fork();
        if (child == 0) {
            for (uint64_t step = 1;; ++step) {
                if (step == 2 && ::write(begun[1], "x", 1) < 0) ::_exit(1);
                write(step);
            }
        }
        char byte = 0;
        ASSERT_EQ(::read(begun[0], &byte, 1), 1);
        ::usleep(static_cast<useconds_t>(round * 137));
        ::kill(child, SIGKILL);
        ::waitpid(child, nullptr, 0);
        ::close(begun[0]);
        ::close(begun[1]);
        const auto all = listCheckpoints(diskFiles(), folder_);
        EXPECT_FALSE(all.empty());
        for (const std::string& path : all) {
            auto manifest = readManifest(diskFiles(), path);
            ASSERT_TRUE(manifest.ok()) << manifest.status();
            for (int32_t shard : {0, 1})
                EXPECT_TRUE(readShardFile(diskFiles(), path, *manifest, shard).ok()) << path;
        }
        fs::remove_all(folder_);
        fs::create_directories(folder_);
    }
}

}  // namespace
}  // namespace bulkhead::runtime
