// SPDX-License-Identifier: Apache-2.0
// Ranks as processes that read each other's GPU memory through CUDA IPC; one is killed. The test's
// own process never touches the GPU: a driver does not survive a fork.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <atomic>
#include <cstring>
#include <functional>

#include "backend/runtime/ftar/exchange.h"
#include "tests/ftar/exchange_group.h"
#include "tests/support/gpu_plugin.h"

namespace bulkhead::support {
namespace {

using runtime::testing::gradient;
using runtime::testing::Ranks;
using runtime::testing::sameBits;
using runtime::testing::Wiring;

constexpr size_t kCount = 1'000'003;
constexpr size_t kRanks = 3;
constexpr size_t kVictim = 1;

/// Results that a rank's process gives the test, in memory that all of them share.
struct Told {
    std::atomic<uint32_t> opened;    ///< 1: no GPU answers, 2: one does
    std::atomic<uint32_t> buckets;   ///< with the right sum
    std::atomic<uint32_t> finished;  ///< 1: as it should be; 2: not
    char why[256];
};

class GpuProcess : public ::testing::Test {
  protected:
    GpuProcess() {
        told_ = static_cast<Told*>(::mmap(nullptr, sizeof(Told) * kRanks, PROT_READ | PROT_WRITE,
                                          MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    }
    ~GpuProcess() override {
        for (const pid_t child : children_) {
            ::kill(child, SIGKILL);
            ::waitpid(child, nullptr, 0);
        }
        ::munmap(told_, sizeof(Told) * kRanks);
    }

    using Body = std::function<absl::Status(size_t i, GpuPlugin& plugin, GpuRank& gpu)>;
    void start(const Body& body) {
        for (size_t i = 0; i < kRanks; ++i) {
            const pid_t child = ::fork();
            if (child == 0) {
                rank(i, body);
                ::_exit(0);
            }
            children_.push_back(child);
        }
    }

    void say(size_t i, const std::string& why) {
        std::strncpy(told_[i].why, why.c_str(), sizeof told_[i].why - 1);
    }

    void rank(size_t i, const Body& body) {
        GpuPlugin plugin(BULKHEAD_CUDA_PLUGIN);
        if (const std::string why = plugin.whyNot(); !why.empty()) {
            say(i, why);
            told_[i].opened = 1;
            return;
        }
        told_[i].opened = 2;
        GpuRank gpu(plugin);
        const absl::Status s =
            gpu.ok() ? body(i, plugin, gpu) : absl::InternalError(plugin.error());
        say(i, std::string(s.message()));
        told_[i].finished = s.ok() ? 1 : 2;
    }

    /// Reduces until a peer is lost, then among the survivors.
    absl::Status train(size_t i, GpuPlugin& plugin, GpuRank& gpu) {
        float* in = gpu.floats(kCount);
        float* out = gpu.floats(kCount);
        runtime::ExchangeOptions options = ranks_.options(i);
        options.directBytes = 1u << 20;
        options.device = {&plugin.plane(), gpu.plane()};
        auto exchange = runtime::makeExchange(options).value();
        const std::vector<float> input = gradient(i, 1, 0, kCount);
        if (!gpu.copy(in, input.data(), kCount * sizeof(float)))
            return absl::InternalError(plugin.error());
        absl::Status s = exchange->configure(ranks_.group(ranks_.all(), i, {1, 1, 1, 1}));
        const std::vector<float> all = ranks_.sum(ranks_.all(), 1, 0, kCount);
        while (s.ok()) {
            s = exchange->reduce(told_[i].buckets, {in, kCount}, {out, kCount});
            if (!s.ok()) break;
            if (!sameBits(gpu.read<float>(out, kCount), all)) return absl::DataLossError("sum");
            ++told_[i].buckets;
        }
        if (!sameBits(gpu.read<float>(in, kCount), input)) return absl::DataLossError("input");
        const std::vector<size_t> left{0, 2};
        s = exchange->configure(ranks_.group(left, i, {1, 2, 1, 2}));
        if (s.ok()) s = exchange->reduce(0, {in, kCount}, {out, kCount});
        if (s.ok() && !sameBits(gpu.read<float>(out, kCount), ranks_.sum(left, 1, 0, kCount)))
            return absl::DataLossError("sum of the survivors");
        return s;
    }

    /// Reduces, has its gradient and sum elsewhere as after a move of experts, and reduces again.
    absl::Status move(size_t i, GpuPlugin& plugin, GpuRank& gpu) {
        runtime::ExchangeOptions options = ranks_.options(i);
        options.device = {&plugin.plane(), gpu.plane()};
        auto exchange = runtime::makeExchange(options).value();
        const std::vector<float> input = gradient(i, 1, 0, kCount);
        const std::vector<float> all = ranks_.sum(ranks_.all(), 1, 0, kCount);
        for (const uint64_t epoch : {1, 2, 3}) {
            float* in = gpu.floats(kCount);
            float* out = gpu.floats(kCount);
            if (out == nullptr || !gpu.copy(in, input.data(), kCount * sizeof(float)))
                return absl::InternalError(plugin.error());
            absl::Status s =
                exchange->configure(ranks_.group(ranks_.all(), i, {1, epoch, epoch, 1}));
            if (s.ok()) s = exchange->reduce(0, {in, kCount}, {out, kCount});
            if (!s.ok()) return s;
            if (!sameBits(gpu.read<float>(out, kCount), all)) return absl::DataLossError("sum");
            bulkhead_device_info info{};
            (void)plugin.device().describe(gpu.device(), &info);
            if (info.memory_used != 2 * kCount * sizeof(float))
                return absl::InternalError("what was freed before this exchange is still there");
            ++told_[i].buckets;
            // The others are still in the epoch, and map both.
            gpu.release(in);
            gpu.release(out);
        }
        (void)plugin.plane().leave(gpu.plane());
        ++told_[i].buckets;
        until({0, 1, 2}, [](const Told& t) { return t.buckets == 4; });
        return absl::OkStatus();
    }

    template <class Condition>
    void until(const std::vector<size_t>& who, Condition condition) const {
        for (const size_t i : who)
            for (int tries = 0; !condition(told_[i]); ++tries) {
                ASSERT_LT(tries, 60'000) << told_[i].why;
                ASSERT_NE(told_[i].finished, 2u) << told_[i].why;
                ::usleep(1000);
            }
    }

    Ranks ranks_{kRanks, Wiring::kShm};
    Told* told_ = nullptr;
    std::vector<pid_t> children_;
};

TEST_F(GpuProcess, aKilledRankLeavesTheOthersTheirInputsAndTheySumOnWithoutIt) {
    start([this](auto&&... rank) { return train(rank...); });
    until({0, 1, 2}, [](const Told& t) { return t.opened != 0; });
    if (told_[0].opened == 1) GTEST_SKIP() << "no GPU answers: " << told_[0].why;
    until({0, 1, 2}, [](const Told& t) { return t.buckets >= 5; });
    ::kill(children_[kVictim], SIGKILL);
    until({0, 2}, [](const Told& t) { return t.finished != 0; });
    for (const size_t i : {0, 2}) EXPECT_EQ(told_[i].finished, 1u) << told_[i].why;
}

TEST_F(GpuProcess, memoryThatPeersStillMapGoesWhenAllHaveMetAgain) {
    start([this](auto&&... rank) { return move(rank...); });
    until({0, 1, 2}, [](const Told& t) { return t.opened != 0; });
    if (told_[0].opened == 1) GTEST_SKIP() << "no GPU answers: " << told_[0].why;
    until({0, 1, 2}, [](const Told& t) { return t.finished != 0; });
    for (const size_t i : {0, 1, 2}) EXPECT_EQ(told_[i].finished, 1u) << told_[i].why;
}

}  // namespace
}  // namespace bulkhead::support
