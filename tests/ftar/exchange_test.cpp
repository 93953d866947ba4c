// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/ftar/exchange.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <functional>
#include <thread>

#include "tests/ftar/exchange_group.h"

namespace bulkhead::runtime {
namespace {

using testing::gradient;
using testing::Ranks;
using testing::reference;
using testing::sameBits;
using testing::Wiring;

void onThreads(size_t n, const std::function<void(size_t)>& body) {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < n; ++i) threads.emplace_back([&body, i] { body(i); });
    for (std::thread& t : threads) t.join();
}

std::unique_ptr<Exchange> exchangeOf(const Ranks& ranks, size_t i,
                                     NetworkFaults* faults = nullptr) {
    return std::move(makeExchange(ranks.options(i, faults)).value());
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
            !sameBits(output, reference(members, step, bucket, count)))
            return false;
    }
    return true;
}

class ExchangeTest : public ::testing::TestWithParam<std::tuple<Wiring, size_t>> {
  protected:
    Wiring wiring() const { return std::get<0>(GetParam()); }
    size_t n() const { return std::get<1>(GetParam()); }
};

TEST_P(ExchangeTest, EverybodyGetsTheBitsOfThePlainSum) {
    const Ranks ranks(n(), wiring());
    onThreads(n(), [&](size_t i) {
        auto exchange = exchangeOf(ranks, i);
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
    const Ranks ranks(n(), wiring());
    onThreads(n(), [&](size_t i) {
        auto exchange = exchangeOf(ranks, i);
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
                         ::testing::Combine(testing::kWirings, ::testing::Values(1, 2, 3, 4, 7)),
                         [](const auto& info) {
                             return testing::wiringName(std::get<0>(info.param)) + "_" +
                                    std::to_string(std::get<1>(info.param));
                         });

TEST(Exchange, SixteenParticipantsOverMixedWires) {
    const Ranks ranks(16, Wiring::kMixed);
    onThreads(16, [&](size_t i) {
        auto exchange = exchangeOf(ranks, i);
        ASSERT_TRUE(exchange->configure(ranks.group(ranks.all(), i, {1, 1, 1, 1})).ok());
        EXPECT_TRUE(stepIsRight(ranks, *exchange, ranks.all(), i, 1));
    });
}

TEST(Exchange, AGroupMayShrinkAndGrow) {
    const Ranks ranks(3, Wiring::kMixed);
    onThreads(3, [&](size_t i) {
        auto exchange = exchangeOf(ranks, i);
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
        auto exchange = makeExchange(options).value();
        ASSERT_TRUE(exchange->configure(ranks.group(ranks.all(), i, {1, 1, 1, 1})).ok());
        EXPECT_TRUE(stepIsRight(ranks, *exchange, ranks.all(), i, 1));
    });
}

TEST(Exchange, AWrongTokenIsRefused) {
    for (const Wiring wiring : {Wiring::kShm, Wiring::kDirect, Wiring::kTcp}) {
        const Ranks ranks(2, wiring);
        std::vector<std::unique_ptr<Exchange>> exchanges;
        for (size_t i = 0; i < 2; ++i) exchanges.push_back(exchangeOf(ranks, i));
        std::atomic<size_t> refused{0};
        onThreads(2, [&](size_t i) {
            ExchangeGroup group = ranks.group(ranks.all(), i, {1, 1, 1, 1});
            group.token ^= i;
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
            auto exchange = exchangeOf(ranks, i);
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
        auto exchange = exchangeOf(ranks, i);
        const absl::Status s = exchange->configure(ranks.group(ranks.all(), i, {1, 1, 1, 1}));
        ASSERT_TRUE(s.ok()) << s;
        EXPECT_TRUE(stepIsRight(ranks, *exchange, ranks.all(), i, 1));
    });
}

TEST(Exchange, DifferentBucketSizesEndInAnErrorNotInAHang) {
    for (const Wiring wiring : {Wiring::kShm, Wiring::kDirect, Wiring::kTcp}) {
        const Ranks ranks(2, wiring);
        // Both live until both have looked: the end of one would be a reset for the other.
        std::vector<std::unique_ptr<Exchange>> exchanges(2);
        onThreads(2, [&](size_t i) {
            exchanges[i] = exchangeOf(ranks, i);
            ASSERT_TRUE(exchanges[i]->configure(ranks.group(ranks.all(), i, {1, 1, 1, 1})).ok());
            const std::vector<float> input(i == 0 ? 100 : 200, 1.0f);
            std::vector<float> output(input.size());
            const absl::Status s = ranks.reduce(i, *exchanges[i], 0, input, output);
            // Whoever sees it first breaks the connection off.
            EXPECT_TRUE(absl::IsDataLoss(s) || absl::IsUnavailable(s)) << s;
            EXPECT_FALSE(ranks.reduce(i, *exchanges[i], 1, input, output).ok())
                << "it stays broken";
        });
    }
}

TEST(Exchange, RefusesAMalformedGroup) {
    const Ranks ranks(2, Wiring::kShm);
    auto exchange = exchangeOf(ranks, 0);
    ExchangeGroup group = ranks.group(ranks.all(), 0, {1, 1, 1, 1});
    std::swap(group.peers[0], group.peers[1]);
    EXPECT_TRUE(absl::IsInvalidArgument(exchange->configure(group)));
    group = ranks.group(ranks.all(), 1, {1, 1, 1, 1});
    EXPECT_TRUE(absl::IsInvalidArgument(exchange->configure(group))) << "self is somebody else";
    EXPECT_TRUE(absl::IsFailedPrecondition(exchange->reduce(0, {}, {})));
    EXPECT_FALSE(makeExchange({}).ok());
}

}  // namespace
}  // namespace bulkhead::runtime
