// SPDX-License-Identifier: Apache-2.0
// FTAR of several ranks that share one GPU, each with a data plane and a kernel of its own.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <thread>

#include "backend/runtime/ftar/exchange.h"
#include "tests/ftar/exchange_group.h"
#include "tests/gpu/gpu_fixture.h"

namespace bulkhead::support {
namespace {

using runtime::Exchange;
using runtime::ExchangeKey;
using runtime::WireType;
using runtime::testing::gradient;
using runtime::testing::Ranks;
using runtime::testing::sameBits;
using runtime::testing::Wiring;

#ifdef BULKHEAD_GPU_IS_FAKE
constexpr size_t kCount = 300'017;
#else
constexpr size_t kCount = 3'000'017;
#endif
constexpr size_t kPieceBytes = kCount * sizeof(float) / 3;

struct Case {
    size_t ranks;
    Wiring wiring;
    WireType wire;
};

class GpuExchange : public GpuTest, public ::testing::WithParamInterface<Case> {
  protected:
    void SetUp() override {
        GpuTest::SetUp();
        if (IsSkipped()) return;
        ranks_ = std::make_unique<Ranks>(GetParam().ranks, GetParam().wiring);
        ranks_->wire = GetParam().wire;
        for (size_t i = 0; i < ranks_->size(); ++i) {
            gpu_.push_back(std::make_unique<GpuRank>(plugin_));
            ASSERT_TRUE(gpu_[i]->ok()) << plugin_.error();
            in_.push_back(gpu_[i]->floats(kCount));
            out_.push_back(gpu_[i]->floats(kCount));
            runtime::ExchangeOptions options = ranks_->options(i);
            options.roundBytes = options.directBytes = kPieceBytes;
            options.device = {&plugin_.plane(), gpu_[i]->plane()};
            exchanges_.push_back(runtime::makeExchange(options).value());
        }
    }

    void all(const std::function<void(size_t)>& body) const {
        std::vector<std::thread> threads;
        for (size_t m = 0; m < ranks_->size(); ++m) threads.emplace_back(body, m);
        for (std::thread& t : threads) t.join();
    }
    void configure(ExchangeKey key) {
        all([&](size_t m) {
            const absl::Status s = exchanges_[m]->configure(ranks_->group(ranks_->all(), m, key));
            EXPECT_TRUE(s.ok()) << s;
        });
    }
    absl::Status reduce(size_t m, uint32_t bucket) {
        const std::vector<float> input = gradient(m, 1, bucket, kCount);
        if (!gpu_[m]->copy(in_[m], input.data(), kCount * sizeof(float)))
            return absl::InternalError(plugin_.error());
        return exchanges_[m]->reduce(bucket, {in_[m], kCount}, {out_[m], kCount});
    }
    void expectSums(uint32_t bucket) {
        all([&](size_t m) {
            const absl::Status s = reduce(m, bucket);
            EXPECT_TRUE(s.ok()) << s;
        });
        const std::vector<float> wanted = ranks_->sum(ranks_->all(), 1, bucket, kCount);
        for (size_t m = 0; m < ranks_->size(); ++m)
            EXPECT_TRUE(sameBits(gpu_[m]->read<float>(out_[m], kCount), wanted)) << m;
    }

    std::unique_ptr<Ranks> ranks_;
    std::vector<std::unique_ptr<GpuRank>> gpu_;
    std::vector<float*> in_, out_;
    std::vector<std::unique_ptr<Exchange>> exchanges_;
};

TEST_P(GpuExchange, allEndWithTheBitsOfTheCpusExchange) {
    configure({1, 1, 1, 1});
    for (uint32_t bucket = 0; bucket < 3; ++bucket) expectSums(bucket);
}

TEST_P(GpuExchange, anAbortAtAnyTimeLeavesInputsWholeAndTheNextAttemptWorks) {
    for (uint32_t attempt = 1; attempt < 12; attempt += 2) {
        configure({1, 1, 1, attempt});
        std::vector<absl::Status> status(ranks_->size());
        std::thread coordinator([&] {
            // Later each time: into the copies, the sums, and what comes after.
            const uint64_t until = exchanges_[0]->progress() + 3 * attempt;
            while (exchanges_[0]->progress() < until && exchanges_[0]->stats().buckets == 0)
                std::this_thread::yield();
            for (auto& e : exchanges_) e->abort({1, 1, 1, attempt}, "void");
        });
        all([&](size_t m) { status[m] = reduce(m, attempt); });
        coordinator.join();
        for (size_t m = 0; m < ranks_->size(); ++m) {
            EXPECT_TRUE(status[m].ok() || absl::IsAborted(status[m])) << status[m];
            EXPECT_TRUE(
                sameBits(gpu_[m]->read<float>(in_[m], kCount), gradient(m, 1, attempt, kCount)));
        }
        configure({1, 1, 1, attempt + 1});
        expectSums(attempt);
    }
}

INSTANTIATE_TEST_SUITE_P(Cases, GpuExchange,
                         ::testing::Values(Case{2, Wiring::kShm, WireType::kFloat32},
                                           Case{4, Wiring::kShm, WireType::kFloat32},
                                           Case{4, Wiring::kShm, WireType::kBfloat16},
                                           Case{4, Wiring::kTcp, WireType::kFloat32},
                                           Case{4, Wiring::kTcp, WireType::kBfloat16},
                                           Case{4, Wiring::kMixed, WireType::kBfloat16}),
                         [](const auto& info) {
                             return runtime::testing::wiringName(info.param.wiring) +
                                    std::to_string(info.param.ranks) +
                                    (info.param.wire == WireType::kBfloat16 ? "Bf16" : "");
                         });

}  // namespace
}  // namespace bulkhead::support
