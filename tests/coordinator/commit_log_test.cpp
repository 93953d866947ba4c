// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/commit_log.h"

#include <gmock/gmock.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace bulkhead::runtime {
namespace {

using protocol::LogEntry;
using protocol::LogTerm;

/// The machine's own files, but a sync can be made to fail.
class FailingSync final : public FileSystem {
  public:
    bool fails = false;

    bool exists(const std::string& path) const override { return disk_.exists(path); }
    absl::StatusOr<std::string> read(const std::string& path) const override {
        return disk_.read(path);
    }
    absl::StatusOr<uint64_t> size(const std::string& path) const override {
        return disk_.size(path);
    }
    std::vector<std::string> list(const std::string& folder) const override {
        return disk_.list(folder);
    }
    absl::StatusOr<std::unique_ptr<AppendFile>> open(const std::string& path) override {
        auto file = disk_.open(path);
        if (!file.ok()) return file.status();
        return std::make_unique<File>(*std::move(file), fails);
    }
    absl::Status rename(const std::string& from, const std::string& to) override {
        return disk_.rename(from, to);
    }
    absl::Status remove(const std::string& path) override { return disk_.remove(path); }
    absl::Status read(const std::string& path, uint64_t offset,
                      std::span<std::byte> to) const override {
        return disk_.read(path, offset, to);
    }
    absl::Status makeFolder(const std::string& path) override { return disk_.makeFolder(path); }
    absl::Status removeFolder(const std::string& path) override { return disk_.removeFolder(path); }
    absl::Status syncFolder(const std::string& folder) override { return disk_.syncFolder(folder); }
    absl::StatusOr<std::unique_ptr<FileLock>> lock(const std::string& path) override {
        return disk_.lock(path);
    }

  private:
    class File final : public AppendFile {
      public:
        File(std::unique_ptr<AppendFile> file, const bool& fails)
            : file_(std::move(file)), fails_(fails) {}
        uint64_t size() const override { return file_->size(); }
        absl::Status append(std::string_view bytes) override { return file_->append(bytes); }
        absl::Status truncate(uint64_t size) override { return file_->truncate(size); }
        absl::Status sync() override {
            return fails_ ? absl::UnavailableError("the disk failed") : file_->sync();
        }

      private:
        std::unique_ptr<AppendFile> file_;
        const bool& fails_;
    };

    FileSystem& disk_ = diskFiles();
};

class CommitLogTest : public testing::Test {
  protected:
    CommitLogTest() {
        char name[] = "/tmp/bulkhead-log-XXXXXX";
        dir_ = ::mkdtemp(name);
        path_ = dir_ + "/commit.log";
    }
    ~CommitLogTest() override { std::filesystem::remove_all(dir_); }
    std::vector<uint64_t> terms() const {
        std::vector<uint64_t> found;
        auto log = CommitLog::open(diskFiles(), path_);
        EXPECT_TRUE(log.ok()) << log.status();
        if (log.ok())
            for (const LogEntry& e : log->takeEntries()) found.push_back(std::get<LogTerm>(e).term);
        return found;
    }
    std::string dir_;
    std::string path_;
};

TEST_F(CommitLogTest, WhatWasAppendedIsThereAfterwards) {
    {
        auto log = CommitLog::open(diskFiles(), path_);
        ASSERT_TRUE(log.ok()) << log.status();
        EXPECT_TRUE(log->takeEntries().empty());
        ASSERT_TRUE(log->append({LogTerm{1}, LogTerm{2}}).ok());
        ASSERT_TRUE(log->append({LogTerm{3}}).ok());
    }
    EXPECT_THAT(terms(), testing::ElementsAre(1, 2, 3));
}

TEST_F(CommitLogTest, ATornTailIsCutAndAppendingGoesOnBehindTheLastWholeEntry) {
    {
        auto log = CommitLog::open(diskFiles(), path_);
        ASSERT_TRUE(log->append({LogTerm{1}, LogTerm{2}}).ok());
    }
    std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 3);
    {
        auto log = CommitLog::open(diskFiles(), path_);
        ASSERT_TRUE(log.ok()) << log.status();
        EXPECT_TRUE(log->hadTornTail());
        ASSERT_TRUE(log->append({LogTerm{7}}).ok());
    }
    EXPECT_THAT(terms(), testing::ElementsAre(1, 7));
}

TEST_F(CommitLogTest, OfAHoleOfGigabytesAtTheEndNothingIsReadOrKept) {
    {
        auto log = CommitLog::open(diskFiles(), path_);
        ASSERT_TRUE(log->append({LogTerm{1}, LogTerm{2}}).ok());
    }
    const auto whole = std::filesystem::file_size(path_);
    std::filesystem::resize_file(path_, whole + (uint64_t{4} << 30));
    const auto bytes = diskFiles().read(path_);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    EXPECT_LT(bytes->size(), 1u << 20);
    {
        auto log = CommitLog::open(diskFiles(), path_);
        ASSERT_TRUE(log.ok()) << log.status();
        EXPECT_TRUE(log->hadTornTail());
        EXPECT_EQ(std::filesystem::file_size(path_), whole);
        ASSERT_TRUE(log->append({LogTerm{7}}).ok());
    }
    EXPECT_THAT(terms(), testing::ElementsAre(1, 2, 7));
}

TEST_F(CommitLogTest, WhatASyncFailedOnIsNotThereForTheNextWhoCouldNotKnow) {
    FailingSync files;
    {
        auto log = CommitLog::open(files, path_);
        ASSERT_TRUE(log.ok()) << log.status();
        ASSERT_TRUE(log->append({LogTerm{1}}).ok());
        files.fails = true;
        EXPECT_FALSE(log->append({LogTerm{2}}).ok());
        files.fails = false;
        EXPECT_FALSE(log->append({LogTerm{3}}).ok()) << "it has to be read anew first";
    }
    EXPECT_THAT(terms(), testing::ElementsAre(1));
}

TEST_F(CommitLogTest, AFileCutInsideItsHeaderBeginsAnew) {
    std::ofstream(path_) << "BHC";
    auto log = CommitLog::open(diskFiles(), path_);
    ASSERT_TRUE(log.ok()) << log.status();
    ASSERT_TRUE(log->append({LogTerm{1}}).ok());
    EXPECT_THAT(terms(), testing::ElementsAre(1));
}

TEST_F(CommitLogTest, AForeignFileIsRefusedAndLeftAlone) {
    std::ofstream(path_) << "this is a diary, not a commit log of ours";
    const auto log = CommitLog::open(diskFiles(), path_);
    EXPECT_FALSE(log.ok());
    EXPECT_THAT(std::string(log.status().message()), testing::HasSubstr(path_));
    std::string text;
    std::getline(std::ifstream(path_), text);
    EXPECT_THAT(text, testing::StartsWith("this is a diary"));
}

}  // namespace
}  // namespace bulkhead::runtime
