// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include "tests/collectives/group_ranks.h"

namespace bulkhead::runtime {
namespace {

using testing::GroupRanks;

class GroupProcessTest : public ::testing::TestWithParam<PeerChoice> {};

TEST_P(GroupProcessTest, AKilledSiblingEndsTheWaitWithItsName) {
    const GroupRanks ranks(3, GetParam());
    std::vector<pid_t> children;
    for (size_t i = 1; i < 3; ++i) {
        const pid_t child = ::fork();
        if (child == 0) {
            auto group = makeGroup(ranks.options(i)).value();
            // Rank 1 never comes to the second barrier, rank 2 waits there.
            group->barrier().IgnoreError();
            if (i == 1)
                while (true) ::pause();
            const absl::Status s = group->barrier();
            ::_exit(absl::IsUnavailable(s) || absl::IsDeadlineExceeded(s) ? 0 : 1);
        }
        children.push_back(child);
    }
    auto group = makeGroup(ranks.options(0)).value();
    ASSERT_TRUE(group->barrier().ok());
    absl::Status status;
    std::thread waiting([&] { status = group->barrier(); });
    ::kill(children[0], SIGKILL);
    waiting.join();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_NE(status.message().find("peer 1"), absl::string_view::npos) << status;
    int code = 0;
    ::waitpid(children[0], &code, 0);
    ::waitpid(children[1], &code, 0);
    EXPECT_TRUE(WIFEXITED(code) && WEXITSTATUS(code) == 0);
}

INSTANTIATE_TEST_SUITE_P(Wirings, GroupProcessTest,
                         ::testing::Values(PeerChoice::kShm, PeerChoice::kTcp),
                         [](const auto& info) {
                             return info.param == PeerChoice::kShm ? "shm" : "tcp";
                         });

}  // namespace
}  // namespace bulkhead::runtime
