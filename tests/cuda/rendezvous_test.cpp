// SPDX-License-Identifier: Apache-2.0
#include "plugins/cuda/rendezvous.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

namespace bulkhead::cuda {
namespace {

using ::testing::HasSubstr;

/// A group whose rank 0 listens on a free port of loopback.
class RendezvousTest : public ::testing::Test {
  protected:
    RendezvousTest() {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        socklen_t size = sizeof address;
        EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
        EXPECT_EQ(::listen(listener_, 16), 0);
        EXPECT_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
        address_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    }
    ~RendezvousTest() override { ::close(listener_); }

    Rendezvous rank(int32_t rank, size_t size) const {
        Rendezvous with;
        with.group = "replica 0";
        with.token = 42;
        with.rank = rank;
        with.data.assign(size, "127.0.0.1:1");  // nobody connects to any but rank 0
        with.data[0] = address_;
        with.listenFd = rank == 0 ? listener_ : -1;
        with.timeoutMs = 60'000;
        with.place = 100 + static_cast<uint64_t>(rank);
        return with;
    }

    /// Every rank on a thread; status by rank.
    std::vector<absl::Status> meet(const std::vector<Rendezvous>& ranks) {
        std::vector<absl::Status> status(ranks.size());
        messages_.assign(ranks.size(), "........");
        messages_[0] = "the id..";
        std::vector<std::thread> threads;
        for (size_t i = 0; i < ranks.size(); ++i)
            threads.emplace_back(
                [&, i] { status[i] = shareFromRankZero(ranks[i], messages_[i]).status(); });
        for (std::thread& t : threads) t.join();
        return status;
    }

    int listener_ = -1;
    std::string address_;
    std::vector<std::string> messages_;
};

TEST_F(RendezvousTest, allGetTheMessageOfRankZero) {
    for (const absl::Status& s : meet({rank(0, 4), rank(1, 4), rank(2, 4), rank(3, 4)}))
        EXPECT_TRUE(s.ok()) << s;
    for (const std::string& message : messages_) EXPECT_EQ(message, "the id..");
}

TEST_F(RendezvousTest, aRankAloneNeedsNobody) {
    EXPECT_TRUE(meet({rank(0, 1)})[0].ok());
}

TEST_F(RendezvousTest, aRankWithoutTheTokenIsTurnedAwayAndTheOthersAreNotHeldUp) {
    Rendezvous stranger = rank(1, 3);
    stranger.token = 43;
    std::string taken = "........";
    std::thread first([&] {
        EXPECT_TRUE(absl::IsPermissionDenied(shareFromRankZero(stranger, taken).status()));
    });
    std::string given = "the id..";
    std::thread host([&] { EXPECT_TRUE(shareFromRankZero(rank(0, 3), given).ok()); });
    first.join();
    EXPECT_EQ(taken, "........");
    for (int32_t r : {1, 2}) {
        std::string message = "........";
        EXPECT_TRUE(shareFromRankZero(rank(r, 3), message).ok());
        EXPECT_EQ(message, "the id..");
    }
    host.join();
}

TEST_F(RendezvousTest, aRankThatDoesNotComeIsNamed) {
    Rendezvous host = rank(0, 3);
    host.timeoutMs = 300;
    std::string message = "the id..";
    const absl::Status status = shareFromRankZero(host, message).status();
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1, 2 did not come in 300 ms"));
}

TEST_F(RendezvousTest, twoRanksOnOneGpuAreToldSo) {
    Rendezvous second = rank(1, 2);
    second.place = rank(0, 2).place;
    for (const absl::Status& s : meet({rank(0, 2), second})) {
        EXPECT_TRUE(absl::IsInvalidArgument(s)) << s;
        EXPECT_THAT(std::string(s.message()), HasSubstr("a GPU of its own"));
    }
}

TEST_F(RendezvousTest, ranksThatMayShareAGpuAreToldWhetherAllDo) {
    for (const bool together : {true, false}) {
        std::vector<absl::StatusOr<Seating>> seatings(3, absl::UnknownError("not yet"));
        std::vector<std::thread> threads;
        for (int32_t r = 0; r < 3; ++r)
            threads.emplace_back([&, r] {
                Rendezvous with = rank(r, 3);
                with.mayShare = true;
                if (together) with.place = rank(0, 3).place;
                std::string message = r == 0 ? "the id.." : "........";
                seatings[static_cast<size_t>(r)] = shareFromRankZero(with, message);
                EXPECT_EQ(message, "the id..");
            });
        for (std::thread& t : threads) t.join();
        for (const auto& seating : seatings) {
            ASSERT_TRUE(seating.ok()) << seating.status();
            EXPECT_EQ(*seating, together ? Seating::kTogether : Seating::kApart);
        }
    }
}

TEST_F(RendezvousTest, someRanksOnOneGpuAndOthersNotAreRefused) {
    std::vector<Rendezvous> ranks{rank(0, 3), rank(1, 3), rank(2, 3)};
    for (Rendezvous& r : ranks) {
        r.mayShare = true;
        r.timeoutMs = 500;
    }
    ranks[1].place = ranks[0].place;
    const std::vector<absl::Status> all = meet(ranks);
    EXPECT_TRUE(absl::IsInvalidArgument(all[0])) << all[0];
    EXPECT_EQ(std::count_if(all.begin(), all.end(), absl::IsInvalidArgument), 2);
}

TEST_F(RendezvousTest, anAddressThatIsNoneIsNamed) {
    Rendezvous guest = rank(1, 2);
    guest.data[0] = "nowhere";
    std::string message = "........";
    const absl::Status status = shareFromRankZero(guest, message).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("\"nowhere\" is no address"));
}

}  // namespace
}  // namespace bulkhead::cuda
