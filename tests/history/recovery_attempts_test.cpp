// SPDX-License-Identifier: Apache-2.0
#include "backend/daemon/recovery_attempts.h"

#include <gmock/gmock.h>
#include <unistd.h>

namespace bulkhead::daemon {
namespace {

using testing::HasSubstr;

class RecoveryAttemptsTest : public testing::Test {
  protected:
    ~RecoveryAttemptsTest() override { (void)diskFiles().remove(file_); }
    /// A controller that takes up these runs in order, and ends within the last unless it `lives`.
    absl::Status controller(const std::vector<std::string>& runs, bool lives) {
        RecoveryAttempts attempts(diskFiles(), file_);
        absl::Status first;
        for (const std::string& run : runs) first.Update(attempts.begin(run));
        if (lives) attempts.done();
        return first;
    }
    const std::string file_ =
        testing::TempDir() + "recovery_attempts_" + std::to_string(::getpid());
};

TEST_F(RecoveryAttemptsTest, TheRunThatEndedTwoControllersIsLeftAloneAndNoOther) {
    EXPECT_TRUE(controller({"a", "b"}, false).ok());
    EXPECT_TRUE(controller({"a", "b"}, false).ok()) << "once is no pattern";
    const absl::Status left = controller({"a", "b", "c"}, true);
    EXPECT_TRUE(absl::IsFailedPrecondition(left));
    EXPECT_THAT(std::string(left.message()), HasSubstr(file_));
    EXPECT_THAT(controller({"b"}, true).message(), HasSubstr("2 controllers in a row"))
        << "until somebody removes its line";
    EXPECT_TRUE(diskFiles().remove(file_).ok());
    EXPECT_TRUE(controller({"a", "b", "c"}, true).ok());
    EXPECT_FALSE(diskFiles().exists(file_));
}

TEST_F(RecoveryAttemptsTest, OnlyControllersInARowCount) {
    for (int i = 0; i < 5; ++i) {
        EXPECT_TRUE(controller({"a"}, false).ok());
        EXPECT_TRUE(controller({"a"}, true).ok());
    }
}

TEST_F(RecoveryAttemptsTest, WhatIsAskedLaterIsNoRecovery) {
    RecoveryAttempts attempts(diskFiles(), file_);
    EXPECT_TRUE(attempts.begin("a").ok());
    attempts.done();
    EXPECT_TRUE(attempts.begin("a").ok());
    EXPECT_FALSE(diskFiles().exists(file_));
}

TEST_F(RecoveryAttemptsTest, AFileOfGarbageStopsNobody) {
    EXPECT_TRUE(writeDurably(diskFiles(), file_, "a two\nb").ok());
    EXPECT_TRUE(controller({"a", "b"}, true).ok());
}

}  // namespace
}  // namespace bulkhead::daemon
