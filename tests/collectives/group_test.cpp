// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/collectives/group.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tests/collectives/group_ranks.h"

namespace bulkhead::runtime {
namespace {

using testing::GroupRanks;

std::vector<float> values(size_t rank, size_t count) {
    std::mt19937 random(static_cast<uint32_t>(rank) + 1);
    std::vector<float> out(count);
    for (float& x : out) {
        const auto bits = static_cast<uint32_t>(random());
        x = static_cast<float>(bits % 2000) * static_cast<float>(1u << (bits >> 28)) - 7.5f;
    }
    return out;
}

/// The message of rank `from` to rank `to`: a length and bytes that only this pair has.
std::string parcel(size_t from, size_t to) {
    const size_t length = (from * 7919 + to * 104'729) % 20'000 * ((from + to) % 3);
    std::string out(length, '\0');
    for (size_t i = 0; i < length; ++i) out[i] = static_cast<char>(from * 31 + to * 17 + i);
    return out;
}

struct Wires {
    const char* name;
    PeerChoice choice;
    bool twoHosts;
};

class GroupTest : public ::testing::TestWithParam<std::tuple<Wires, size_t>> {
  protected:
    GroupRanks ranks_{std::get<1>(GetParam()), std::get<0>(GetParam()).choice,
                      std::get<0>(GetParam()).twoHosts};
    const size_t n_ = std::get<1>(GetParam());
};

TEST_P(GroupTest, AllGatherPutsEverybodysPartByRank) {
    ranks_.run([&](Group& group) {
        for (size_t count : {0u, 1u, 1000u, 10'001u}) {
            const std::vector<float> mine = values(static_cast<size_t>(group.rank()), count);
            std::vector<float> all(count * n_, -1);
            ASSERT_TRUE(group
                            .allGather(std::as_bytes(std::span(mine)),
                                       std::as_writable_bytes(std::span(all)))
                            .ok());
            for (size_t r = 0; r < n_; ++r)
                EXPECT_TRUE(std::equal(all.begin() + static_cast<ptrdiff_t>(r * count),
                                       all.begin() + static_cast<ptrdiff_t>((r + 1) * count),
                                       values(r, count).begin()));
        }
    });
}

TEST_P(GroupTest, ReduceScatterSumsInRankOrder) {
    ranks_.run([&](Group& group) {
        const auto me = static_cast<size_t>(group.rank());
        for (size_t count : {1u, 1000u, 5003u}) {
            const std::vector<float> mine = values(me, count * n_);
            std::vector<float> out(count, -1);
            const absl::Status s =
                group.reduceScatter(mine.data(), out.data(), count, ElementType::kF32);
            ASSERT_TRUE(s.ok()) << s;
            std::vector<float> expected(count);
            std::vector<std::vector<float>> all;
            for (size_t r = 0; r < n_; ++r) all.push_back(values(r, count * n_));
            for (size_t i = 0; i < count; ++i) {
                expected[i] = all[0][me * count + i];
                for (size_t r = 1; r < n_; ++r) expected[i] += all[r][me * count + i];
            }
            EXPECT_EQ(std::memcmp(out.data(), expected.data(), count * sizeof(float)), 0);
        }
    });
}

TEST_P(GroupTest, AllToAllDeliversEveryParcel) {
    ranks_.run([&](Group& group) {
        const auto me = static_cast<size_t>(group.rank());
        std::string from, expected;
        std::vector<size_t> send, recv;
        for (size_t r = 0; r < n_; ++r) {
            from += parcel(me, r);
            send.push_back(parcel(me, r).size());
            expected += parcel(r, me);
            recv.push_back(parcel(r, me).size());
        }
        std::string to(expected.size(), '?');
        const absl::Status s = group.allToAll(from.data(), send, to.data(), recv);
        ASSERT_TRUE(s.ok()) << s;
        EXPECT_EQ(to, expected);
    });
}

TEST_P(GroupTest, NobodyLeavesABarrierBeforeAllAreThere) {
    std::atomic<size_t> arrived{0};
    ranks_.run([&](Group& group) {
        for (size_t round = 1; round <= 20; ++round) {
            ++arrived;
            ASSERT_TRUE(group.barrier().ok());
            EXPECT_GE(arrived.load(), round * n_);
            ASSERT_TRUE(group.barrier().ok());
        }
    });
}

TEST_P(GroupTest, BroadcastReachesAllFromAnyRoot) {
    ranks_.run([&](Group& group) {
        for (size_t root = 0; root < n_; ++root) {
            const std::string sent(root * 9000, static_cast<char>('a' + root));
            std::string message =
                static_cast<size_t>(group.rank()) == root ? sent : std::string("something else");
            ASSERT_TRUE(group.broadcast(message, static_cast<int32_t>(root)).ok());
            EXPECT_EQ(message, sent);
        }
    });
}

TEST_P(GroupTest, DifferentCallsEndInAnErrorNotInAHang) {
    if (n_ == 1) return;  // alone nobody can disagree
    std::vector<std::unique_ptr<Group>> groups(n_);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < n_; ++i)
        threads.emplace_back([&, i] { groups[i] = makeGroup(ranks_.options(i)).value(); });
    for (std::thread& t : threads) t.join();
    threads.clear();
    std::atomic<size_t> failed{0};
    for (size_t i = 0; i < n_; ++i)
        threads.emplace_back([&, i] {
            const std::vector<float> in(n_, 1.0f);
            std::vector<float> out(n_);
            const absl::Status s =
                i == 0 ? groups[i]->barrier()
                       : groups[i]->reduceScatter(in.data(), out.data(), 1, ElementType::kF32);
            if (!s.ok()) ++failed;
            // Acts as its driver: one that failed takes the others out of their waits.
            for (auto& g : groups) g->abort("a rank failed");
        });
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(failed, n_);
}

INSTANTIATE_TEST_SUITE_P(Wirings, GroupTest,
                         ::testing::Combine(::testing::Values(Wires{"shm", PeerChoice::kShm, false},
                                                              Wires{"tcp", PeerChoice::kTcp, false},
                                                              Wires{"mixed", PeerChoice::kAuto,
                                                                    true}),
                                            ::testing::Values(1, 2, 4, 5)),
                         [](const auto& info) {
                             return std::string(std::get<0>(info.param).name) + "_" +
                                    std::to_string(std::get<1>(info.param));
                         });

TEST(Group, AbortFromAnotherThreadEndsTheWait) {
    const GroupRanks ranks(2, PeerChoice::kAuto);
    GroupOptions options[2] = {ranks.options(0), ranks.options(1)};
    std::unique_ptr<Group> groups[2];
    std::thread other([&] { groups[1] = makeGroup(options[1]).value(); });
    groups[0] = makeGroup(options[0]).value();
    other.join();
    absl::Status status;
    std::thread waiting([&] { status = groups[0]->barrier(); });
    groups[0]->abort("sibling died");
    waiting.join();
    EXPECT_TRUE(absl::IsAborted(status)) << status;
    EXPECT_FALSE(groups[0]->barrier().ok()) << "it stays aborted";
}

TEST(Group, AMissingRankIsNamed) {
    const GroupRanks ranks(3, PeerChoice::kAuto);
    GroupOptions options = ranks.options(0);
    options.timeout = 200 * kMillisecond;
    const auto group = makeGroup(options);
    EXPECT_TRUE(absl::IsDeadlineExceeded(group.status())) << group.status();
}

TEST(Group, AWrongTokenIsRefused) {
    const GroupRanks ranks(2, PeerChoice::kTcp);
    std::atomic<bool> refused{false};
    std::thread first([&] {
        GroupOptions options = ranks.options(0);
        options.timeout = 100 * kMillisecond;
        while (!refused) EXPECT_FALSE(makeGroup(options).ok());
    });
    GroupOptions options = ranks.options(1);
    options.secret = Secret::ofText("another");
    const auto group = makeGroup(options);
    EXPECT_TRUE(absl::IsPermissionDenied(group.status())) << group.status();
    refused = true;
    first.join();
}

TEST(Group, ProgressIsToldWhileWaiting) {
    const GroupRanks ranks(2, PeerChoice::kAuto);
    std::atomic<int> ticks{0};
    std::unique_ptr<Group> other;
    std::thread second([&] { other = makeGroup(ranks.options(1)).value(); });
    GroupOptions options = ranks.options(0);
    options.progress = [&] { ++ticks; };
    auto group = makeGroup(options).value();
    second.join();
    const int before = ticks;
    absl::Status status;
    std::thread waiting([&] { status = group->barrier(); });
    while (ticks < before + 3) std::this_thread::yield();
    EXPECT_TRUE(other->barrier().ok());
    waiting.join();
    EXPECT_TRUE(status.ok());
}

}  // namespace
}  // namespace bulkhead::runtime
