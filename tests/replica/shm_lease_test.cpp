// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/shm_lease.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace bulkhead::runtime {
namespace {

namespace fs = std::filesystem;

class ShmLeaseTest : public ::testing::Test {
  protected:
    void SetUp() override {
        folder_ =
            (fs::path(::testing::TempDir()) / ("lease_" + std::to_string(::getpid()))).string();
        fs::create_directories(folder_);
    }
    void TearDown() override { fs::remove_all(folder_); }
    std::string segment(const std::string& name) {
        const std::string path = folder_ + "/" + name;
        std::ofstream(path) << "x";
        return path;
    }
    std::string folder_;
};

TEST_F(ShmLeaseTest, sweepsOnlyWhatTheDeadLeft) {
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    const pid_t child = ::fork();
    if (child == 0) {
        auto lease = ShmLease::take("bh-1-r0", folder_);
        if (::write(ready[1], "x", 1) < 0) ::_exit(1);
        for (;;) ::pause();
    }
    char byte = 0;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    auto mine = ShmLease::take("bh-1-r1", folder_);
    ASSERT_TRUE(mine.ok()) << mine.status();
    const std::string theirs = segment("bh-1-r0.abc-1");
    const std::string own = segment("bh-1-r1.abc-1");
    const std::string similar = segment("bh-1-r01.abc-1");
    EXPECT_EQ(ShmLease::sweep("bh-", folder_), 0);
    EXPECT_TRUE(absl::IsAlreadyExists(ShmLease::take("bh-1-r0", folder_).status()));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    EXPECT_EQ(ShmLease::sweep("bh-", folder_), 2);
    EXPECT_FALSE(fs::exists(theirs));
    EXPECT_TRUE(fs::exists(own));
    EXPECT_TRUE(fs::exists(similar));
}

TEST_F(ShmLeaseTest, anOrderlyEndLeavesNothing) {
    {
        auto lease = ShmLease::take("bh-2", folder_);
        ASSERT_TRUE(lease.ok());
        segment("bh-2.x");
    }
    EXPECT_TRUE(fs::is_empty(folder_));
}

}  // namespace
}  // namespace bulkhead::runtime
