// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/step_exchange.h"

#include <gmock/gmock.h>

#include <atomic>
#include <numeric>
#include <random>

#include "absl/base/thread_annotations.h"
#include "backend/common/threads.h"
#include "backend/model/job_spec.h"

namespace bulkhead::runtime {
namespace {

using testing::ElementsAre;

constexpr uint64_t kBucketFloats = 4;

/// Alone in its group: the sum is the gradient, as it is when the bucket is reduced.
class Alone final : public Exchange {
  public:
    absl::Status configure(const ExchangeGroup&) override { return absl::OkStatus(); }
    absl::Status reduce(uint32_t bucket, std::span<const float> input,
                        std::span<float> output) override {
        std::copy(input.begin(), input.end(), output.begin());
        const MutexLock lock(mutex_);
        reduced_.push_back(bucket);
        changed_.notify_all();
        return absl::OkStatus();
    }
    void abort(const ExchangeKey&, std::string_view) override {}
    uint64_t progress() const override { return 0; }
    std::vector<FailedPeer> failedPeers() const override { return {}; }
    ExchangeStats stats() const override { return {}; }

    std::vector<uint32_t> awaitReduced(size_t count) {
        MutexLock lock(mutex_);
        changed_.wait(
            lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return reduced_.size() >= count; });
        return reduced_;
    }

  private:
    Mutex mutex_;
    ConditionVariable changed_;
    std::vector<uint32_t> reduced_ ABSL_GUARDED_BY(mutex_);
};

class StepExchangeTest : public testing::Test {
  protected:
    StepExchangeTest() : gradient_(14), reduced_(14) { exchange_.bind(gradient_, reduced_); }
    void begin() {
        ExchangeGroup group;
        group.key.step = ++step_;
        exchange_.begin({step_, 1, 1}, std::move(group));
    }
    ExchangeResult await() {
        MutexLock lock(mutex_);
        changed_.wait(lock,
                      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return result_.has_value(); });
        return *std::exchange(result_, std::nullopt);
    }

    std::vector<float> gradient_, reduced_;
    uint64_t step_ = 0;
    SystemClock clock_;
    Mutex mutex_;
    ConditionVariable changed_;
    std::optional<ExchangeResult> result_ ABSL_GUARDED_BY(mutex_);
    Alone* alone_ = new Alone;
    StepExchange exchange_{std::unique_ptr<Exchange>(alone_), kBucketFloats * sizeof(float), clock_,
                           [this](ExchangeResult result) {
                               const MutexLock lock(mutex_);
                               result_ = std::move(result);
                               changed_.notify_all();
                           }};
};

// Buckets, from the end: [10, 14), [6, 10), [2, 6), [0, 2).
TEST_F(StepExchangeTest, ABucketLeavesWhenAllOfItIsFinalInWhateverOrder) {
    const uint64_t generation = exchange_.restart();
    begin();
    exchange_.ready(generation, 0, 3);
    exchange_.ready(generation, 12, 14);
    exchange_.ready(generation, 8, 12);  // the end of one bucket, the beginning of the next
    EXPECT_THAT(alone_->awaitReduced(1), ElementsAre(0));
    exchange_.ready(generation, 6, 8);
    EXPECT_THAT(alone_->awaitReduced(2), ElementsAre(0, 1));
    // An exchange that left before this would have taken the zeros.
    std::iota(gradient_.begin(), gradient_.end(), 1.0f);
    exchange_.ready(generation, 3, 6);
    EXPECT_TRUE(await().complete);
    EXPECT_THAT(alone_->awaitReduced(4), ElementsAre(0, 1, 2, 3));
    EXPECT_THAT(std::vector(reduced_.begin(), reduced_.begin() + 6), ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST_F(StepExchangeTest, AnyTilingIsWholeInTheEndAndARedoNeedsNoneAgain) {
    std::mt19937 random(7);
    for (int i = 0; i < 200; ++i) {
        std::vector<uint64_t> cuts = {0, gradient_.size()};
        for (int c = 0; c < 5; ++c) cuts.push_back(random() % (gradient_.size() + 1));
        std::sort(cuts.begin(), cuts.end());
        std::vector<std::pair<uint64_t, uint64_t>> parts;
        for (size_t c = 1; c < cuts.size(); ++c) parts.emplace_back(cuts[c - 1], cuts[c]);
        std::shuffle(parts.begin(), parts.end(), random);
        const uint64_t generation = exchange_.restart();
        begin();
        for (const auto& [from, to] : parts) exchange_.ready(generation, from, to);
        ASSERT_TRUE(await().complete);
    }
    begin();
    EXPECT_TRUE(await().complete);
}

/// Between two members: whoever is in it waits until it is ended.
class Waiting final : public Exchange {
  public:
    absl::Status configure(const ExchangeGroup&) override { return absl::OkStatus(); }
    absl::Status reduce(uint32_t, std::span<const float>, std::span<float>) override {
        MutexLock lock(mutex_);
        ++inside_;
        changed_.notify_all();
        changed_.wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return aborted_; });
        --inside_;
        return absl::AbortedError(why_);
    }
    void abort(const ExchangeKey&, std::string_view why) override {
        const MutexLock lock(mutex_);
        aborted_ = true;
        why_ = why;
        changed_.notify_all();
    }
    uint64_t progress() const override { return 0; }
    std::vector<FailedPeer> failedPeers() const override { return {}; }
    ExchangeStats stats() const override { return {}; }
    void awaitInside() {
        MutexLock lock(mutex_);
        changed_.wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return inside_ > 0; });
    }
    int inside() {
        const MutexLock lock(mutex_);
        return inside_;
    }

  private:
    Mutex mutex_;
    ConditionVariable changed_;
    int inside_ ABSL_GUARDED_BY(mutex_) = 0;
    bool aborted_ ABSL_GUARDED_BY(mutex_) = false;
    std::string why_ ABSL_GUARDED_BY(mutex_);
};

TEST(StepExchangeReading, NobodyReadsTheGradientAnyMoreWhenItHasEnded) {
    std::vector<float> gradient(14);
    std::vector<float> reduced(14);
    SystemClock clock;
    auto* waiting = new Waiting;
    std::vector<absl::Status> ends;
    StepExchange exchange(std::unique_ptr<Exchange>(waiting), kBucketFloats * sizeof(float), clock,
                          [&](const ExchangeResult& result) { ends.push_back(result.status); });
    exchange.bind(gradient, reduced);
    ExchangeGroup group;
    group.key.step = 1;
    exchange.ready(exchange.restart(), 0, 14);
    exchange.begin({1, 1, 1}, group);
    waiting->awaitInside();
    exchange.endReading("it is written");
    EXPECT_EQ(waiting->inside(), 0);
    ASSERT_EQ(ends.size(), 1u);
    EXPECT_EQ(ends[0].message(), "it is written");
    exchange.endReading("again");
    EXPECT_EQ(ends.size(), 1u);
}

TEST_F(StepExchangeTest, OneThatWaitsForTheWholeGradientReadsNoneOfIt) {
    const uint64_t generation = exchange_.restart();
    begin();
    exchange_.endReading("another gradient is computed");
    exchange_.ready(generation, 0, ~0ull);
    EXPECT_TRUE(await().complete);
}

TEST_F(StepExchangeTest, OnlyWhatEndedForIsToldToBePoisoned) {
    const uint64_t generation = exchange_.restart();
    begin();
    exchange_.poison(generation, "it is not finite");
    EXPECT_TRUE(await().poisoned);
    exchange_.poison(generation, "too late");
    const uint64_t next = exchange_.restart();
    begin();
    exchange_.ready(next, 0, ~0ull);
    const ExchangeResult result = await();
    EXPECT_TRUE(result.complete);
    EXPECT_FALSE(result.poisoned);
}

TEST(BucketTest, ADeviceExchangesMuchAtATimeUnlessTheJobSaysOtherwise) {
    EXPECT_EQ(bucketBytesFor(0, false), 1u << 20);
    EXPECT_EQ(bucketBytesFor(0, true), 64u << 20);
    EXPECT_EQ(bucketBytesFor(4096, true), 4096u);
    EXPECT_EQ(model::JobSpec().bucketBytes, 0u);
}

TEST_F(StepExchangeTest, AnEndBehindTheGradientIsItsEnd) {
    const uint64_t generation = exchange_.restart();
    begin();
    exchange_.ready(generation, 0, ~0ull);
    EXPECT_TRUE(await().complete);
}

class HandClock final : public Clock {
  public:
    MonoNs now() const override { return at; }
    int64_t unixNs() const override { return at; }
    std::atomic<MonoNs> at{kSecond};
};

TEST(StepExchangeTimes, ABucketThatIsToldAgainCountsOnceTowardsTheWholeGradient) {
    HandClock clock;
    Mutex mutex;
    ConditionVariable changed;
    std::optional<ExchangeResult> result;
    const std::vector<float> gradient(14);
    std::vector<float> reduced(14);
    auto* alone = new Alone;
    StepExchange exchange(std::unique_ptr<Exchange>(alone), kBucketFloats * sizeof(float), clock,
                          [&](ExchangeResult r) {
                              const MutexLock lock(mutex);
                              result = std::move(r);
                              changed.notify_all();
                          });
    exchange.bind(gradient, reduced);
    const uint64_t generation = exchange.restart();
    ExchangeGroup group;
    group.key.step = 1;
    exchange.begin({1, 1, 1}, std::move(group));
    for (int i = 0; i < 4; ++i) exchange.ready(generation, 10, 14);  // of four buckets the first
    alone->awaitReduced(1);
    clock.at = 3 * kSecond;
    exchange.ready(generation, 0, 10);
    MutexLock lock(mutex);
    changed.wait(lock, [&] { return result.has_value(); });
    EXPECT_TRUE(result->complete);
    EXPECT_EQ(result->exchangeMs, 2000);
    EXPECT_EQ(result->exposedMs, 0) << "it ended when the gradient was whole";
}

}  // namespace
}  // namespace bulkhead::runtime
