// SPDX-License-Identifier: Apache-2.0
// The connection between one rank and the coordinator breaks, and nothing else does.
#include <sys/socket.h>

#include <filesystem>

#include "tests/fault/training_job.h"

namespace bulkhead::fault {
namespace {

namespace fs = std::filesystem;

class ControlLinkTest : public TrainingJob {
  protected:
    /// Ends the connections of process `pid` to the controller, which lives in this process.
    static int breakConnections(int32_t pid) {
        int broken = 0;
        for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
            const int fd = std::stoi(entry.path().filename());
            ucred peer{};
            socklen_t size = sizeof peer;
            if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.pid == pid)
                broken += ::shutdown(fd, SHUT_RDWR) == 0;
        }
        return broken;
    }
    int32_t pidOf(RankId rank) const {
        int32_t pid = 0;
        for (const model::RankStarted& r : all<model::RankStarted>())
            if (r.rank == rank) pid = r.pid;
        return pid;
    }
    std::string socket() const { return host_->dir() + "/c"; }
};

/// A rank that is cut off speaks by way of a sibling, and what it missed is said again. On a busy
/// machine it can be too late for the 50 ms that it has: then once more.
TEST_F(ControlLinkTest, ABreakThatHealsAtOnceCostsNobodyAnything) {
    for (const int32_t shard : {0, 1}) {
        bool cost = true;
        for (int attempt = 0; attempt < 5 && cost; ++attempt) {
            host();
            start(spec(0, 3, 2));
            awaitStep(3);
            ASSERT_EQ(breakConnections(pidOf({1, shard})), 1);
            awaitStep(all<model::StepCommitted>().back().record.step + 5);
            stopAndAudit();
            for (const auto& opened : all<model::IncidentOpened>())
                EXPECT_EQ(opened.cause, model::EvidenceKind::kTransportReset) << opened.title;
            cost = !all<model::IncidentOpened>().empty();
        }
        EXPECT_FALSE(cost) << "shard " << shard;
    }
}

/// Its siblings could still speak for it, but no order reaches it: it is lost, and returns.
TEST_F(ControlLinkTest, ARankThatStaysCutOffFromTheCoordinatorAloneIsLostAndReturns) {
    for (const int32_t shard : {0, 1}) {
        host();
        start(spec(0, 3, 2));
        awaitStep(3);
        fs::rename(socket(), socket() + ".away");
        ASSERT_EQ(breakConnections(pidOf({1, shard})), 1);
        const auto opened = await<model::IncidentOpened>();
        ASSERT_TRUE(opened.has_value());
        EXPECT_EQ(opened->replica, 1);
        EXPECT_EQ(opened->cause, model::EvidenceKind::kTransportReset);
        fs::rename(socket() + ".away", socket());
        expectRejoined(1);
        stopAndAudit();
    }
}

}  // namespace
}  // namespace bulkhead::fault
