// SPDX-License-Identifier: Apache-2.0
// The exchange between replicas with a data plane: real connections, real epochs, and threads where
// the GPUs' kernels would be.
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "backend/runtime/ftar/exchange.h"
#include "tests/cuda/thread_plane.h"
#include "tests/ftar/exchange_group.h"

namespace bulkhead::cuda {
namespace {

using runtime::Exchange;
using runtime::ExchangeGroup;
using runtime::ExchangeKey;
using runtime::WireType;
using runtime::testing::gradient;
using runtime::testing::Ranks;
using runtime::testing::sameBits;
using runtime::testing::Wiring;
using testing::ThreadPlane;
using testing::World;

constexpr size_t kCount = 40'001;  // several pieces, the last one short

class DeviceExchangeTest : public ::testing::TestWithParam<std::tuple<Wiring, WireType>> {
  protected:
    static constexpr size_t kRanks = 4;

    DeviceExchangeTest() : ranks_(kRanks, std::get<0>(GetParam())) {
        ranks_.wire = std::get<1>(GetParam());
        for (size_t i = 0; i < kRanks; ++i) {
            planes_.push_back(std::make_unique<ThreadPlane>(world_, i + 1));
            in_.push_back(world_.floats(i + 1, kCount));
            out_.push_back(world_.floats(i + 1, kCount));
            runtime::ExchangeOptions options = ranks_.options(i);
            options.roundBytes = options.directBytes = 64u << 10;
            options.device = {planes_[i]->api(), planes_[i]->plane()};
            exchanges_.push_back(runtime::makeExchange(options).value());
        }
    }

    /// `body` on a thread for each member.
    static void all(const std::vector<size_t>& members, const std::function<void(size_t)>& body) {
        std::vector<std::thread> threads;
        for (size_t m : members) threads.emplace_back(body, m);
        for (std::thread& t : threads) t.join();
    }

    void configure(const std::vector<size_t>& members, ExchangeKey key) {
        all(members, [&](size_t m) {
            const absl::Status s = exchanges_[m]->configure(ranks_.group(members, m, key));
            EXPECT_TRUE(s.ok()) << s;
        });
    }

    absl::Status reduce(size_t m, uint32_t bucket) {
        const std::vector<float> input = gradient(m, 1, bucket, kCount);
        std::copy(input.begin(), input.end(), in_[m]);
        return exchanges_[m]->reduce(bucket, {in_[m], kCount}, {out_[m], kCount});
    }
    std::vector<float> output(size_t m) const { return {out_[m], out_[m] + kCount}; }
    bool inputWhole(size_t m, uint32_t bucket) const {
        return sameBits({in_[m], in_[m] + kCount}, gradient(m, 1, bucket, kCount));
    }

    void expectSums(const std::vector<size_t>& members, uint32_t bucket) {
        all(members, [&](size_t m) {
            const absl::Status s = reduce(m, bucket);
            EXPECT_TRUE(s.ok()) << s;
        });
        for (size_t m : members) {
            EXPECT_TRUE(sameBits(output(m), ranks_.sum(members, 1, bucket, kCount))) << m;
            EXPECT_TRUE(inputWhole(m, bucket));
        }
    }

    World world_;
    Ranks ranks_;
    std::vector<std::unique_ptr<ThreadPlane>> planes_;
    std::vector<float*> in_, out_;
    std::vector<std::unique_ptr<Exchange>> exchanges_;
};

TEST_P(DeviceExchangeTest, allEndWithTheBitsOfTheCpusExchange) {
    configure(ranks_.all(), {1, 1, 1, 1});
    expectSums(ranks_.all(), 0);
    expectSums(ranks_.all(), 1);
    configure(ranks_.all(), {1, 1, 2, 1});
    expectSums(ranks_.all(), 2);
}

TEST_P(DeviceExchangeTest, whatIsReadOfOthersHasTheWiresType) {
    configure(ranks_.all(), {1, 1, 1, 1});
    ThreadPlane::narrowSources = ThreadPlane::wideSources = 0;
    expectSums(ranks_.all(), 0);
    const uint64_t all = ThreadPlane::narrowSources + ThreadPlane::wideSources;
    EXPECT_GT(all, 0u);
    EXPECT_EQ(ThreadPlane::wideSources, ranks_.wire == WireType::kBfloat16 ? all / kRanks : all);
}

TEST_P(DeviceExchangeTest, oneAloneHasItsOwnInput) {
    configure({2}, {1, 1, 1, 1});
    expectSums({2}, 0);
}

TEST_P(DeviceExchangeTest, aMemberThatIsLostLeavesTheOthersTheirInputsAndTheyMapNothingAnew) {
    configure(ranks_.all(), {1, 1, 1, 1});
    expectSums(ranks_.all(), 0);
    const std::vector<size_t> left{0, 1, 3};
    // Rank 2 does not come; the coordinator knows, and aborts.
    std::vector<absl::Status> status(kRanks);
    std::vector<std::thread> threads;
    for (size_t m : left) threads.emplace_back([&, m] { status[m] = reduce(m, 1); });
    for (size_t m : left) exchanges_[m]->abort({1, 1, 1, 1}, "replica 21 died");
    for (std::thread& t : threads) t.join();
    for (size_t m : left) {
        EXPECT_TRUE(absl::IsAborted(status[m])) << status[m];
        EXPECT_TRUE(inputWhole(m, 1));
    }
    exchanges_[2].reset();
    planes_[2].reset();
    const int maps = world_.maps();
    configure(left, {1, 2, 1, 2});
    expectSums(left, 1);
    EXPECT_EQ(world_.maps(), maps) << "those who are left have each other's memory mapped still";
}

TEST_P(DeviceExchangeTest, anAbortInsideTheKernelEndsTheExchange) {
    configure(ranks_.all(), {1, 1, 1, 1});
    int syncs = 0;
    planes_[1]->machine().atSync = [&] {
        // On the kernel's own thread: in the middle of a sum.
        if (++syncs != 4) return;
        for (auto& e : exchanges_) e->abort({1, 1, 1, 1}, "replica 21 died");
    };
    std::vector<absl::Status> status(kRanks);
    all(ranks_.all(), [&](size_t m) { status[m] = reduce(m, 0); });
    for (size_t m = 0; m < kRanks; ++m) {
        EXPECT_TRUE(absl::IsAborted(status[m])) << status[m];
        EXPECT_TRUE(inputWhole(m, 0));
    }
    planes_[1]->machine().atSync = nullptr;
    configure(ranks_.all(), {1, 1, 1, 2});
    expectSums(ranks_.all(), 0);
}

TEST_P(DeviceExchangeTest, anAbortAfterTheSumsLeavesTheConnections) {
    configure(ranks_.all(), {1, 1, 1, 1});
    expectSums(ranks_.all(), 0);
    exchanges_[1]->abort({1, 1, 1, 1}, "too late to matter");
    configure(ranks_.all(), {1, 1, 2, 1});
    expectSums(ranks_.all(), 1);
}

INSTANTIATE_TEST_SUITE_P(
    Wirings, DeviceExchangeTest,
    ::testing::Combine(::testing::Values(Wiring::kShm, Wiring::kTcp, Wiring::kMixed),
                       ::testing::Values(WireType::kFloat32, WireType::kBfloat16)),
    [](const auto& info) {
        return runtime::testing::wiringName(std::get<0>(info.param)) +
               (std::get<1>(info.param) == WireType::kBfloat16 ? "Bf16" : "");
    });

}  // namespace
}  // namespace bulkhead::cuda
