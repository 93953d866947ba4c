// SPDX-License-Identifier: Apache-2.0
#include "backend/lead/fenced_files.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <optional>
#include <thread>

namespace bulkhead::lead {
namespace {

/// Thrown where a process that leads no more would end.
struct Ended {};

class FencedFilesTest : public testing::Test {
  protected:
    FencedFilesTest() {
        char name[] = "/tmp/bulkhead-fenced-XXXXXX";
        dir_ = ::mkdtemp(name);
        const auto end = [](const std::string&) { throw Ended(); };
        first_.emplace(FencedFiles::Fence{[this] { check(firstLeads_); }, end}, dir_ + "/state");
        second_.emplace(FencedFiles::Fence{[this] { check(secondLeads_); }, end}, dir_ + "/state");
    }
    ~FencedFilesTest() override { std::filesystem::remove_all(dir_); }

    static void check(bool leads) {
        if (!leads) throw Ended();
    }
    /// The first is stopped, its lease ends, the second leads.
    void change() {
        firstLeads_ = false;
        secondLeads_ = true;
    }
    std::string content(const std::string& name) const {
        return diskFiles().read(dir_ + "/" + name).value_or("no such file");
    }

    std::string dir_;
    bool firstLeads_ = true;
    bool secondLeads_ = false;
    std::optional<FencedFiles> first_;
    std::optional<FencedFiles> second_;
};

TEST_F(FencedFilesTest, WhatAStoppedLeaderWritesLaterIsReadByNobody) {
    const std::string path = dir_ + "/commit.log";
    auto before = *first_->open(path);
    ASSERT_TRUE(before->append("one ").ok());
    ASSERT_TRUE(before->sync().ok());
    change();
    auto now = *second_->open(path);
    EXPECT_EQ(now->size(), 4u) << "it goes on behind what was there";
    ASSERT_TRUE(now->append("two ").ok());
    ASSERT_TRUE(now->sync().ok());
    ASSERT_TRUE(before->append("stale ").ok()) << "in a file of its own";
    EXPECT_THROW((void)before->sync(), Ended) << "nobody hears that it was written";
    ASSERT_TRUE(now->append("three").ok());
    EXPECT_EQ(content("commit.log"), "one two three");
    auto again = *second_->open(path);
    EXPECT_EQ(again->size(), 13u) << "its own file is not copied again";
    ASSERT_TRUE(now->append("!").ok());
    EXPECT_EQ(content("commit.log"), "one two three!");
}

TEST_F(FencedFilesTest, WhereTwoBelieveThatTheyLeadNothingThatWasToldIsLost) {
    const std::string path = dir_ + "/commit.log";
    std::string told;
    for (int change = 0; change < 20; ++change) {
        // Both believe it. The first writes until it ends, while the second takes the file.
        FencedFiles::Fence always{[] {}, [](const std::string&) { throw Ended(); }};
        FencedFiles before(always, dir_ + "/state");
        auto file = *before.open(path);
        ASSERT_EQ(file->size(), told.size());
        std::atomic<int> written{0};
        std::atomic<bool> over{false};
        std::thread writer([&] {
            int late = 0;  // tells of a few more, if nobody ends it
            for (char next = 'a'; late < 3;
                 next = next == 'z' ? 'a' : static_cast<char>(next + 1)) {
                if (over) ++late;
                try {
                    if (!file->append(std::string(1, next)).ok() || !file->sync().ok()) return;
                } catch (const Ended&) {
                    return;
                }
                told += next;
                ++written;
            }
        });
        while (written < 3) std::this_thread::yield();
        FencedFiles next(always, dir_ + "/state");
        const auto taken = *next.open(path);
        over = true;
        writer.join();
        const std::string there = content("commit.log");
        ASSERT_GE(there.size(), told.size());
        ASSERT_EQ(there.substr(0, told.size()), told) << change;
        // At most the one that was on its way when the file was taken.
        ASSERT_LE(there.size(), told.size() + 1);
        told = there;
    }
}

TEST_F(FencedFilesTest, OneThatLeadsNoMoreChangesNoName) {
    ASSERT_TRUE(writeDurably(*first_, dir_ + "/term", "1").ok());
    change();
    ASSERT_TRUE(writeDurably(*second_, dir_ + "/term", "2").ok());
    EXPECT_THROW((void)writeDurably(*first_, dir_ + "/term", "1"), Ended);
    EXPECT_THROW((void)first_->rename(dir_ + "/term", dir_ + "/away"), Ended);
    EXPECT_THROW((void)first_->remove(dir_ + "/term"), Ended);
    EXPECT_THROW((void)first_->removeFolder(dir_), Ended);
    EXPECT_EQ(content("term"), "2");
}

TEST_F(FencedFilesTest, ALeadersLockIsTakenFromItAndAStrangersIsNot) {
    const auto before = first_->lock(dir_ + "/lock");
    ASSERT_TRUE(before.ok()) << before.status();
    change();
    const auto now = second_->lock(dir_ + "/lock");
    ASSERT_TRUE(now.ok()) << now.status();
    EXPECT_FALSE(diskFiles().lock(dir_ + "/lock").ok());

    const auto stranger = diskFiles().lock(dir_ + "/other");
    ASSERT_TRUE(stranger.ok());
    EXPECT_EQ(second_->lock(dir_ + "/other").status().code(),
              absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace bulkhead::lead
