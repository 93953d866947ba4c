// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/state_store.h"

#include <gtest/gtest.h>

#include <thread>

namespace bulkhead::runtime {
namespace {

CommitRecord record(uint64_t step, uint64_t layout = 0, uint64_t lineage = 1) {
    CommitRecord r;
    r.step = step;
    r.layout = layout;
    r.lineage = lineage;
    return r;
}

const Floats kGradient(10, 1.5f);

TEST(StateStore, keepsTheNewestDeltasWithinItsBudget) {
    StateStore store;
    store.follow();
    store.setDeltaBudget(9 * 10 * sizeof(float));
    for (uint64_t step = 1; step <= 15; ++step) store.putDelta(record(step), kGradient);
    EXPECT_EQ(store.window(), (std::pair<uint64_t, uint64_t>{7, 15}));
    EXPECT_EQ(store.deltaBytes(), 360u);
    EXPECT_EQ(store.delta(6), nullptr);
    EXPECT_EQ(store.delta(14)->record.step, 14u);
    EXPECT_EQ(store.delta(14)->reduced, kGradient);
    EXPECT_EQ(store.delta(16), nullptr);
}

TEST(StateStore, keepsThoseOfEightStepsHoweverLargeTheyAre) {
    StateStore store;
    store.follow();
    store.setDeltaBudget(1);
    for (uint64_t step = 1; step <= 15; ++step) store.putDelta(record(step), kGradient);
    CommitRecord skipped = record(16);
    skipped.skip = true;
    store.putDelta(skipped, {});
    EXPECT_EQ(store.window(), (std::pair<uint64_t, uint64_t>{8, 16}));
}

TEST(StateStore, keepsOnlyTheNewestWhileNobodyFollows) {
    StateStore store;
    for (uint64_t step = 1; step <= 3; ++step) store.putDelta(record(step), kGradient);
    EXPECT_EQ(store.window(), (std::pair<uint64_t, uint64_t>{3, 3}));
    store.follow();
    for (uint64_t step = 4; step <= 6; ++step) store.putDelta(record(step), kGradient);
    EXPECT_EQ(store.window(), (std::pair<uint64_t, uint64_t>{3, 6}));
    store.unfollow();
    EXPECT_EQ(store.window(), (std::pair<uint64_t, uint64_t>{6, 6}));
    EXPECT_EQ(store.deltaBytes(), 40u);
}

TEST(StateStore, theMemoryOfADroppedDeltaServesTheNextOnceNobodyReadsIt) {
    StateStore store;
    store.putDelta(record(1), kGradient);
    const float* first = store.delta(1)->reduced.data();
    {
        const StateStore::DeltaPtr read = store.delta(1);
        store.putDelta(record(2), kGradient);
        EXPECT_NE(store.room(10).data(), first) << "it is still read";
        EXPECT_EQ(read->reduced, kGradient);
    }
    EXPECT_EQ(store.room(10).data(), first);
}

TEST(StateStore, aSkippedStepTakesNoRoom) {
    StateStore store;
    CommitRecord skipped = record(1);
    skipped.skip = true;
    store.putDelta(skipped, {});
    EXPECT_EQ(store.deltaBytes(), 0u);
    EXPECT_TRUE(store.delta(1)->record.skip);
}

TEST(StateStore, aWindowNeverCrossesALayoutALineageOrAGap) {
    for (const CommitRecord& next : {record(3, 1), record(3, 0, 2), record(4)}) {
        StateStore store;
        store.follow();
        store.putDelta(record(1), kGradient);
        store.putDelta(record(2), kGradient);
        store.putDelta(next, kGradient);
        EXPECT_EQ(store.window(), (std::pair<uint64_t, uint64_t>{next.step, next.step}));
    }
}

TEST(StateStore, aDeltaThatIsLostTakesThoseBeforeItAlongAndLeavesItsMemory) {
    StateStore store;
    store.follow();
    for (uint64_t step = 1; step <= 3; ++step) store.putDelta(record(step), kGradient);
    Floats memory = kGradient;
    const float* at = memory.data();
    store.loseDelta(4, std::move(memory));
    EXPECT_EQ(store.window(), (std::pair<uint64_t, uint64_t>{5, 4}));
    EXPECT_EQ(store.deltaBytes(), 0u);
    for (uint64_t step = 3; step <= 4; ++step)
        EXPECT_EQ(store.awaitDelta(step, std::chrono::minutes(1)), nullptr) << "at once";
    const Floats next = store.room(10);
    EXPECT_TRUE(next.data() == at || store.room(10).data() == at);
    store.putDelta(record(5), kGradient);
    EXPECT_EQ(store.window(), (std::pair<uint64_t, uint64_t>{5, 5}));
    EXPECT_NE(store.delta(5), nullptr);
    store.loseDelta(6, {});
    store.putDelta(record(6, 1), kGradient);
    EXPECT_NE(store.delta(6), nullptr) << "another lineage's";
}

TEST(StateStore, aWaitForADeltaEndsWhenItIsLost) {
    StateStore store;
    store.follow();
    std::thread later([&] { store.loseDelta(1, {}); });
    EXPECT_EQ(store.awaitDelta(1, std::chrono::minutes(1)), nullptr);
    later.join();
}

TEST(StateStore, aWaitForADeltaEndsWhenItComes) {
    StateStore store;
    std::thread later([&] { store.putDelta(record(1), kGradient); });
    EXPECT_NE(store.awaitDelta(1, std::chrono::minutes(1)), nullptr);
    later.join();
}

TEST(StateStore, closingEndsEveryWait) {
    StateStore store;
    std::thread later([&] { store.close(); });
    EXPECT_EQ(store.awaitDelta(9, std::chrono::minutes(1)), nullptr);
    later.join();
}

TEST(StateStore, aSnapshotInUseOutlivesItsDropping) {
    StateStore store;
    auto snapshot = std::make_shared<StateSnapshot>();
    snapshot->step = 7;
    snapshot->bytes.resize(3);
    store.putSnapshot(snapshot);
    const StateStore::SnapshotPtr held = store.snapshot(7);
    store.dropSnapshot(7);
    EXPECT_EQ(store.snapshot(7), nullptr);
    EXPECT_EQ(held->bytes.size(), 3u);
}

}  // namespace
}  // namespace bulkhead::runtime
