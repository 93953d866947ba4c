// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "backend/runtime/ftar/exchange.h"
#include "tests/ftar/exchange_group.h"
#include "tests/ftar/relay.h"

namespace bulkhead::runtime {
namespace {

using testing::gradient;
using testing::Ranks;
using testing::Relay;
using testing::sameBits;
using testing::Wiring;

constexpr size_t kRanks = 4;
constexpr size_t kValues = 60'000;
constexpr int kMoments = 24;

/// Four connected exchanges, one exchange of one bucket at a time, by as many threads.
class AbortAnywhereTest : public ::testing::TestWithParam<Wiring> {
  protected:
    void make(const Ranks& ranks, const Clock& clock) {
        exchanges_.clear();
        for (size_t i = 0; i < kRanks; ++i) {
            ExchangeOptions options = ranks.options(i);
            options.clock = &clock;
            exchanges_.push_back(std::move(makeExchange(options)).value());
        }
    }

    /// Results of each member's configure() and reduce(). Inputs must be whole, sums that are there
    /// right.
    std::vector<absl::Status> exchangeOnce(const Ranks& ranks, const ExchangeKey& key,
                                           const std::string& firstAt) {
        std::vector<absl::Status> status(kRanks);
        std::vector<std::thread> threads;
        for (size_t i = 0; i < kRanks; ++i)
            threads.emplace_back([&, i] {
                ExchangeGroup group = ranks.group(ranks.all(), i, key);
                if (!firstAt.empty()) group.peers[0].data = firstAt;
                group.chunkTimeout = group.connectTimeout = 3600 * kSecond;
                status[i] = exchanges_[i]->configure(group);
                if (!status[i].ok()) return;
                const std::vector<float> input = gradient(i, 1, 0, kValues);
                std::vector<float> output(kValues);
                status[i] = ranks.reduce(i, *exchanges_[i], 0, input, output);
                EXPECT_TRUE(sameBits(input, gradient(i, 1, 0, kValues)));
                const bool right = sameBits(output, ranks.sum(ranks.all(), 1, 0, kValues));
                EXPECT_TRUE(right || !status[i].ok());
            });
        for (std::thread& t : threads) t.join();
        return status;
    }

    void abortAll(const ExchangeKey& key) {
        for (auto& e : exchanges_) e->abort(key, "now");
    }

    /// Aborts come one after the other: who is told late may first see the connections of who was
    /// told early in configure() go.
    static void expectOkOrAborted(const std::vector<absl::Status>& all) {
        for (const absl::Status& s : all)
            EXPECT_TRUE(s.ok() || absl::IsAborted(s) || absl::IsUnavailable(s)) << s;
    }
    static void expectOk(const std::vector<absl::Status>& all) {
        for (const absl::Status& s : all) EXPECT_TRUE(s.ok()) << s;
    }

    std::vector<std::unique_ptr<Exchange>> exchanges_;
};

/// Calls `trip` when it is asked for the time for the n-th time.
class TrippingClock final : public Clock {
  public:
    MonoNs now() const override {
        if (++asked_ == tripAt_) trip();
        return clock_.now();
    }
    int64_t unixNs() const override { return clock_.unixNs(); }
    uint64_t asked() const { return asked_; }
    void tripAfter(uint64_t more) { tripAt_ = asked_ + more; }
    std::function<void()> trip;

  private:
    SystemClock clock_;
    mutable std::atomic<uint64_t> asked_{0};
    std::atomic<uint64_t> tripAt_{0};
};

TEST_P(AbortAnywhereTest, AtWhateverMomentTheRedoHasTheRightSum) {
    const Ranks ranks(kRanks, GetParam());
    TrippingClock clock;
    make(ranks, clock);
    expectOk(exchangeOnce(ranks, {1, 1, 1, 1}, ""));
    const uint64_t whole = clock.asked();
    for (int moment = 0; moment < kMoments; ++moment) {
        const auto step = static_cast<uint64_t>(moment + 2);
        const ExchangeKey first{1, step, step, 1};
        clock.trip = [&] { abortAll(first); };
        clock.tripAfter(1 + whole * static_cast<uint64_t>(moment) / kMoments);
        expectOkOrAborted(exchangeOnce(ranks, first, ""));
        clock.tripAfter(0);
        expectOk(exchangeOnce(ranks, {1, step, step, 2}, ""));
    }
}

INSTANTIATE_TEST_SUITE_P(Wirings, AbortAnywhereTest, testing::kWirings,
                         [](const auto& info) { return testing::wiringName(info.param); });

/// Over TCP, after every so many bytes that the others and the first rank said to each other.
class AbortAtByteTest : public AbortAnywhereTest {};

TEST_P(AbortAtByteTest, TheRedoHasTheRightSum) {
    const Ranks ranks(kRanks, GetParam());
    const SystemClock clock;
    make(ranks, clock);
    Relay relay(localAddress(ranks.listener(0)));
    relay.allow(~uint64_t{0});
    expectOk(exchangeOnce(ranks, {1, 1, 1, 1}, relay.address()));
    const uint64_t whole = relay.passed();
    ASSERT_GT(whole, 100'000u);
    std::mt19937_64 random(7);
    for (int moment = 0; moment < kMoments; ++moment) {
        const auto step = static_cast<uint64_t>(moment + 2);
        const ExchangeKey first{1, step, step, 1};
        relay.allow(random() % (whole / 2));
        std::thread aborts([&] {
            relay.untilDry();
            abortAll(first);
        });
        const auto status = exchangeOnce(ranks, first, relay.address());
        aborts.join();
        expectOkOrAborted(status);
        EXPECT_TRUE(absl::IsAborted(status[0])) << status[0];
        relay.allow(~uint64_t{0});
        expectOk(exchangeOnce(ranks, {1, step, step, 2}, relay.address()));
    }
}

INSTANTIATE_TEST_SUITE_P(Wirings, AbortAtByteTest,
                         ::testing::Values(Wiring::kTcp, Wiring::kLanes, Wiring::kRing,
                                           Wiring::kTiers),
                         [](const auto& info) { return testing::wiringName(info.param); });

}  // namespace
}  // namespace bulkhead::runtime
