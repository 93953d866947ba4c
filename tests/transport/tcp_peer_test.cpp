// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/tcp_peer.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

namespace bulkhead::runtime {
namespace {

using Bytes = std::vector<std::byte>;
constexpr size_t kLeastPart = 1000;

Bytes pattern(size_t size, size_t seed) {
    Bytes out(size);
    for (size_t i = 0; i < size; ++i) out[i] = static_cast<std::byte>(i * 31 + seed);
    return out;
}

/// Both ends of a pair with three connections.
class TcpPeerTest : public ::testing::Test {
  protected:
    void SetUp() override {
        std::vector<std::unique_ptr<TcpConnection>> left, right;
        for (int i = 0; i < 3; ++i) {
            int fds[2];
            ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
            const TcpConnection::Options options{kLeastPart, 4, Protection::kReadable};
            const Secret ofLeft = Secret::ofText("left"), ofRight = Secret::ofText("right");
            left.push_back(std::make_unique<TcpConnection>(UniqueFd(fds[0]), MeshIdentity{}, 1u, 2u,
                                                           ofLeft, ofRight, options));
            right.push_back(std::make_unique<TcpConnection>(UniqueFd(fds[1]), MeshIdentity{}, 2u,
                                                            1u, ofRight, ofLeft, options));
        }
        left_ = std::make_unique<TcpPeer>(std::move(left), kLeastPart);
        right_ = std::make_unique<TcpPeer>(std::move(right), kLeastPart);
    }

    static absl::Status step(TcpPeer& peer) {
        std::vector<pollfd> waits;
        peer.appendWaits(waits);
        EXPECT_EQ(waits.size(), peer.connections());
        ::poll(waits.data(), waits.size(), 0);
        peer.onPolled(waits);
        return peer.advance();
    }

    /// One round; how many connections carried something.
    size_t exchange(uint32_t bucket, const Bytes& fromLeft, const Bytes& fromRight) {
        Bytes atLeft(fromRight.size()), atRight(fromLeft.size());
        left_->begin({1, 1, bucket}, false, fromLeft, atLeft);
        right_->begin({1, 1, bucket}, true, fromRight, atRight);
        std::vector<pollfd> waits;
        left_->appendWaits(waits);
        size_t used = 0;
        for (const pollfd& wait : waits) used += wait.fd >= 0;
        for (int i = 0; i < 100 && !(left_->done() && right_->done()); ++i) {
            EXPECT_TRUE(step(*left_).ok());
            EXPECT_TRUE(step(*right_).ok());
        }
        EXPECT_TRUE(left_->done() && right_->done());
        EXPECT_TRUE(left_->peerWantsMore());
        EXPECT_FALSE(right_->peerWantsMore());
        EXPECT_EQ(atRight, fromLeft);
        EXPECT_EQ(atLeft, fromRight);
        return used;
    }

    std::unique_ptr<TcpPeer> left_, right_;
};

TEST_F(TcpPeerTest, AMessageIsCutOverTheConnectionsItIsWorth) {
    uint32_t bucket = 0;
    for (const auto& [size, connections] :
         {std::pair<size_t, size_t>{0, 1}, {1, 1}, {1999, 1}, {2000, 2}, {2999, 2}, {30'000, 3}})
        EXPECT_EQ(exchange(++bucket, pattern(size, 3), pattern(size, 5)), connections) << size;
}

TEST_F(TcpPeerTest, TheLongerDirectionDecides) {
    EXPECT_EQ(exchange(1, pattern(5000, 1), {}), 3u);
    EXPECT_EQ(exchange(2, {}, pattern(2500, 1)), 2u);
    EXPECT_EQ(exchange(3, pattern(10, 1), pattern(20, 1)), 1u);
    EXPECT_GT(left_->moved(), 5000u + 2500u);
}

TEST_F(TcpPeerTest, ABrokenConnectionBreaksThePair) {
    const Bytes out = pattern(9000, 1);
    Bytes in(9000);
    left_->begin({1, 1, 1}, false, out, in);
    right_->breakOff();
    absl::Status status;
    for (int i = 0; i < 10 && status.ok(); ++i) status = step(*left_);
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

}  // namespace
}  // namespace bulkhead::runtime
