// SPDX-License-Identifier: Apache-2.0
// One copy of a step's state for all that want it, made while the program goes on.
#include "backend/runtime/replica/snapshot_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "backend/common/threads.h"

namespace bulkhead::runtime {
namespace {

/// A program of which nothing but its state counts. Beside training it copies on a thread, which
/// begins when it is let.
class Program final : public TrainingProgram {
  public:
    explicit Program(bool beside) : beside_(beside) {}
    ~Program() override { awaitCopies(); }

    void change() { state_.front() = std::byte{++value_}; }
    std::vector<std::byte> state() const { return state_; }
    void hold(bool hold) {
        {
            const MutexLock lock(mutex_);
            held_ = hold;
        }
        changed_.notify_all();
    }
    void refuse() { answer_ = absl::ResourceExhaustedError("no memory"); }
    /// The next copy goes into memory that is lent; what is given back is told by the pointer.
    std::weak_ptr<void> lend() {
        loan_ = std::make_shared<int>();
        return loan_;
    }
    int copies() const { return copies_; }
    int waits() const { return waits_; }

    void snapshot(StateBytes* to, std::function<void(absl::Status)> done) override {
        finish();
        ++copies_;
        const auto copy = [this, to, done = std::move(done)] {
            if (loan_ != nullptr) *to = StateBytes(lent_, std::exchange(loan_, nullptr));
            to->resize(state_.size());
            std::ranges::copy(state_, to->begin());
            done(answer_);
        };
        if (!beside_) return copy();
        thread_ = std::thread([this, copy] {
            {
                MutexLock lock(mutex_);
                changed_.wait(lock,
                              [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !held_; });
            }
            copy();
        });
    }
    void awaitCopies() override {
        ++waits_;
        finish();
    }

    absl::Status build(const BuildOrder&) override { return absl::OkStatus(); }
    absl::Status warmUp() override { return absl::OkStatus(); }
    protocol::ModelDescribed describe() const override { return {}; }
    uint64_t stateBytes() const override { return state_.size(); }
    uint64_t parameterBytes() const override { return state_.size(); }
    absl::Status exportState(uint64_t, std::span<std::byte>) override { return absl::OkStatus(); }
    absl::Status importState(uint64_t, std::span<const std::byte>) override {
        return absl::OkStatus();
    }
    absl::Status imported() override { return absl::OkStatus(); }
    absl::StatusOr<uint64_t> stateHash() override { return 0; }
    std::span<float> gradient() override { return {}; }
    std::span<float> reduced() override { return {}; }
    absl::StatusOr<double> sumOfSquares(std::span<const float>) override { return 0; }
    absl::Status apply(const CommitRecord&, std::span<const float>) override {
        return absl::OkStatus();
    }
    absl::StatusOr<std::vector<int32_t>> expertShard() override { return std::vector<int32_t>{}; }
    absl::Status adoptLayout(const std::vector<int32_t>&) override { return absl::OkStatus(); }
    absl::StatusOr<uint64_t> moveLayout(const std::vector<int32_t>&) override { return 0; }
    absl::Status settleLayout(bool) override { return absl::OkStatus(); }
    void interrupt() override {}

  private:
    void finish() {
        if (thread_.joinable()) thread_.join();
    }
    const bool beside_;
    std::vector<std::byte> state_ = std::vector<std::byte>(1 << 16);
    std::vector<std::byte> lent_ = std::vector<std::byte>(state_.size());
    std::shared_ptr<void> loan_;
    uint8_t value_ = 0;
    absl::Status answer_;
    int copies_ = 0, waits_ = 0;
    Mutex mutex_;
    ConditionVariable changed_;
    bool held_ ABSL_GUARDED_BY(mutex_) = false;
    std::thread thread_;
};

StateSnapshot label(uint64_t step) {
    StateSnapshot label;
    label.step = step;
    label.hash = 100 + step;
    return label;
}

class SnapshotCacheTest : public ::testing::TestWithParam<bool> {
  protected:
    SnapshotCache::Taker into(SnapshotCache::Snapshot* to) {
        return [to](SnapshotCache::Snapshot snapshot) { *to = std::move(snapshot); };
    }
    /// Changes the state like a rank at a commit.
    void step() {
        program_.awaitCopies();
        program_.change();
        cache_.changed();
    }
    Program program_{GetParam()};
    absl::Status failure_;
    SnapshotCache cache_{&program_, [this](absl::Status why) { failure_ = std::move(why); }};
};

TEST_P(SnapshotCacheTest, AllWhoWantTheStateOfAStepShareOneCopy) {
    SnapshotCache::Snapshot joiner, checkpoint, late;
    cache_.give(label(1), into(&joiner));
    cache_.give(label(1), into(&checkpoint));
    ASSERT_TRUE(cache_.await(label(1)).ok());
    cache_.give(label(1), into(&late));
    ASSERT_NE(joiner, nullptr);
    EXPECT_EQ(joiner, checkpoint);
    EXPECT_EQ(joiner, late);
    EXPECT_EQ(joiner->step, 1u);
    EXPECT_EQ(joiner->hash, 101u);
    EXPECT_TRUE(std::ranges::equal(joiner->bytes, program_.state()));
    EXPECT_EQ(program_.copies(), 1);
}

TEST_P(SnapshotCacheTest, EachStepHasItsOwnInTheMemoryThatNobodyHolds) {
    const std::byte* memory = nullptr;
    for (uint64_t n = 1; n < 6; ++n) {
        const auto copy = cache_.await(label(n));
        ASSERT_TRUE(copy.ok()) << copy.status();
        EXPECT_EQ((*copy)->step, n);
        EXPECT_TRUE(std::ranges::equal((*copy)->bytes, program_.state()));
        EXPECT_TRUE(memory == nullptr || (*copy)->bytes.data() == memory);
        memory = (*copy)->bytes.data();
        step();
    }
    EXPECT_EQ(program_.copies(), 5);
}

TEST_P(SnapshotCacheTest, WhatOthersHoldIsNotWrittenOver) {
    SnapshotCache::Snapshot joiner;
    cache_.give(label(1), into(&joiner));
    step();
    const StateBytes held = joiner->bytes;
    for (uint64_t n = 2; n < 6; ++n) {
        ASSERT_TRUE(cache_.await(label(n)).ok());
        step();
    }
    EXPECT_EQ(joiner->step, 1u);
    EXPECT_EQ(joiner->bytes, held);
}

TEST_P(SnapshotCacheTest, LentMemoryGoesBackWithTheStateUnlessSomebodyHoldsIt) {
    std::weak_ptr<void> loan = program_.lend();
    ASSERT_TRUE(cache_.await(label(1)).ok());
    EXPECT_FALSE(loan.expired());
    step();
    EXPECT_TRUE(loan.expired());
    loan = program_.lend();
    SnapshotCache::Snapshot joiner;
    cache_.give(label(2), into(&joiner));
    const std::vector<std::byte> before = program_.state();
    step();
    ASSERT_NE(joiner, nullptr);
    EXPECT_FALSE(loan.expired());
    EXPECT_TRUE(std::ranges::equal(joiner->bytes, before));
    joiner.reset();
    EXPECT_TRUE(loan.expired());
}

TEST_P(SnapshotCacheTest, WhoAskedGetsTheOldStateWhenAStepWithoutAnUpdateFollows) {
    SnapshotCache::Snapshot first, second;
    program_.hold(true);
    cache_.give(label(1), into(&first));
    cache_.changed();
    program_.hold(false);
    cache_.give(label(2), into(&second));
    ASSERT_TRUE(cache_.await(label(2)).ok());
    ASSERT_TRUE(first != nullptr && second != nullptr);
    EXPECT_EQ(first->step, 1u);
    EXPECT_EQ(second->step, 2u);
    EXPECT_EQ(program_.copies(), 2);
}

TEST_P(SnapshotCacheTest, ACopyThatCannotBeMadeIsToldAndGoesToNobody) {
    SnapshotCache::Snapshot joiner;
    program_.refuse();
    cache_.give(label(1), into(&joiner));
    EXPECT_TRUE(absl::IsResourceExhausted(cache_.await(label(1)).status()));
    EXPECT_TRUE(absl::IsResourceExhausted(failure_));
    EXPECT_EQ(joiner, nullptr);
}

INSTANTIATE_TEST_SUITE_P(Copies, SnapshotCacheTest, ::testing::Bool(), [](const auto& info) {
    return std::string(info.param ? "BesideTraining" : "AtOnce");
});

class BesideTraining : public SnapshotCacheTest {};
TEST_P(BesideTraining, OnlyTheNextUpdateWaits) {
    SnapshotCache::Snapshot joiner;
    program_.hold(true);
    cache_.give(label(1), nullptr);
    cache_.give(label(1), into(&joiner));
    cache_.give(label(1), nullptr);
    EXPECT_EQ(program_.waits(), 0);
    EXPECT_EQ(joiner, nullptr);
    program_.hold(false);
    step();
    EXPECT_EQ(program_.waits(), 1);
    EXPECT_NE(joiner, nullptr);
}
INSTANTIATE_TEST_SUITE_P(Copies, BesideTraining, ::testing::Values(true));

}  // namespace
}  // namespace bulkhead::runtime
