// SPDX-License-Identifier: Apache-2.0
#include "plugins/cuda/ftar/data_plane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>

#include "tests/cuda/thread_machine.h"

namespace bulkhead::cuda {
namespace {

using ::testing::HasSubstr;
using testing::ThreadMachine;
using testing::World;

constexpr std::chrono::minutes kLong{10};
constexpr std::chrono::microseconds kNoHurry{0};

/// Rank 1 with its plane, and memory of rank 2.
class DataPlaneTest : public ::testing::Test {
  protected:
    DataPlaneTest() { open(2); }

    void open(uint32_t blocks, uint32_t nearBlocks = 0,
              std::chrono::milliseconds unmapAfter = kLong,
              std::chrono::milliseconds patience = std::chrono::milliseconds(1)) {
        auto machine = std::make_unique<ThreadMachine>(world_, 1);
        machine_ = machine.get();
        plane_ = DataPlane::create(std::move(machine), {blocks, kNoHurry, kLong, kLong, patience,
                                                        nearBlocks, unmapAfter})
                     .value();
    }
    float* ramp(uint64_t process, size_t count) {
        float* floats = world_.floats(process, count);
        std::iota(floats, floats + count, 1.0f);
        return floats;
    }
    static Sum sum(float* to, std::vector<const void*> from, size_t count) {
        Sum sum{};
        sum.to = reinterpret_cast<uint64_t>(to);
        sum.count = count;
        sum.sources = static_cast<uint32_t>(from.size());
        for (size_t s = 0; s < from.size(); ++s) sum.from[s] = reinterpret_cast<uint64_t>(from[s]);
        return sum;
    }
    const void* peer(const float* memory, size_t count, uint64_t process = 2) {
        const Place place = world_.place(process, memory, count * sizeof(float)).value();
        return plane_->reach(place, count * sizeof(float)).value();
    }
    /// Some sum of the open epoch, whose peers have been reached.
    void add() {
        float* mine = ramp(1, 100);
        ASSERT_TRUE(plane_->submit(sum(mine, {mine}, 100)).ok());
        ASSERT_TRUE(plane_->finish(kLong).ok());
    }
    /// Enters an epoch, adds rank 1's and 2's ramps, and looks at the sum.
    void expectSum(size_t count) {
        float* mine = ramp(1, count);
        float* theirs = ramp(2, count);
        float* to = world_.floats(1, count);
        ASSERT_TRUE(plane_->enter().ok());
        ASSERT_TRUE(plane_->submit(sum(to, {mine, peer(theirs, count)}, count)).ok());
        const absl::Status s = plane_->finish(kLong);
        ASSERT_TRUE(s.ok()) << s;
        for (size_t i = 0; i < count; ++i) ASSERT_EQ(to[i], 2 * static_cast<float>(i + 1)) << i;
    }

    World world_;
    ThreadMachine* machine_ = nullptr;
    std::unique_ptr<DataPlane> plane_;
};

TEST_F(DataPlaneTest, addsInOneRunWhatItIsTold) {
    expectSum(100'003);
    EXPECT_EQ(machine_->launches, 1);
}

TEST_F(DataPlaneTest, moreChunksThanALaneHoldsWaitTheirTurn) {
    float* mine = ramp(1, 64);
    float* to = world_.floats(1, 64 * 5 * kSlots);
    ASSERT_TRUE(plane_->enter().ok());
    for (size_t i = 0; i < 5 * kSlots; ++i)
        ASSERT_TRUE(plane_->submit(sum(to + 64 * i, {mine, mine}, 64)).ok());
    ASSERT_TRUE(plane_->finish(kLong).ok());
    for (size_t i = 0; i < 64 * 5 * kSlots; ++i) ASSERT_EQ(to[i], 2 * mine[i % 64]);
}

TEST_F(DataPlaneTest, aParkedKernelHasEndedAndIsStartedByTheNextSum) {
    expectSum(1000);
    ASSERT_TRUE(plane_->park().ok());
    ASSERT_TRUE(plane_->park().ok());
    expectSum(1000);
    EXPECT_EQ(machine_->launches, 2);
}

TEST_F(DataPlaneTest, blocksOfARunThatOthersHaveLeftBeginTheNextSumWithThem) {
    open(2, 0, kLong, std::chrono::milliseconds(100));
    // The first block begins when the second one has had nothing to do for so long that it left.
    std::atomic<int> syncs = 0;  // it counts those of the first block in the first run
    machine_->atSync = [&] {
        Queue* queue = machine_->launched;
        if (queue->lanes[0].entered != 1) return;
        ++syncs;
        while (loadAcquire(&queue->lanes[1].left) != 1) std::this_thread::yield();
    };
    const size_t count = 100'003;
    float* mine = ramp(1, count);
    float* to = world_.floats(1, count);
    ASSERT_TRUE(plane_->enter().ok());
    ASSERT_TRUE(plane_->submit(sum(to, {mine}, 64)).ok());
    ASSERT_TRUE(plane_->finish(kLong).ok());
    EXPECT_EQ(machine_->launches, 1);
    ASSERT_TRUE(plane_->submit(sum(to, {mine}, count)).ok());
    ASSERT_TRUE(plane_->finish(kLong).ok());
    EXPECT_EQ(machine_->launches, 2);
    EXPECT_EQ(syncs, 5) << "it entered, was told, read, added and was told to leave";
    EXPECT_EQ(to[count - 1], mine[count - 1]);
}

TEST_F(DataPlaneTest, moreBlocksWorkWhereAPeersMemoryIsReadThanWhereItComesByANetwork) {
    open(2, 5);
    const auto addOwn = [&] {
        float* mine = ramp(1, 100'003);
        float* to = world_.floats(1, 100'003);
        ASSERT_TRUE(plane_->submit(sum(to, {mine, mine}, 100'003)).ok());
        ASSERT_TRUE(plane_->finish(kLong).ok());
        EXPECT_EQ(to[100'002], 2 * 100'003.0f);
        ASSERT_TRUE(plane_->park().ok());
    };
    ASSERT_TRUE(plane_->enter().ok());
    addOwn();
    EXPECT_EQ(machine_->blocksLaunched, 2u);
    expectSum(100'003);
    ASSERT_TRUE(plane_->park().ok());
    EXPECT_EQ(machine_->blocksLaunched, 5u);
    addOwn();
    EXPECT_EQ(machine_->blocksLaunched, 5u) << "the epoch has peers here";
    ASSERT_TRUE(plane_->enter().ok());
    addOwn();
    EXPECT_EQ(machine_->blocksLaunched, 2u);
}

TEST_F(DataPlaneTest, memoryOfAPeerCannotBeTouchedAfterItsEpoch) {
    float* theirs = ramp(2, 100);
    ASSERT_TRUE(plane_->enter().ok());
    const void* seen = peer(theirs, 100);
    EXPECT_EQ(peer(theirs, 100), seen) << "mapped once";
    EXPECT_TRUE(World::readable(seen));
    EXPECT_EQ(world_.live(), 1);
    ASSERT_TRUE(plane_->leave().ok());
    EXPECT_FALSE(World::readable(seen));
    EXPECT_EQ(world_.live(), 0);
    EXPECT_TRUE(World::readable(theirs)) << "it is its owner's as before";
    EXPECT_FALSE(plane_->reach(world_.place(2, theirs, 4).value(), 4).ok()) << "no epoch is open";
}

TEST_F(DataPlaneTest, whatAPeerStillNamesIsMappedOnceForAllEpochs) {
    float* theirs = ramp(2, 100);
    const void* first = nullptr;
    for (int epoch = 0; epoch < 3; ++epoch) {
        ASSERT_TRUE(plane_->enter().ok());
        const void* seen = peer(theirs, 100);
        EXPECT_TRUE(first == nullptr || seen == first);
        first = seen;
        float* to = world_.floats(1, 100);
        ASSERT_TRUE(plane_->submit(sum(to, {seen, seen}, 100)).ok());
        ASSERT_TRUE(plane_->finish(kLong).ok());
        EXPECT_EQ(to[99], 200);
        ASSERT_TRUE(plane_->park().ok());
        plane_->abort();
        ASSERT_TRUE(plane_->park().ok());
        EXPECT_TRUE(World::readable(seen));
    }
    EXPECT_EQ(world_.maps(), 1);
}

TEST_F(DataPlaneTest, whatAPeerNamesNoMoreIsUnmappedBeforeItIsToldThatAllHaveMet) {
    float* old = ramp(2, 100);
    float* now = ramp(2, 100);
    ASSERT_TRUE(plane_->enter().ok());
    const void* seen = peer(old, 100);
    add();
    EXPECT_EQ(machine_->meetings, 0);
    (void)peer(old, 100);
    EXPECT_EQ(machine_->meetings, 1);
    (void)peer(old, 100);
    EXPECT_EQ(machine_->meetings, 1) << "once an epoch";
    ASSERT_TRUE(plane_->enter().ok());
    const void* other = peer(now, 100);
    EXPECT_TRUE(World::readable(seen));
    add();
    EXPECT_FALSE(World::readable(seen)) << "its owner may give it away from here on";
    EXPECT_TRUE(World::readable(other));
    EXPECT_EQ(machine_->meetings, 1);
    (void)peer(now, 100);
    EXPECT_EQ(machine_->meetings, 2);
}

TEST_F(DataPlaneTest, memoryOfOneWhoIsNoMemberAnyMoreIsUnmappedLaterAndByNobodyWhoAdds) {
    float* theirs = ramp(2, 100);
    float* victims = ramp(3, 100);
    ASSERT_TRUE(plane_->enter().ok());
    const void* seen = peer(victims, 100, 3);
    (void)peer(theirs, 100);
    add();
    ASSERT_TRUE(plane_->enter().ok());
    (void)peer(theirs, 100);
    add();
    ASSERT_TRUE(plane_->park().ok());
    EXPECT_TRUE(World::readable(seen)) << "a driver may be clearing up after its owner";
    // It is back, and names other memory: what it had must not wait.
    float* others = ramp(3, 100);
    ASSERT_TRUE(plane_->enter().ok());
    (void)peer(theirs, 100);
    (void)peer(others, 100, 3);
    add();
    EXPECT_FALSE(World::readable(seen));
    EXPECT_EQ(world_.live(), 2);
}

TEST_F(DataPlaneTest, memoryThatNobodyNamesIsUnmappedInTheEnd) {
    open(2, 0, std::chrono::milliseconds(1));
    float* victims = ramp(3, 100);
    ASSERT_TRUE(plane_->enter().ok());
    (void)peer(victims, 100, 3);
    add();
    ASSERT_TRUE(plane_->enter().ok());
    add();
    EXPECT_EQ(world_.live(), 1);
    ASSERT_TRUE(plane_->park().ok());
    while (world_.live() > 0) std::this_thread::yield();
}

TEST_F(DataPlaneTest, nothingStaysMappedWhenAPlaneEnds) {
    float* theirs = ramp(2, 100);
    float* victims = ramp(3, 100);
    ASSERT_TRUE(plane_->enter().ok());
    (void)peer(victims, 100, 3);
    ASSERT_TRUE(plane_->enter().ok());
    (void)peer(theirs, 100);
    add();
    ASSERT_TRUE(plane_->park().ok());
    EXPECT_EQ(world_.live(), 2);
    plane_.reset();
    EXPECT_EQ(world_.live(), 0);
}

TEST_F(DataPlaneTest, aPlaceThatLiesIsRefused) {
    float* theirs = ramp(2, 100);
    ASSERT_TRUE(plane_->enter().ok());
    Place place = world_.place(2, theirs, 400).value();
    EXPECT_TRUE(absl::IsInvalidArgument(plane_->reach(place, 401).status()));
    EXPECT_TRUE(absl::IsInvalidArgument(plane_->reach(place, SIZE_MAX).status()));
    place.offset = 8;
    EXPECT_TRUE(absl::IsInvalidArgument(plane_->reach(place, 400).status()));
    place.offset = ~uint64_t{0};
    EXPECT_TRUE(absl::IsInvalidArgument(plane_->reach(place, 400).status()));
    place.offset = 0;
    place.base += 4096;
    EXPECT_TRUE(absl::IsUnavailable(plane_->reach(place, 400).status()));
    EXPECT_TRUE(plane_->place(theirs, 400).status().code() == absl::StatusCode::kInvalidArgument)
        << "not ours to offer";
}

TEST_F(DataPlaneTest, aSumWithoutSenseIsRefusedBeforeItIsTold) {
    float* mine = ramp(1, 100);
    ASSERT_TRUE(plane_->enter().ok());
    EXPECT_TRUE(absl::IsInvalidArgument(plane_->submit(sum(mine, {}, 100))));
    EXPECT_TRUE(absl::IsInvalidArgument(plane_->submit(sum(nullptr, {mine}, 100))));
    EXPECT_EQ(machine_->launches, 0);
    expectSum(100);
}

/// The sum is cut short at every point where the block's threads meet, one after another, until one
/// comes through: nothing hangs, inputs are whole, peers' memory is left alone, and the next epoch
/// works.
TEST_F(DataPlaneTest, anAbortAtAnyChunkEndsTheKernelAndLeavesInputsWhole) {
    const size_t count = 150'000;
    float* mine = ramp(1, count);
    float* theirs = ramp(2, count);
    float* to = world_.floats(1, count);
    int aborts = 0;
    for (int at = 1;; ++at) {
        int syncs = 0;
        machine_->atSync = [&, at] {
            if (++syncs == at) plane_->abort();
        };
        ASSERT_TRUE(plane_->enter().ok());
        const void* seen = peer(theirs, count);
        absl::Status s = plane_->submit(sum(to, {mine, seen}, count));
        if (s.ok()) s = plane_->finish(kLong);
        ASSERT_TRUE(plane_->leave().ok());
        ASSERT_FALSE(World::readable(seen));
        machine_->atSync = nullptr;
        for (size_t i = 0; i < count; i += 7) {
            ASSERT_EQ(mine[i], static_cast<float>(i + 1));
            ASSERT_EQ(theirs[i], static_cast<float>(i + 1));
        }
        if (syncs < at) break;
        aborts += absl::IsAborted(s);
        ASSERT_TRUE(s.ok() || absl::IsAborted(s)) << s;
    }
    EXPECT_GT(aborts, 5);
    expectSum(count);
}

TEST_F(DataPlaneTest, anAbortFromAnyThreadAtAnyTimeEndsTheWait) {
    const size_t count = 1 << 16;
    float* mine = ramp(1, count);
    float* to = world_.floats(1, count);
    for (int i = 0; i < 30; ++i) {
        ASSERT_TRUE(plane_->enter().ok());
        std::atomic<int> done{0};
        std::thread other([&, i] {
            for (int now = done; now < i / 4; now = done) done.wait(now);
            plane_->abort();
        });
        absl::Status s;
        for (; s.ok(); ++done, done.notify_all()) {
            s = plane_->submit(sum(to, {mine, mine}, count));
            if (s.ok()) s = plane_->finish(kLong);
        }
        EXPECT_TRUE(absl::IsAborted(s)) << s;
        EXPECT_TRUE(absl::IsAborted(plane_->submit(sum(to, {mine}, count)))) << "until enter()";
        other.join();
    }
    expectSum(count);
}

TEST_F(DataPlaneTest, anAbortOfAnEpochThatIsOverDoesNotTouchTheNext) {
    ASSERT_TRUE(plane_->enter().ok());
    plane_->abort();
    expectSum(1000);
}

/// A GPU that has stopped, or answers nonsense.
class SickMachine final : public Machine {
  public:
    explicit SickMachine(World& world) : healthy_(world, 1) {}
    absl::StatusOr<void*> allocatePinned(size_t bytes) override {
        return healthy_.allocatePinned(bytes);
    }
    void freePinned(void* memory) override { healthy_.freePinned(memory); }
    absl::Status launch(Queue* queue, uint32_t, uint64_t run) override {
        queue_ = queue;
        if (refusal.ok())
            for (Lane& lane : queue->lanes) storeRelease(&lane.entered, run);
        if (answers != 0) {
            storeRelease(&queue->lanes[0].finished, answers);
            for (Lane& lane : queue->lanes) storeRelease(&lane.left, run);
        }
        return refusal;
    }
    absl::Status health() override { return sick; }
    absl::StatusOr<Place> place(const void* memory, size_t bytes) override {
        return healthy_.place(memory, bytes);
    }
    absl::StatusOr<Block> map(const Place& place) override { return healthy_.map(place); }
    void unmap(const Block& block) override { healthy_.unmap(block); }

    uint64_t answers = 0;
    absl::Status refusal, sick;

    /// So that the leak checker sees what a plane rightly never frees.
    void freeQueue() { healthy_.freePinned(queue_); }

  private:
    ThreadMachine healthy_;
    Queue* queue_ = nullptr;
};

class SickPlaneTest : public DataPlaneTest {
  protected:
    SickPlaneTest() {
        auto machine = std::make_unique<SickMachine>(world_);
        sick_ = machine.get();
        plane_ = DataPlane::create(std::move(machine), {2, kNoHurry, kShort, kShort}).value();
        mine_ = ramp(1, 100);
        theirs_ = ramp(2, 100);
    }
    static constexpr std::chrono::milliseconds kShort{50};
    SickMachine* sick_ = nullptr;
    float* mine_ = nullptr;
    float* theirs_ = nullptr;
};

TEST_F(SickPlaneTest, aKernelThatDoesNotEndIsGivenUpAndNothingIsUnmapped) {
    ASSERT_TRUE(plane_->enter().ok());
    const void* seen = peer(theirs_, 100);
    ASSERT_TRUE(plane_->submit(sum(mine_, {mine_, seen}, 100)).ok());
    const absl::Status s = plane_->finish(kShort);
    EXPECT_TRUE(absl::IsInternal(s)) << s;
    EXPECT_THAT(std::string(s.message()), HasSubstr("the rank must start again"));
    EXPECT_TRUE(World::readable(seen)) << "it may still read there";
    EXPECT_EQ(plane_->enter(), s);
    EXPECT_EQ(plane_->park(), s);
    EXPECT_EQ(plane_->submit(sum(mine_, {mine_}, 100)), s);
    sick_->freeQueue();
}

TEST_F(SickPlaneTest, aGpuThatIsLostIsSaidToBe) {
    ASSERT_TRUE(plane_->enter().ok());
    ASSERT_TRUE(plane_->submit(sum(mine_, {mine_}, 100)).ok());
    sick_->sick = absl::InternalError("Xid 79");
    const absl::Status s = plane_->finish(kLong);
    EXPECT_TRUE(absl::IsInternal(s)) << s;
    EXPECT_THAT(std::string(s.message()), HasSubstr("Xid 79"));
    sick_->freeQueue();
}

TEST_F(SickPlaneTest, answersThatMakeNoSenseEndTheEpoch) {
    sick_->answers = 7;
    ASSERT_TRUE(plane_->enter().ok());
    ASSERT_TRUE(plane_->submit(sum(mine_, {mine_}, 100)).ok());
    const absl::Status s = plane_->finish(kLong);
    EXPECT_THAT(std::string(s.message()), HasSubstr("block 0 has done 7 of 1"));
    EXPECT_FALSE(plane_->submit(sum(mine_, {mine_}, 100)).ok());
}

TEST_F(SickPlaneTest, aKernelThatCannotBeStartedIsToldAndCostsNothing) {
    sick_->refusal = absl::ResourceExhaustedError("no");
    ASSERT_TRUE(plane_->enter().ok());
    ASSERT_TRUE(plane_->submit(sum(mine_, {mine_}, 100)).ok());
    EXPECT_TRUE(absl::IsResourceExhausted(plane_->finish(kLong)));
    EXPECT_TRUE(plane_->leave().ok());
}

}  // namespace
}  // namespace bulkhead::cuda
