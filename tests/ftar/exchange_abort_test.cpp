// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <thread>

#include "backend/runtime/ftar/exchange.h"
#include "tests/ftar/exchange_group.h"

namespace bulkhead::runtime {
namespace {

using testing::gradient;
using testing::Ranks;
using testing::sameBits;
using testing::Wiring;

constexpr size_t kCount = 100'000;

/// Two or three connected exchanges in one process; the timeout is an hour, so that whatever ends a
/// wait in these tests is not the timeout.
class ExchangeAbortTest : public ::testing::TestWithParam<Wiring> {
  protected:
    ExchangeAbortTest() : ranks_(3, GetParam()), faults_(clock_) {
        for (size_t i = 0; i < 3; ++i)
            exchanges_.push_back(
                std::move(makeExchange(ranks_.options(i, i == 0 ? &faults_ : nullptr)).value()));
    }

    void configureAll(const std::vector<size_t>& members, ExchangeKey key, MonoNs timeout) {
        std::vector<std::thread> threads;
        for (size_t m : members)
            threads.emplace_back([this, m, members, key, timeout] {
                ExchangeGroup group = ranks_.group(members, m, key);
                group.chunkTimeout = timeout;
                const absl::Status s = exchanges_[m]->configure(group);
                EXPECT_TRUE(s.ok()) << s;
            });
        for (std::thread& t : threads) t.join();
    }

    /// reduce() on a thread of its own for each of `members`.
    void reduceAll(const std::vector<size_t>& members, std::vector<absl::Status>& status,
                   const std::function<void()>& meanwhile) {
        status.resize(exchanges_.size());
        outputs_.assign(exchanges_.size(), std::vector<float>(kCount));
        inputs_.resize(exchanges_.size());
        std::vector<std::thread> threads;
        for (size_t m : members) {
            inputs_[m] = gradient(m, 1, 0, kCount);
            threads.emplace_back([&, m] {
                status[m] = ranks_.reduce(m, *exchanges_[m], 0, inputs_[m], outputs_[m]);
            });
        }
        meanwhile();
        for (std::thread& t : threads) t.join();
        for (size_t m : members) EXPECT_TRUE(sameBits(inputs_[m], gradient(m, 1, 0, kCount)));
    }

    SystemClock clock_;
    Ranks ranks_;
    NetworkFaults faults_;
    std::vector<std::unique_ptr<Exchange>> exchanges_;
    std::vector<std::vector<float>> inputs_, outputs_;
};

TEST_P(ExchangeAbortTest, EndsAWaitWithTheFirstReasonAndASmallerGroupGoesOn) {
    configureAll({0, 1, 2}, {1, 1, 1, 1}, 3600 * kSecond);
    std::vector<absl::Status> status;
    reduceAll({0, 2}, status, [&] {
        for (size_t m : {0u, 2u}) {
            exchanges_[m]->abort({1, 1, 1, 1}, "replica 11 died");
            exchanges_[m]->abort({1, 1, 1, 1}, "a later reason");
        }
    });
    for (size_t m : {0u, 2u}) {
        EXPECT_TRUE(absl::IsAborted(status[m])) << status[m];
        EXPECT_EQ(status[m].message(), "replica 11 died");
        EXPECT_TRUE(exchanges_[m]->failedPeers().empty());
    }
    configureAll({0, 2}, {1, 2, 1, 2}, 3600 * kSecond);
    reduceAll({0, 2}, status, [] {});
    for (size_t m : {0u, 2u}) {
        ASSERT_TRUE(status[m].ok()) << status[m];
        EXPECT_TRUE(sameBits(outputs_[m], ranks_.sum({0, 2}, 1, 0, kCount)));
    }
}

TEST_P(ExchangeAbortTest, AnAbortOfAnOlderExchangeDoesNotTouchThis) {
    configureAll({0, 1, 2}, {1, 2, 7, 1}, 3600 * kSecond);
    for (auto& e : exchanges_) e->abort({1, 1, 9, 9}, "old news");
    std::vector<absl::Status> status;
    reduceAll({0, 1, 2}, status, [] {});
    for (const absl::Status& s : status) EXPECT_TRUE(s.ok()) << s;
}

TEST_P(ExchangeAbortTest, AnAbortThatComesBeforeConfigureIsRemembered) {
    exchanges_[0]->abort({1, 1, 1, 1}, "void");
    EXPECT_TRUE(
        absl::IsAborted(exchanges_[0]->configure(ranks_.group(ranks_.all(), 0, {1, 1, 1, 1}))));
    configureAll({0, 1, 2}, {1, 1, 1, 2}, 3600 * kSecond);
}

TEST_P(ExchangeAbortTest, EndsAConfigureThatWaitsForPeers) {
    absl::Status status;
    std::thread waiting([&] {
        ExchangeGroup group = ranks_.group(ranks_.all(), 0, {1, 1, 1, 1});
        group.connectTimeout = 3600 * kSecond;
        status = exchanges_[0]->configure(group);
    });
    exchanges_[0]->abort({1, 1, 1, 1}, "void");
    waiting.join();
    EXPECT_TRUE(absl::IsAborted(status)) << status;
}

TEST_P(ExchangeAbortTest, AnAbortAfterTheSumsLeavesTheConnections) {
    configureAll({0, 1, 2}, {1, 1, 1, 1}, 3600 * kSecond);
    std::vector<absl::Status> status;
    reduceAll({0, 1, 2}, status, [] {});
    exchanges_[1]->abort({1, 1, 1, 1}, "too late to matter");
    configureAll({0, 1, 2}, {1, 1, 2, 1}, 3600 * kSecond);
    reduceAll({0, 1, 2}, status, [] {});
    for (const absl::Status& s : status) EXPECT_TRUE(s.ok()) << s;
}

TEST_P(ExchangeAbortTest, ASilentPeerIsAccusedByAll) {
    configureAll({0, 1, 2}, {1, 1, 1, 1}, 400 * kMillisecond);
    std::vector<absl::Status> status;
    reduceAll({0, 1, 2}, status, [] {});  // in the first sum it may still wait for connections
    for (size_t m : {0u, 1u, 2u}) ASSERT_TRUE(status[m].ok()) << status[m];
    reduceAll({0, 2}, status, [] {});
    for (size_t m : {0u, 2u}) {
        EXPECT_TRUE(absl::IsDeadlineExceeded(status[m])) << status[m];
        // On a busy machine the other one may be late as well.
        bool accused = false;
        for (const FailedPeer& failed : exchanges_[m]->failedPeers())
            accused = accused ||
                      (failed.replica == ranks_.replica(1) && failed.fault == PeerFault::kTimeout);
        // In tiers a member waits for its host's carrier, who waits for the other host's.
        EXPECT_TRUE(accused || (ranks_.tiered() && m == 2));
        EXPECT_GT(exchanges_[m]->stats().waitedMs, 0);
    }
}

/// A peer that still waits for the connection of another one has not begun.
TEST_P(ExchangeAbortTest, WhoBeginsLateInTheFirstSumIsNotAccused) {
    constexpr MonoNs kChunk = 100 * kMillisecond;
    configureAll({0, 1, 2}, {1, 1, 1, 1}, kChunk);
    std::vector<absl::Status> status;
    reduceAll({0, 2}, status, [&] {
        const MonoNs begun = clock_.now();
        while (clock_.now() - begun < 3 * kChunk) std::this_thread::yield();
        inputs_[1] = gradient(1, 1, 0, kCount);
        status[1] = ranks_.reduce(1, *exchanges_[1], 0, inputs_[1], outputs_[1]);
    });
    for (size_t m : {0u, 1u, 2u}) {
        EXPECT_TRUE(status[m].ok()) << status[m];
        EXPECT_TRUE(exchanges_[m]->failedPeers().empty());
    }
}

TEST_P(ExchangeAbortTest, ACutReplicaIsAccusedByTheOthersAndMayComeBack) {
    configureAll({0, 1, 2}, {1, 1, 1, 1}, 300 * kMillisecond);
    std::vector<absl::Status> status;
    reduceAll({0, 1, 2}, status, [] {});  // the first sum has more patience
    faults_.cut(3600 * kSecond);
    reduceAll({0, 1, 2}, status, [&] {
        // Behind the cut nothing but the abort ends the wait.
        exchanges_[0]->abort({1, 1, 1, 0}, "not this one");
        while (exchanges_[1]->failedPeers().empty() || exchanges_[2]->failedPeers().empty())
            std::this_thread::yield();
        exchanges_[0]->abort({1, 1, 1, 1}, "cut off");
    });
    EXPECT_FALSE(status[0].ok());
    for (size_t m : {1u, 2u}) {
        const auto failed = exchanges_[m]->failedPeers();
        ASSERT_FALSE(failed.empty());
        EXPECT_TRUE(std::any_of(failed.begin(), failed.end(), [&](const FailedPeer& f) {
            return f.replica == ranks_.replica(0);
        }));
    }
    faults_.clear();
    configureAll({0, 1, 2}, {1, 1, 1, 2}, 60 * kSecond);
    reduceAll({0, 1, 2}, status, [] {});
    for (size_t m = 0; m < 3; ++m)
        EXPECT_TRUE(sameBits(outputs_[m], ranks_.sum({0, 1, 2}, 1, 0, kCount))) << status[m];
}

TEST_P(ExchangeAbortTest, ADelaySlowsButDoesNotBreak) {
    configureAll({0, 1, 2}, {1, 1, 1, 1}, 60 * kSecond);
    const MonoNs start = clock_.now();
    faults_.delay(20 * kMillisecond, 3600 * kSecond);
    std::vector<absl::Status> status;
    reduceAll({0, 1, 2}, status, [] {});
    for (const absl::Status& s : status) EXPECT_TRUE(s.ok()) << s;
    EXPECT_GE(clock_.now() - start, 80 * kMillisecond) << "two pieces of two rounds, both ways";
}

TEST_P(ExchangeAbortTest, AResetBreaksTcpPairsAndLeavesMemoryAlone) {
    configureAll({0, 1, 2}, {1, 1, 1, 1}, 60 * kSecond);
    faults_.reset();
    if (GetParam() == Wiring::kShm || GetParam() == Wiring::kDirect) {
        std::vector<absl::Status> all;
        reduceAll({0, 1, 2}, all, [] {});
        for (const absl::Status& s : all) EXPECT_TRUE(s.ok()) << s;
        return;
    }
    const std::vector<float> input = gradient(0, 1, 0, 1000);
    std::vector<float> output(input.size());
    const absl::Status status = ranks_.reduce(0, *exchanges_[0], 0, input, output);
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_FALSE(exchanges_[0]->failedPeers().empty());
}

INSTANTIATE_TEST_SUITE_P(Wirings, ExchangeAbortTest, testing::kWirings,
                         [](const auto& info) { return testing::wiringName(info.param); });

}  // namespace
}  // namespace bulkhead::runtime
