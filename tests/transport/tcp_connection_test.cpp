// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/tcp_connection.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <functional>
#include <random>
#include <vector>

namespace bulkhead::runtime {
namespace {

using Bytes = std::vector<std::byte>;

constexpr uint32_t kMyIncarnation = 2;
constexpr uint32_t kPeerIncarnation = 9;
constexpr RoundTag kTag{5, 1, 3};

MeshIdentity identity() {
    MeshIdentity id;
    id.group = 1;
    id.term = 4;
    id.epoch = 6;
    id.members = 2;
    return id;
}

Bytes pattern(size_t size) {
    Bytes out(size);
    for (size_t i = 0; i < size; ++i) out[i] = static_cast<std::byte>(i * 31 + size);
    return out;
}

/// A peer whose other end the test writes by hand.
class TcpConnectionTest : public ::testing::Test {
  protected:
    void SetUp() override {
        int fds[2];
        ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
        far_ = UniqueFd(fds[1]);
        peer_ = std::make_unique<TcpConnection>(UniqueFd(fds[0]), identity(), kMyIncarnation,
                                                kPeerIncarnation, kOurs, kTheirs,
                                                TcpConnection::Options{1000, 4, protection_});
        sealing_ = FrameSeal(kTheirs);
        opening_ = FrameSeal(kOurs);
    }

    FrameHeader header(const Bytes& payload, uint64_t total, uint64_t offset = 0) const {
        FrameHeader h;
        h.term = identity().term;
        h.epoch = identity().epoch;
        h.step = kTag.step;
        h.attempt = kTag.attempt;
        h.bucket = kTag.bucket;
        h.incarnation = kPeerIncarnation;
        h.sequence = 1;
        h.length = static_cast<uint32_t>(payload.size());
        h.offset = offset;
        h.total = total;
        return h;
    }

    void put(FrameHeader h, const Bytes& payload) {
        const auto wire = sealing_.seal(h, payload);
        putRaw(&h, sizeof h);
        putRaw(wire.data(), wire.size());
    }
    void putRaw(const void* data, size_t size) {
        if (size == 0) return;
        ASSERT_EQ(::send(far_.get(), data, size, MSG_NOSIGNAL), static_cast<ssize_t>(size));
    }

    /// All frames that the peer has written so far.
    std::vector<FrameHeader> sent() {
        std::vector<FrameHeader> out;
        FrameHeader h;
        while (::recv(far_.get(), &h, sizeof h, 0) == static_cast<ssize_t>(sizeof h)) {
            EXPECT_TRUE(opening_.open(h));
            Bytes payload(h.length);
            if (h.length > 0) {
                EXPECT_EQ(::recv(far_.get(), payload.data(), payload.size(), 0),
                          static_cast<ssize_t>(h.length));
            }
            EXPECT_EQ(h.protection, h.kind == FrameKind::kData ? protection_ : h.protection);
            EXPECT_TRUE(opening_.open(h, payload));
            out.push_back(h);
        }
        return out;
    }

    static inline const Secret kOurs = Secret::ofText("ours"), kTheirs = Secret::ofText("theirs");
    Protection protection_ = Protection::kReadable;
    FrameSeal sealing_{kTheirs}, opening_{kOurs};
    UniqueFd far_;
    std::unique_ptr<TcpConnection> peer_;
};

TEST_F(TcpConnectionTest, TakesAMessageInChunks) {
    const Bytes whole = pattern(1500);
    Bytes in(1500);
    peer_->begin(kTag, false, {}, in);
    put(header(Bytes(whole.begin(), whole.begin() + 1000), 1500),
        Bytes(whole.begin(), whole.begin() + 1000));
    ASSERT_TRUE(peer_->advance(true).ok());
    EXPECT_FALSE(peer_->received());
    put(header(Bytes(whole.begin() + 1000, whole.end()), 1500, 1000),
        Bytes(whole.begin() + 1000, whole.end()));
    ASSERT_TRUE(peer_->advance(true).ok());
    EXPECT_TRUE(peer_->done());
    EXPECT_EQ(in, whole);
}

TEST_F(TcpConnectionTest, StaleFramesAreDroppedAndCounted) {
    const Bytes good = pattern(100), old = pattern(77);
    Bytes in(100);
    peer_->begin(kTag, false, {}, in);
    FrameHeader h = header(old, 77);
    h.epoch -= 1;
    put(h, old);
    h = header(old, 77);
    h.term -= 1;
    h.epoch += 5;
    put(h, old);
    h = header(old, 77);
    h.incarnation -= 1;
    put(h, old);
    h = header(old, 77);
    h.step -= 1;
    put(h, old);
    h = header(old, 77);
    h.attempt -= 1;
    put(h, old);
    h = header(old, 77);
    h.sequence = 0;
    put(h, old);
    put(header(good, 100), good);
    ASSERT_TRUE(peer_->advance(true).ok());
    EXPECT_TRUE(peer_->done());
    EXPECT_EQ(peer_->staleFrames(), 6u);
    EXPECT_EQ(in, good);
}

TEST_F(TcpConnectionTest, ThePeersNextRoundWaitsInItsSocket) {
    const Bytes first = pattern(10), second = pattern(20);
    Bytes in(10), in2(20);
    peer_->begin(kTag, false, {}, in);
    put(header(first, 10), first);
    FrameHeader next = header(second, 20);
    next.sequence = 2;
    next.bucket += 1;
    put(next, second);
    ASSERT_TRUE(peer_->advance(true).ok());
    EXPECT_TRUE(peer_->done());
    EXPECT_EQ(in, first);
    peer_->begin({kTag.step, kTag.attempt, kTag.bucket + 1}, false, {}, in2);
    ASSERT_TRUE(peer_->advance(true).ok());
    EXPECT_TRUE(peer_->done());
    EXPECT_EQ(in2, second);
}

TEST_F(TcpConnectionTest, WhatComesMayBeCutAnywhere) {
    const Bytes old = pattern(70), whole = pattern(1500), second = pattern(20);
    const auto frame = [this](FrameHeader h, const Bytes& payload) {
        sealing_.seal(h, payload);
        Bytes out(sizeof h);
        std::memcpy(out.data(), &h, sizeof h);
        out.insert(out.end(), payload.begin(), payload.end());
        return out;
    };
    const Bytes chunk1(whole.begin(), whole.begin() + 1000),
        chunk2(whole.begin() + 1000, whole.end());
    FrameHeader stale = header(old, 70), ack = header({}, 0), next = header(second, 20);
    stale.epoch -= 1;
    ack.kind = FrameKind::kAck;
    next.sequence = 2;
    next.bucket += 1;
    Bytes stream;
    for (const Bytes& piece :
         {frame(stale, old), frame(ack, {}), frame(header(chunk1, 1500), chunk1), frame(stale, old),
          frame(ack, {}), frame(header(chunk2, 1500, 1000), chunk2), frame(next, second)})
        stream.insert(stream.end(), piece.begin(), piece.end());
    for (size_t cut = 0; cut <= stream.size(); ++cut) {
        SCOPED_TRACE(cut);
        SetUp();
        Bytes in(1500), in2(20);
        peer_->begin(kTag, false, {}, in);
        putRaw(stream.data(), cut);
        ASSERT_TRUE(peer_->advance(true).ok());
        putRaw(stream.data() + cut, stream.size() - cut);
        ASSERT_TRUE(peer_->advance(true).ok());
        ASSERT_TRUE(peer_->done());
        EXPECT_EQ(in, whole);
        EXPECT_EQ(peer_->staleFrames(), 2u);
        peer_->begin({kTag.step, kTag.attempt, kTag.bucket + 1}, false, {}, in2);
        ASSERT_TRUE(peer_->advance(true).ok());
        ASSERT_TRUE(peer_->done());
        EXPECT_EQ(in2, second);
    }
}

TEST_F(TcpConnectionTest, NeverMoreThanTheWindowIsInFlight) {
    const Bytes out = pattern(10'000);
    peer_->begin(kTag, false, out, {});
    put(header({}, 0), {});
    ASSERT_TRUE(peer_->advance(true).ok());
    std::vector<FrameHeader> frames = sent();
    ASSERT_EQ(frames.size(), 4u);
    EXPECT_FALSE(peer_->done());
    EXPECT_EQ(peer_->wanted() & POLLOUT, 0) << "it must wait for an acknowledgement, not spin";
    FrameHeader ack = header({}, 0);
    ack.kind = FrameKind::kAck;
    ack.consumed = 3;
    put(ack, {});
    ASSERT_TRUE(peer_->advance(true).ok());
    EXPECT_EQ(sent().size(), 3u);

    ack.consumed = 7;
    put(ack, {});
    ASSERT_TRUE(peer_->advance(true).ok());
    EXPECT_EQ(sent().size(), 3u);
    EXPECT_TRUE(peer_->done());
}

TEST_F(TcpConnectionTest, WhoSendsUnprotectedStillChecksWhatIsProtected) {
    protection_ = Protection::kNone;
    SetUp();
    const Bytes out = pattern(2500), good = pattern(100);
    Bytes in(100);
    peer_->begin(kTag, false, out, in);
    put(header(good, 100), good);
    ASSERT_TRUE(peer_->advance(true).ok());
    EXPECT_EQ(sent().size(), 3u);
    EXPECT_EQ(in, good);
    peer_->begin({kTag.step, kTag.attempt, kTag.bucket + 1}, false, {}, in);
    FrameHeader next = header(good, 100);
    next.sequence = 2;
    next.bucket += 1;
    sealing_.seal(next, good);
    putRaw(&next, sizeof next);
    Bytes changed = good;
    changed[50] ^= std::byte{1};
    putRaw(changed.data(), changed.size());
    EXPECT_TRUE(absl::IsDataLoss(peer_->advance(true)));
}

TEST_F(TcpConnectionTest, CorruptFramesAreDataLoss) {
    const Bytes payload = pattern(100);
    const auto refuse = [&](const std::function<void(FrameHeader&)>& spoil, bool sealed = true) {
        SetUp();
        Bytes in(100);
        peer_->begin(kTag, false, {}, in);
        FrameHeader h = header(payload, 100);
        if (sealed) spoil(h);
        sealing_.seal(h, payload);
        if (!sealed) spoil(h);
        putRaw(&h, sizeof h);
        putRaw(payload.data(), payload.size());
        const absl::Status status = peer_->advance(true);
        EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    };
    refuse([](FrameHeader& h) { h.magic ^= 1; });
    refuse([](FrameHeader& h) { h.version += 1; });
    refuse([](FrameHeader& h) { h.kind = static_cast<FrameKind>(7); });
    refuse([](FrameHeader& h) { h.length = UINT32_MAX; });
    refuse([](FrameHeader& h) { h.length = 101; });
    refuse([](FrameHeader& h) { h.total = 99; });
    refuse([](FrameHeader& h) { h.offset = 1; });
    refuse([](FrameHeader& h) { h.bucket += 1; });
    refuse([](FrameHeader& h) { h.sequence += 2; });
    refuse([](FrameHeader& h) { h.epoch += 1; });
    refuse([](FrameHeader& h) { h.consumed = 50; });
    // Behind the seal's back.
    refuse([](FrameHeader& h) { h.step += 1; }, false);
    refuse([](FrameHeader& h) { h.payloadTag.words[1] ^= 1; }, false);
    refuse([](FrameHeader& h) { h.headerTag.words[0] ^= 1; }, false);
    refuse([](FrameHeader& h) { h.protection = Protection::kNone; }, false);
}

TEST_F(TcpConnectionTest, GarbageAndTruncationNeverCrash) {
    std::mt19937_64 random(5);
    for (int round = 0; round < 500; ++round) {
        SetUp();
        Bytes in(100);
        peer_->begin(kTag, false, {}, in);
        FrameHeader h = header(pattern(100), 100);
        sealing_.seal(h, pattern(100));
        Bytes bytes(sizeof h + 100);
        std::memcpy(bytes.data(), &h, sizeof h);
        for (int k = 0; k < 3; ++k)
            bytes[random() % bytes.size()] = static_cast<std::byte>(random());
        bytes.resize(random() % bytes.size());
        putRaw(bytes.data(), bytes.size());
        far_.reset();
        absl::Status status;
        for (int k = 0; k < 4 && status.ok(); ++k) status = peer_->advance(true);
        EXPECT_FALSE(status.ok());
        EXPECT_FALSE(peer_->received());
    }
}

TEST_F(TcpConnectionTest, AClosedPeerIsUnavailable) {
    Bytes in(10);
    peer_->begin(kTag, false, {}, in);
    far_.reset();
    EXPECT_TRUE(absl::IsUnavailable(peer_->advance(true)));
}

TEST_F(TcpConnectionTest, FramesThatAreRepeatedOrLeftOutAreDataLoss) {
    const Bytes payload = pattern(100);
    for (const bool repeated : {true, false}) {
        SetUp();
        Bytes in(200);
        peer_->begin(kTag, false, {}, in);
        FrameHeader first = header(payload, 200);
        sealing_.seal(first, payload);
        FrameHeader second = header(payload, 200, 100);
        sealing_.seal(second, payload);
        for (const FrameHeader& h : {repeated ? first : second, first}) {
            putRaw(&h, sizeof h);
            putRaw(payload.data(), payload.size());
        }
        absl::Status status;
        for (int i = 0; i < 4 && status.ok(); ++i) status = peer_->advance(true);
        EXPECT_TRUE(absl::IsDataLoss(status)) << repeated << " " << status;
    }
}

TEST_F(TcpConnectionTest, WhoHasNotTheKeySendsNothingThatCounts) {
    const Bytes payload = pattern(100);
    Bytes in(100);
    peer_->begin(kTag, false, {}, in);
    FrameHeader h = header(payload, 100);
    FrameSeal(Secret::ofText("a guess")).seal(h, payload);
    putRaw(&h, sizeof h);
    putRaw(payload.data(), payload.size());
    EXPECT_TRUE(absl::IsDataLoss(peer_->advance(true)));
}

TEST_F(TcpConnectionTest, EncryptedPayloadsAreNotReadable) {
    protection_ = Protection::kEncrypted;
    SetUp();
    const Bytes out = pattern(700), good = pattern(100);
    Bytes in(100);
    peer_->begin(kTag, false, out, in);
    FrameHeader h = header(good, 100);
    h.protection = Protection::kEncrypted;
    put(h, good);
    ASSERT_TRUE(peer_->advance(true).ok());
    EXPECT_EQ(in, good);
    ASSERT_EQ(::recv(far_.get(), &h, sizeof h, 0), static_cast<ssize_t>(sizeof h));
    Bytes wire(h.length);
    ASSERT_EQ(::recv(far_.get(), wire.data(), wire.size(), 0), 700);
    EXPECT_EQ(std::search(wire.begin(), wire.end(), out.begin(), out.begin() + 8), wire.end());
    ASSERT_TRUE(opening_.open(h));
    ASSERT_TRUE(opening_.open(h, wire));
    EXPECT_EQ(wire, out);
}

TEST(DataFrame, AHelloIsJudgedByGroupExchangeAndProof) {
    const Secret secret = Secret::ofText("exchange");
    PeerHello hello;
    hello.identity = identity();
    prove(hello, secret);
    EXPECT_TRUE(readable(hello));
    EXPECT_EQ(judge(hello, identity(), secret, true), HelloVerdict::kAccepted);
    EXPECT_EQ(judge(hello, identity(), secret, false), HelloVerdict::kOtherGroup);
    EXPECT_EQ(judge(hello, identity(), Secret::ofText("another"), true), HelloVerdict::kUnproven);
    hello.nonce[0] += 1;
    EXPECT_EQ(judge(hello, identity(), secret, true), HelloVerdict::kUnproven);
    hello.identity.epoch += 1;
    EXPECT_EQ(judge(hello, identity(), secret, true), HelloVerdict::kNotYet);
    hello.identity.term -= 1;
    EXPECT_EQ(judge(hello, identity(), secret, true), HelloVerdict::kOlder);
    hello.identity.group += 1;
    EXPECT_EQ(judge(hello, identity(), secret, true), HelloVerdict::kOtherGroup);
}

TEST(DataFrame, AReplyIsBoundToItsHelloAndKeysToBoth) {
    const Secret secret = Secret::ofText("exchange");
    PeerHello hello, other;
    prove(hello, secret);
    prove(other, secret);
    HelloReply reply;
    prove(reply, hello, secret);
    EXPECT_TRUE(proven(reply, hello, secret));
    EXPECT_FALSE(proven(reply, other, secret)) << "an answer to another hello is no answer";
    EXPECT_FALSE(proven(reply, hello, Secret::ofText("another")));
    const ConnectionKeys keys = connectionKeys(hello, reply, secret);
    EXPECT_FALSE(keys.ofCaller == keys.ofListener);
    EXPECT_FALSE(keys.ofCaller == connectionKeys(other, reply, secret).ofCaller);
}

}  // namespace
}  // namespace bulkhead::runtime
