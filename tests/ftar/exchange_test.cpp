// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/ftar/exchange.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cmath>
#include <functional>
#include <thread>

#include "tests/ftar/exchange_group.h"

namespace bulkhead::runtime {
namespace {

using testing::gradient;
using testing::Ranks;
using testing::sameBits;
using testing::Wiring;

void onThreads(size_t n, const std::function<void(size_t)>& body) {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < n; ++i) threads.emplace_back([&body, i] { body(i); });
    for (std::thread& t : threads) t.join();
}

/// It lives as long as `ranks`: the end of one is a reset to a slower one.
Exchange* exchangeOf(const Ranks& ranks, size_t i, NetworkFaults* faults = nullptr) {
    return ranks.keep(i, std::move(makeExchange(ranks.options(i, faults)).value()));
}

/// Every bucket of one step; true when all sums are the reference's bits and inputs are whole.
bool stepIsRight(const Ranks& ranks, Exchange& exchange, const std::vector<size_t>& members,
                 size_t who, uint64_t step) {
    const std::vector<size_t> counts{1, 17, 1000, 4096, 70'001};
    for (uint32_t bucket = 0; bucket < counts.size(); ++bucket) {
        const size_t count = counts[bucket];
        const std::vector<float> input = gradient(who, step, bucket, count);
        std::vector<float> output(count, -1);
        const absl::Status status = ranks.reduce(who, exchange, bucket, input, output);
        EXPECT_TRUE(status.ok()) << status;
        if (!status.ok() || !sameBits(input, gradient(who, step, bucket, count)) ||
            !sameBits(output, ranks.sum(members, step, bucket, count)))
            return false;
    }
    return true;
}

class ExchangeTest : public ::testing::TestWithParam<std::tuple<Wiring, size_t, WireType>> {
  protected:
    Wiring wiring() const { return std::get<0>(GetParam()); }
    size_t n() const { return std::get<1>(GetParam()); }
    WireType wire() const { return std::get<2>(GetParam()); }
};

TEST_P(ExchangeTest, EverybodyGetsTheBitsOfThePlainSum) {
    Ranks ranks(n(), wiring());
    ranks.wire = wire();
    onThreads(n(), [&](size_t i) {
        Exchange* exchange = exchangeOf(ranks, i);
        for (uint64_t step = 1; step <= 3; ++step) {
            const absl::Status s =
                exchange->configure(ranks.group(ranks.all(), i, {1, 1, step, 1}));
            ASSERT_TRUE(s.ok()) << s;
            ASSERT_TRUE(stepIsRight(ranks, *exchange, ranks.all(), i, step)) << "step " << step;
        }
        EXPECT_EQ(exchange->stats().buckets, 5u);
        EXPECT_EQ(exchange->stats().bytesSent > 0, n() > 1);
        EXPECT_EQ(exchange->progress() > 0, n() > 1);
    });
    EXPECT_EQ(removeSegments(ranks.prefix()), 0u) << "names were left behind";
}

TEST_P(ExchangeTest, ARedoAndANewEpochBuildNewConnections) {
    Ranks ranks(n(), wiring());
    ranks.wire = wire();
    onThreads(n(), [&](size_t i) {
        Exchange* exchange = exchangeOf(ranks, i);
        for (const ExchangeKey& key :
             {ExchangeKey{1, 1, 5, 1}, ExchangeKey{1, 1, 5, 2}, ExchangeKey{1, 1, 6, 1},
              ExchangeKey{1, 2, 6, 2}, ExchangeKey{2, 2, 7, 1}}) {
            const absl::Status s = exchange->configure(ranks.group(ranks.all(), i, key));
            ASSERT_TRUE(s.ok()) << s;
            ASSERT_TRUE(stepIsRight(ranks, *exchange, ranks.all(), i, key.step));
        }
    });
}

INSTANTIATE_TEST_SUITE_P(Wirings, ExchangeTest,
                         ::testing::Combine(testing::kWirings, ::testing::Values(1, 2, 3, 4, 7),
                                            ::testing::Values(WireType::kFloat32,
                                                              WireType::kBfloat16)),
                         [](const auto& info) {
                             return testing::wiringName(std::get<0>(info.param)) + "_" +
                                    std::to_string(std::get<1>(info.param)) +
                                    (std::get<2>(info.param) == WireType::kFloat32 ? "_float32"
                                                                                   : "_bfloat16");
                         });

TEST(Exchange, Bfloat16StaysWithinItsBoundForEveryAlgorithm) {
    constexpr size_t kMembers = 6, kElements = 50'000;
    std::vector<double> sum(kElements), magnitude(kElements);
    for (size_t m = 0; m < kMembers; ++m) {
        const std::vector<float> input = gradient(m, 1, 0, kElements);
        for (size_t i = 0; i < kElements; ++i) {
            sum[i] += static_cast<double>(input[i]);
            magnitude[i] += std::abs(static_cast<double>(input[i]));
        }
    }
    const double relative = std::ldexp(1, -7) + std::ldexp(1, -15) + kMembers * std::ldexp(1, -23);
    for (const Wiring wiring : {Wiring::kDirect, Wiring::kTcp, Wiring::kRing, Wiring::kTiers}) {
        Ranks ranks(kMembers, wiring);
        ranks.wire = WireType::kBfloat16;
        onThreads(kMembers, [&](size_t r) {
            Exchange* exchange = exchangeOf(ranks, r);
            ASSERT_TRUE(exchange->configure(ranks.group(ranks.all(), r, {1, 1, 1, 1})).ok());
            const std::vector<float> input = gradient(r, 1, 0, kElements);
            std::vector<float> output(kElements);
            ASSERT_TRUE(ranks.reduce(r, *exchange, 0, input, output).ok());
            size_t outside = 0, exact = 0;
            for (size_t i = 0; i < kElements; ++i) {
                const double error = std::abs(static_cast<double>(output[i]) - sum[i]);
                outside += error > magnitude[i] * relative + std::ldexp(1, -133) ? 1 : 0;
                exact += error == 0 ? 1 : 0;
            }
            EXPECT_EQ(outside, 0u) << testing::wiringName(wiring);
            EXPECT_LT(exact, kElements / 10) << "nothing was rounded";
        });
    }
}

TEST(Exchange, HalfTheBytesTravelInBfloat16) {
    uint64_t sent[2] = {};
    for (const WireType wire : {WireType::kFloat32, WireType::kBfloat16}) {
        Ranks ranks(3, Wiring::kTcp);
        ranks.wire = wire;
        onThreads(3, [&](size_t i) {
            Exchange* exchange = exchangeOf(ranks, i);
            ASSERT_TRUE(exchange->configure(ranks.group(ranks.all(), i, {1, 1, 1, 1})).ok());
            ASSERT_TRUE(stepIsRight(ranks, *exchange, ranks.all(), i, 1));
            if (i == 0) sent[wire == WireType::kBfloat16] = exchange->stats().bytesSent;
        });
    }
    EXPECT_GT(sent[1], 0u);
    EXPECT_EQ(2 * sent[1], sent[0]);
}

TEST(Exchange, LeftToItselfTakesTiersForLargeBucketsOnSharedHosts) {
    Ranks ranks(4, Wiring::kTiers);
    const Ranks plain(4, Wiring::kTcp);
    onThreads(4, [&](size_t i) {
        Exchange* exchange = exchangeOf(ranks, i);
        ExchangeGroup group = ranks.group(ranks.all(), i, {1, 1, 1, 1});
        group.algorithm = Algorithm::kAuto;
        ASSERT_TRUE(exchange->configure(group).ok());
        for (const size_t count : {1000u, 100'000u}) {
            const std::vector<float> input = gradient(i, 1, 0, count);
            std::vector<float> output(count);
            ASSERT_TRUE(ranks.reduce(i, *exchange, 0, input, output).ok());
            const Ranks& like = count == 1000 ? plain : ranks;
            EXPECT_TRUE(sameBits(output, like.sum(like.all(), 1, 0, count))) << count;
        }
    });
    EXPECT_FALSE(sameBits(plain.sum(plain.all(), 1, 0, 1000), ranks.sum(ranks.all(), 1, 0, 1000)))
        << "the two orders cannot be told apart";
}

TEST(Exchange, MembersThatWouldAddDifferentlyDoNotMeet) {
    const Ranks ranks(2, Wiring::kTcp);
    onThreads(2, [&](size_t i) {
        Exchange* exchange = exchangeOf(ranks, i);
        ExchangeGroup group = ranks.group(ranks.all(), i, {1, 1, 1, 1});
        if (i == 1) group.wire = WireType::kBfloat16;
        group.connectTimeout = 300 * kMillisecond;
        EXPECT_TRUE(absl::IsDeadlineExceeded(exchange->configure(group)));
    });
}

TEST(Exchange, SixteenParticipantsOverMixedWires) {
    const Ranks ranks(16, Wiring::kMixed);
    onThreads(16, [&](size_t i) {
        Exchange* exchange = exchangeOf(ranks, i);
        ASSERT_TRUE(exchange->configure(ranks.group(ranks.all(), i, {1, 1, 1, 1})).ok());
        EXPECT_TRUE(stepIsRight(ranks, *exchange, ranks.all(), i, 1));
    });
}

TEST(Exchange, AGroupMayShrinkAndGrow) {
    const Ranks ranks(3, Wiring::kMixed);
    onThreads(3, [&](size_t i) {
        Exchange* exchange = exchangeOf(ranks, i);
        ASSERT_TRUE(exchange->configure(ranks.group({0, 1, 2}, i, {1, 1, 1, 1})).ok());
        ASSERT_TRUE(stepIsRight(ranks, *exchange, {0, 1, 2}, i, 1));
        if (i != 1) {
            ASSERT_TRUE(exchange->configure(ranks.group({0, 2}, i, {1, 2, 2, 1})).ok());
            ASSERT_TRUE(stepIsRight(ranks, *exchange, {0, 2}, i, 2));
        }
        ASSERT_TRUE(exchange->configure(ranks.group({0, 1, 2}, i, {1, 3, 3, 1})).ok());
        ASSERT_TRUE(stepIsRight(ranks, *exchange, {0, 1, 2}, i, 3));
    });
}

TEST(Exchange, OneChunkInFlightIsEnough) {
    const Ranks ranks(3, Wiring::kTcp);
    onThreads(3, [&](size_t i) {
        ExchangeOptions options = ranks.options(i);
        options.chunksInFlight = 1;
        options.chunkBytes = 1000;
        Exchange* exchange = ranks.keep(i, std::move(makeExchange(options).value()));
        ASSERT_TRUE(exchange->configure(ranks.group(ranks.all(), i, {1, 1, 1, 1})).ok());
        EXPECT_TRUE(stepIsRight(ranks, *exchange, ranks.all(), i, 1));
    });
}

TEST(Exchange, AnotherSecretIsRefused) {
    for (const Wiring wiring : {Wiring::kShm, Wiring::kDirect, Wiring::kTcp}) {
        const Ranks ranks(2, wiring);
        std::vector<Exchange*> exchanges;
        for (size_t i = 0; i < 2; ++i) exchanges.push_back(exchangeOf(ranks, i));
        std::atomic<size_t> refused{0};
        onThreads(2, [&](size_t i) {
            ExchangeGroup group = ranks.group(ranks.all(), i, {1, 1, 1, 1});
            group.secret.words[0] ^= i;
            const absl::Status s = exchanges[i]->configure(group);
            EXPECT_FALSE(s.ok());
            if (!absl::IsPermissionDenied(s)) return;
            // Over memory either sees it, over TCP the caller is told; the other need not wait on.
            ++refused;
            EXPECT_EQ(exchanges[i]->failedPeers().at(0).replica, ranks.replica(1 - i));
            EXPECT_EQ(exchanges[i]->failedPeers().at(0).fault, PeerFault::kRefused);
            exchanges[1 - i]->abort(group.key, "refused");
        });
        EXPECT_GE(refused, 1u) << testing::wiringName(wiring);
    }
}

TEST(Exchange, WhoDoesNotComeIsNamed) {
    for (const Wiring wiring : {Wiring::kShm, Wiring::kTcp, Wiring::kMixed}) {
        const Ranks ranks(3, wiring);
        onThreads(2, [&](size_t i) {
            Exchange* exchange = exchangeOf(ranks, i);
            ExchangeGroup group = ranks.group(ranks.all(), i, {1, 1, 1, 1});
            group.connectTimeout = 300 * kMillisecond;
            const absl::Status s = exchange->configure(group);
            EXPECT_TRUE(absl::IsDeadlineExceeded(s)) << s;
            // On a busy machine the other one may be late as well.
            const std::vector<FailedPeer> failed = exchange->failedPeers();
            ASSERT_FALSE(failed.empty());
            EXPECT_EQ(failed.back().replica, ranks.replica(2));
            EXPECT_EQ(failed.back().fault, PeerFault::kTimeout);
        });
    }
}

TEST(Exchange, StrangersAtTheDoorDoNotDisturb) {
    const Ranks ranks(2, Wiring::kTcp);
    std::mt19937_64 random(3);
    std::vector<UniqueFd> strangers;
    for (size_t k = 0; k < 40; ++k) {
        strangers.push_back(std::move(beginConnect(localAddress(ranks.listener(0)), "").value()));
        std::string bytes(k * 5, '\0');  // from nothing over a truncated hello to too much
        for (char& c : bytes) c = static_cast<char>(random());
        ::send(strangers.back().get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    }
    onThreads(2, [&](size_t i) {
        Exchange* exchange = exchangeOf(ranks, i);
        const absl::Status s = exchange->configure(ranks.group(ranks.all(), i, {1, 1, 1, 1}));
        ASSERT_TRUE(s.ok()) << s;
        EXPECT_TRUE(stepIsRight(ranks, *exchange, ranks.all(), i, 1));
    });
}

TEST(Exchange, DifferentBucketSizesEndInAnErrorNotInAHang) {
    for (const Wiring wiring : {Wiring::kShm, Wiring::kDirect, Wiring::kTcp}) {
        const Ranks ranks(2, wiring);
        std::vector<Exchange*> exchanges(2);
        onThreads(2, [&](size_t i) {
            exchanges[i] = exchangeOf(ranks, i);
            ASSERT_TRUE(exchanges[i]->configure(ranks.group(ranks.all(), i, {1, 1, 1, 1})).ok());
            const std::vector<float> input(i == 0 ? 100 : 200, 1.0f);
            std::vector<float> output(input.size());
            const absl::Status s = ranks.reduce(i, *exchanges[i], 0, input, output);
            // The first to see it breaks the connection off.
            EXPECT_TRUE(absl::IsDataLoss(s) || absl::IsUnavailable(s)) << s;
            EXPECT_FALSE(ranks.reduce(i, *exchanges[i], 1, input, output).ok())
                << "it stays broken";
        });
    }
}

TEST(Exchange, RefusesAMalformedGroup) {
    const Ranks ranks(2, Wiring::kShm);
    Exchange* exchange = exchangeOf(ranks, 0);
    ExchangeGroup group = ranks.group(ranks.all(), 0, {1, 1, 1, 1});
    std::swap(group.peers[0], group.peers[1]);
    EXPECT_TRUE(absl::IsInvalidArgument(exchange->configure(group)));
    group = ranks.group(ranks.all(), 1, {1, 1, 1, 1});
    EXPECT_TRUE(absl::IsInvalidArgument(exchange->configure(group))) << "self is somebody else";
    group = ranks.group(ranks.all(), 0, {1, 1, 1, 1});
    group.algorithm = Algorithm::kRing;
    EXPECT_TRUE(absl::IsInvalidArgument(exchange->configure(group))) << "a ring over memory";
    EXPECT_TRUE(absl::IsFailedPrecondition(exchange->reduce(0, {}, {})));
    EXPECT_FALSE(makeExchange({}).ok());
}

}  // namespace
}  // namespace bulkhead::runtime
