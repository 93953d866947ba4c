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
            for (const LogEntry& e : log->entries()) found.push_back(std::get<LogTerm>(e).term);
        return found;
    }
    std::string dir_;
    std::string path_;
};

TEST_F(CommitLogTest, WhatWasAppendedIsThereAfterwards) {
    {
        auto log = CommitLog::open(diskFiles(), path_);
        ASSERT_TRUE(log.ok()) << log.status();
        EXPECT_TRUE(log->entries().empty());
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
