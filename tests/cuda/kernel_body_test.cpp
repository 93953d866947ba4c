// SPDX-License-Identifier: Apache-2.0
// The kernel alone, spoken to as hostile or careless a host might.
#include <gtest/gtest.h>

#include <vector>

#include "tests/cuda/thread_machine.h"

namespace bulkhead::cuda {
namespace {

using testing::ThreadMachine;
using testing::World;

class KernelBody : public ::testing::Test {
  protected:
    KernelBody() : machine_(world_, 1, 3) {
        queue_ = static_cast<Queue*>(machine_.allocatePinned(sizeof(Queue)).value());
    }
    ~KernelBody() override { machine_.freePinned(queue_); }

    Command good(float* to) {
        Command command{};
        command.epoch = 5;
        command.sum.to = reinterpret_cast<uint64_t>(to);
        command.sum.count = 100;
        command.sum.sources = 2;
        command.sum.from[0] = command.sum.from[1] = reinterpret_cast<uint64_t>(ones_.data());
        return command;
    }
    void post(const Command& command) {
        Lane& lane = queue_->lanes[0];
        lane.slots[lane.posted % kSlots] = command;
        storeRelease(&lane.posted, lane.posted + 1);
    }
    /// Everything that was told, in one run of one block.
    std::vector<Outcome> run() {
        const uint64_t before = queue_->lanes[0].finished;
        storeRelease(&queue_->control.stop, ++run_);
        EXPECT_TRUE(machine_.launch(queue_, 1, run_).ok());
        while (loadAcquire(&queue_->lanes[0].left) != run_) relax();
        std::vector<Outcome> outcomes;
        for (uint64_t i = before; i < queue_->lanes[0].finished; ++i)
            outcomes.push_back(queue_->lanes[0].outcome[i % kSlots]);
        return outcomes;
    }

    World world_;
    ThreadMachine machine_;
    Queue* queue_ = nullptr;
    uint64_t run_ = 0;
    std::vector<float> ones_ = std::vector<float>(100, 1.0f);
};

TEST_F(KernelBody, doesWhatWasToldBeforeItEnds) {
    std::vector<float> a(100), b(100);
    post(good(a.data()));
    post(good(b.data()));
    EXPECT_EQ(run(), (std::vector{Outcome::kDone, Outcome::kDone}));
    EXPECT_EQ(a, std::vector<float>(100, 2.0f));
    EXPECT_EQ(b, a);
}

TEST_F(KernelBody, dropsCommandsOfClosedEpochsWithoutTouchingTheirMemory) {
    std::vector<float> to(100);
    Command stale = good(reinterpret_cast<float*>(64));  // nobody may write there
    stale.sum.from[1] = 64;
    stale.epoch = 6;
    storeRelease(&queue_->control.fence, 7);
    post(stale);
    Command next = good(to.data());
    next.epoch = 7;
    post(next);
    EXPECT_EQ(run(), (std::vector{Outcome::kStale, Outcome::kDone}));
    EXPECT_EQ(to, std::vector<float>(100, 2.0f));
}

TEST_F(KernelBody, goesOnWhereItsLastRunEnded) {
    std::vector<float> to(100);
    for (uint64_t i = 0; i < kSlots + 3; ++i) {
        to.assign(100, 0.0f);
        post(good(to.data()));
        EXPECT_EQ(run(), std::vector{Outcome::kDone});
        EXPECT_EQ(to, std::vector<float>(100, 2.0f));
    }
}

TEST_F(KernelBody, refusesWhatCannotBeMeant) {
    std::vector<float> to(101);
    const auto refuses = [&](void (*spoil)(Command&)) {
        Command command = good(to.data());
        spoil(command);
        post(command);
        return run() == std::vector{Outcome::kRefused};
    };
    EXPECT_TRUE(refuses([](Command& c) { c.sum.sources = 0; }));
    EXPECT_TRUE(refuses([](Command& c) { c.sum.sources = kMaxSources + 1; }));
    EXPECT_TRUE(refuses([](Command& c) { c.sum.sources = ~0u; }));
    EXPECT_TRUE(refuses([](Command& c) { c.sum.count = kChunk + 1; }));
    EXPECT_TRUE(refuses([](Command& c) { c.sum.count = ~uint64_t{0}; }));
    EXPECT_TRUE(refuses([](Command& c) { c.sum.to = 0; }));
    EXPECT_TRUE(refuses([](Command& c) { c.sum.to += 2; }));
    EXPECT_TRUE(refuses([](Command& c) { c.sum.from[1] = 0; }));
    EXPECT_TRUE(refuses([](Command& c) { c.sum.from[0] += 1; }));
    EXPECT_EQ(to, std::vector<float>(101));
}

TEST_F(KernelBody, anEmptySumIsDoneAndWritesNothing) {
    std::vector<float> to(100, 9.0f);
    Command empty = good(to.data());
    empty.sum.count = 0;
    post(empty);
    EXPECT_EQ(run(), std::vector{Outcome::kDone});
    EXPECT_EQ(to, std::vector<float>(100, 9.0f));
}

}  // namespace
}  // namespace bulkhead::cuda
