// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "backend/runtime/agent/agent.h"
#include "backend/runtime/agent/agent_messages.h"
#include "backend/runtime/agent/disk_ballast.h"
#include "backend/runtime/agent/output_reader.h"
#include "backend/runtime/agent/proc_sampler.h"
#include "backend/runtime/agent/rank_registry.h"
#include "tests/support/small_disk.h"

namespace bulkhead::runtime {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class TempDir {
  public:
    TempDir() {
        char name[] = "/tmp/bulkhead-agent-XXXXXX";
        path_ = ::mkdtemp(name);
    }
    ~TempDir() { std::filesystem::remove_all(path_); }
    const std::string& path() const { return path_; }

  private:
    std::string path_;
};

TEST(RankRegistry, RemembersRanksAcrossItsOwnLives) {
    TempDir dir;
    const RankProcess process{"run-1", {2, 1}, 3};
    {
        auto registry = RankRegistry::open(diskFiles(), dir.path() + "/node");
        ASSERT_TRUE(registry.ok()) << registry.status();
        ASSERT_TRUE(registry->add({process, 4711, 99}).ok());
        ASSERT_TRUE(registry->add({{"run-1", {0, 0}, 1}, 12, 7}).ok());
        registry->remove({"run-1", {0, 0}, 1});
    }
    auto registry = RankRegistry::open(diskFiles(), dir.path() + "/node");
    ASSERT_TRUE(registry.ok());
    const auto ranks = registry->load();
    ASSERT_EQ(ranks.size(), 1u);
    EXPECT_EQ(ranks[0].process, process);
    EXPECT_EQ(ranks[0].pid, 4711);
    EXPECT_EQ(ranks[0].startTime, 99u);
}

TEST(RankRegistry, ASecondAgentIsKeptOutAndToldWhy) {
    TempDir dir;
    auto first = RankRegistry::open(diskFiles(), dir.path());
    ASSERT_TRUE(first.ok());
    const auto second = RankRegistry::open(diskFiles(), dir.path());
    EXPECT_TRUE(absl::IsFailedPrecondition(second.status()));
    EXPECT_THAT(std::string(second.status().message()), HasSubstr(dir.path()));
}

TEST(RankRegistry, ATornFileIsDroppedNotFatal) {
    TempDir dir;
    auto registry = RankRegistry::open(diskFiles(), dir.path());
    std::ofstream(dir.path() + "/x.rank") << "torn";
    EXPECT_TRUE(registry->load().empty());
    EXPECT_FALSE(std::filesystem::exists(dir.path() + "/x.rank"));
}

struct Lines {
    std::vector<std::string> lines;
    std::vector<uint64_t> dropped;
    OutputReader::OnLine take() {
        return [this](std::string line, uint64_t lost) {
            lines.push_back(std::move(line));
            dropped.push_back(lost);
        };
    }
};

void print(const OutputReader& reader, const std::string& text) {
    ASSERT_EQ(::write(reader.fd(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

class OutputReaderTest : public testing::Test {
  protected:
    void open(uint32_t rate) {
        const std::string path = dir_.path() + "/pipe";
        ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
        auto reader = OutputReader::open(path, rate, lines_.take());
        ASSERT_TRUE(reader.ok()) << reader.status();
        reader_.emplace(*std::move(reader));
    }
    TempDir dir_;
    Lines lines_;
    std::optional<OutputReader> reader_;
};

TEST(LastWords, WhatTheLibrarySaysAsItGoesIsNoCause) {
    EXPECT_TRUE(isInformation("23:25:43.080 info model stands at step 0 (from the seed), 1 ms"));
    for (const char* words : {"23:25:43.080 critical no such text", "23:25:43.080 warning slow",
                              "Segmentation fault", "info", ""})
        EXPECT_FALSE(isInformation(words)) << words;
}

TEST_F(OutputReaderTest, LinesComeWholeHoweverTheyWereWritten) {
    open(100);
    print(*reader_, "one\ntw");
    reader_->drain(0);
    print(*reader_, "o\nthree");
    reader_->drain(0);
    EXPECT_THAT(lines_.lines, ElementsAre("one", "two"));
    reader_->finish(0);
    EXPECT_THAT(lines_.lines, ElementsAre("one", "two", "three"));
}

TEST_F(OutputReaderTest, OverlongLinesAreCut) {
    open(100);
    print(*reader_, std::string(kMaxOutputLine + 500, 'x') + "\nnext\n");
    reader_->drain(0);
    ASSERT_EQ(lines_.lines.size(), 2u);
    EXPECT_EQ(lines_.lines[0].size(), kMaxOutputLine);
    EXPECT_EQ(lines_.lines[1], "next");
}

TEST_F(OutputReaderTest, AFloodIsCountedAndTheCountIsTold) {
    open(2);
    print(*reader_, "a\nb\nc\nd\n");
    reader_->drain(kSecond);
    EXPECT_THAT(lines_.lines, ElementsAre("a", "b"));
    print(*reader_, "e\n");
    reader_->drain(2 * kSecond);
    EXPECT_THAT(lines_.lines, ElementsAre("a", "b", "e"));
    EXPECT_THAT(lines_.dropped, ElementsAre(0, 0, 2));
    print(*reader_, "f\ng\nwhy it ended\n");
    reader_->finish(2 * kSecond);
    EXPECT_THAT(lines_.lines, ElementsAre("a", "b", "e", "f", "why it ended"));
    EXPECT_THAT(lines_.dropped, ElementsAre(0, 0, 2, 0, 1));
}

TEST_F(OutputReaderTest, TheLastWordsBehindAFullPipeAreHeard) {
    open(1'000'000);
    UniqueFd end = OutputReader::openToPrint(dir_.path() + "/pipe");
    ASSERT_TRUE(end.valid());
    EXPECT_EQ(::fcntl(end.get(), F_GETFL) & O_NONBLOCK, 0);
    const int holds = ::fcntl(end.get(), F_GETPIPE_SZ);
    const std::string text = std::string(static_cast<size_t>(holds) - 5, 'y') + "\nlast";
    ASSERT_EQ(::write(end.get(), text.data(), text.size()), holds);
    reader_->finish(0);
    ASSERT_EQ(lines_.lines.size(), 2u);
    EXPECT_EQ(lines_.lines[1], "last");
}

TEST(ProcSampler, ProcessorShareIsTicksOverTime) {
    TempDir proc;
    std::filesystem::create_directory(proc.path() + "/42");
    const long ticks = ::sysconf(_SC_CLK_TCK);
    const auto write = [&](long user, long system, long pages) {
        std::ofstream(proc.path() + "/42/stat")
            << "42 (a ) b) R 1 1 1 0 -1 0 0 0 0 0 " << user << ' ' << system
            << " 0 0 20 0 1 0 1000 1 " << pages << " 0\n";
    };
    ProcSampler sampler(proc.path());
    write(10, 5, 100);
    const ProcessFigures first = sampler.sample(42, kSecond);
    EXPECT_FALSE(first.cpuPercent.has_value()) << "no share without a second reading";
    EXPECT_EQ(first.rssBytes, 100u * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)));
    write(10 + ticks, 5 + ticks / 2, 100);
    EXPECT_DOUBLE_EQ(*sampler.sample(42, 3 * kSecond).cpuPercent, 75.0);
}

TEST(ProcSampler, WhatCannotBeReadIsAbsent) {
    TempDir proc;
    ProcSampler sampler(proc.path());
    EXPECT_FALSE(sampler.sample(1, 0).rssBytes.has_value());
    EXPECT_FALSE(sampler.memory().totalBytes.has_value());
    std::ofstream(proc.path() + "/meminfo") << "MemTotal: 10 kB\nMemAvailable: 4 kB\n";
    EXPECT_EQ(sampler.memory().totalBytes, 10240u);
    EXPECT_EQ(sampler.memory().availableBytes, 4096u);
}

TEST(DiskBallast, RefusesSharedFileSystemsWithTheReason) {
    for (const char* dir : {"/", "/dev/shm", "/tmp"}) {
        const auto ballast = DiskBallast::fill(dir);
        EXPECT_TRUE(absl::IsFailedPrecondition(ballast.status())) << dir;
        EXPECT_THAT(std::string(ballast.status().message()), HasSubstr("file system of their own"));
    }
}

TEST(DiskBallast, TakesAllRoomOfAFileSystemOfItsOwnAndGivesItBack) {
    TempDir dir;
    const absl::Status mounted = support::mountSmallDisk(dir.path());
    ASSERT_TRUE(mounted.ok()) << mounted;
    const auto canWrite = [&] {
        std::ofstream file(dir.path() + "/checkpoint", std::ios::trunc);
        file << std::string(64 << 10, 'x');
        file.close();
        return file.good();
    };
    {
        const auto ballast = DiskBallast::fill(dir.path());
        EXPECT_TRUE(ballast.ok()) << ballast.status();
        EXPECT_FALSE(canWrite());
    }
    EXPECT_TRUE(canWrite());
    ::umount(dir.path().c_str());
}

}  // namespace
}  // namespace bulkhead::runtime
