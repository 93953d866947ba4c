// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/catch_up.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "absl/base/thread_annotations.h"
#include "backend/common/threads.h"
#include "backend/runtime/replica/state_server.h"
#include "bulkhead/state_hash.h"

namespace bulkhead::runtime {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint64_t kStep = 5;
constexpr int32_t kShard = 1;
const Secret kKey = Secret::ofText("catch up");

CommitRecord recordOf(uint64_t step, uint64_t samples) {
    CommitRecord record;
    record.lineage = 1;
    record.step = step;
    record.samples = samples;
    return record;
}

std::shared_ptr<StateSnapshot> makeSnapshot() {
    auto snapshot = std::make_shared<StateSnapshot>();
    snapshot->bytes.assign(3000, std::byte{7});
    snapshot->lineage = 1;
    snapshot->step = kStep;
    snapshot->last.step = kStep;
    snapshot->hash = bulkhead_state_hash(snapshot->bytes.data(), snapshot->bytes.size());
    return snapshot;
}

/// The second shard of a replica that trained.
struct Source {
    explicit Source(int32_t replica) : replica(replica) {
        store.allow(kKey);
        server = *StateServer::start("127.0.0.1", kShard, &store, stateSockets());
    }
    protocol::Member member() const {
        protocol::Member m;
        m.contribution.replica = replica;
        m.ranks.resize(2);
        m.ranks[kShard].state = server->address();
        return m;
    }
    int32_t replica;
    StateStore store;
    std::unique_ptr<StateServer> server;
};

class CatchUpTest : public testing::Test {
  protected:
    protocol::Fetch from(std::vector<protocol::Member> sources) const {
        protocol::Fetch fetch;
        fetch.lineage = 1;
        fetch.snapshotStep = kStep;
        fetch.key = kKey;
        fetch.sources = std::move(sources);
        return fetch;
    }
    /// The next thing that a hook told.
    template <class T>
    T await(std::optional<T>& told) {
        MutexLock lock(mutex_);
        EXPECT_TRUE(changed_.wait_for(
            lock, std::chrono::seconds(60),
            [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return told.has_value(); }));
        return std::exchange(told, std::nullopt).value_or(T{});
    }
    template <class T>
    void tell(std::optional<T>& told, T value) {
        const MutexLock lock(mutex_);
        told = std::move(value);
        changed_.notify_all();
    }

    struct Broke {
        absl::Status why;
        std::vector<int32_t> sources;
    };
    SystemClock clock_;
    Mutex mutex_;
    ConditionVariable changed_;
    std::atomic<uint64_t> pulled_{0};
    std::optional<std::shared_ptr<const StateSnapshot>> state_;
    std::optional<Delta> delta_;
    std::optional<Broke> broke_;
    Source first_{3}, second_{4};
    CatchUp catchUp_{
        {9, kShard},
        2,
        stateSockets(),
        clock_,
        {[this](uint64_t done, uint64_t) { pulled_ = done; },
         [this](std::shared_ptr<const StateSnapshot> s) { tell(state_, std::move(s)); },
         [this](Delta d) { tell(delta_, std::move(d)); },
         [this](absl::Status why, std::vector<int32_t> sources) {
             tell(broke_, Broke{std::move(why), std::move(sources)});
         },
         [] { return false; }}};
};

TEST_F(CatchUpTest, TheSnapshotComesAndThenTheDeltasInTheirOrder) {
    first_.store.putSnapshot(makeSnapshot());
    protocol::Member small;  // has no rank of this shard
    small.contribution.replica = 2;
    small.ranks.resize(1);
    catchUp_.fetch(from({small, first_.member()}));
    for (uint64_t step = kStep + 1; step <= kStep + 2; ++step) {
        first_.store.putDelta(recordOf(step, 8), {static_cast<float>(step)});
        catchUp_.replay(recordOf(step, 8));
        if (step == kStep + 1) {
            const auto state = await(state_);
            ASSERT_NE(state, nullptr);
            EXPECT_EQ(state->bytes, makeSnapshot()->bytes);
            EXPECT_EQ(pulled_, state->bytes.size());
        }
        const Delta delta = await(delta_);
        EXPECT_EQ(delta.record, recordOf(step, 8));
        EXPECT_THAT(delta.reduced, ElementsAre(static_cast<float>(step)));
    }
    EXPECT_FALSE(broke_);
}

TEST_F(CatchUpTest, ASnapshotThatIsGoneIsToldWithWhoWasAskedAndOthersAreTried) {
    catchUp_.fetch(from({first_.member()}));
    const Broke broke = await(broke_);
    EXPECT_TRUE(absl::IsNotFound(broke.why)) << broke.why;
    EXPECT_THAT(broke.sources, ElementsAre(3));
    second_.store.putSnapshot(makeSnapshot());
    catchUp_.fetch(from({second_.member()}));
    EXPECT_NE(await(state_), nullptr);
}

TEST_F(CatchUpTest, ADeltaOfAnotherRecordIsNotTakenAndAskedOfTheNextSources) {
    first_.store.putSnapshot(makeSnapshot());
    first_.store.putDelta(recordOf(kStep + 1, 7), {1});
    second_.store.putDelta(recordOf(kStep + 1, 8), {2});
    catchUp_.fetch(from({first_.member()}));
    ASSERT_NE(await(state_), nullptr);
    catchUp_.replay(recordOf(kStep + 1, 8));
    const Broke broke = await(broke_);
    EXPECT_TRUE(absl::IsDataLoss(broke.why)) << broke.why;
    EXPECT_THAT(std::string(broke.why.message()), HasSubstr("another record for step 6"));
    EXPECT_THAT(broke.sources, ElementsAre(3));
    catchUp_.fetch(from({second_.member()}));
    EXPECT_THAT(await(delta_).reduced, ElementsAre(2));
    EXPECT_FALSE(state_) << "the snapshot is not pulled again";
}

TEST_F(CatchUpTest, AfterAStopItBeginsAnew) {
    first_.store.putSnapshot(makeSnapshot());
    first_.store.putDelta(recordOf(kStep + 1, 8), {1});
    catchUp_.fetch(from({first_.member()}));
    ASSERT_NE(await(state_), nullptr);
    catchUp_.stop();
    catchUp_.replay(recordOf(kStep + 1, 8));
    catchUp_.fetch(from({first_.member()}));
    EXPECT_NE(await(state_), nullptr) << "it is pulled again";
    catchUp_.replay(recordOf(kStep + 1, 8));
    EXPECT_THAT(await(delta_).reduced, ElementsAre(1));
}

}  // namespace
}  // namespace bulkhead::runtime
