// SPDX-License-Identifier: Apache-2.0
// The built plugin as a job has it: one process per shard, the CPU device between them.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cmath>

#include "backend/runtime/collectives/cpu_device.h"
#include "tests/collectives/group_ranks.h"
#include "tests/plugins/model.h"

namespace bulkhead::test {
namespace {

constexpr size_t kSteps = 20;
constexpr size_t kSamples = 8;
constexpr uint32_t kSequence = 16;

/// Ends the child with a line on standard error; the parent sees the status.
void must(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "child: %s failed\n", what);
    ::_exit(1);
}

const bulkhead_host kHost{nullptr, [](void*, int32_t, const char*) {},
                          [](void*, const char* line) { std::fprintf(stderr, "%s\n", line); }};

class ShardProcess {
  public:
    ShardProcess(const runtime::testing::GroupRanks& ranks, size_t shard)
        : device_(runtime::cpuDeviceApi(BULKHEAD_DEVICE_ABI)),
          shard_(shard),
          shards_(ranks.size()) {
        must(device_->open(&kHost, 0, &memory_) == BULKHEAD_OK, "open");
        std::vector<bulkhead_peer> peers;
        for (const runtime::GroupPeer& p : ranks.peers())
            peers.push_back({p.host.c_str(), p.data.c_str(), p.shm.c_str()});
        bulkhead_group_desc desc{};
        desc.struct_size = sizeof(desc);
        desc.rank = static_cast<int32_t>(shard);
        desc.size = static_cast<int32_t>(shards_);
        desc.name = "workload";
        desc.peers = peers.data();
        desc.timeout_ms = 60'000;
        desc.secret[0] = 7;
        desc.listen_fd = ranks.listener(shard);
        must(device_->group_create(memory_, &desc, &group_) == BULKHEAD_OK, "group_create");
        open();
    }

    std::array<double, kSteps> train() {
        std::array<double, kSteps> losses{};
        for (size_t i = 0; i < kSteps; ++i) {
            if (i == kSteps / 2) swapShards();
            losses[i] = step(i);
        }
        return losses;
    }

  private:
    void open() {
        void* library = ::dlopen(BULKHEAD_PLUGIN, RTLD_NOW | RTLD_LOCAL);
        must(library != nullptr, "dlopen");
        const auto get = reinterpret_cast<bulkhead_workload_get_api_fn>(
            ::dlsym(library, BULKHEAD_WORKLOAD_GET_API));
        must(get != nullptr, "dlsym");
        api_ = get(BULKHEAD_WORKLOAD_ABI);
        bulkhead_workload_config config{};
        config.struct_size = sizeof(config);
        config.host = &kHost;
        config.device_api = device_;
        config.device = memory_;
        config.group = group_;
        config.shard = static_cast<int32_t>(shard_);
        config.shards = static_cast<int32_t>(shards_);
        config.model_toml = kSmallModel;
        config.sequence_length = kSequence;
        config.micro_batch = kSamples;
        config.domains = 2;
        config.beta1 = 0.9f;
        config.beta2 = 0.95f;
        config.epsilon = 1e-8f;
        config.weight_decay = 0.1f;
        must(api_->create(&config, &workload_) == BULKHEAD_OK, "create");
        must(api_->initialise(workload_, 5) == BULKHEAD_OK, "initialise");
    }

    /// All experts change places, half way through.
    void swapShards() {
        std::vector<int32_t> placement(16);
        must(api_->layout(workload_, placement.data(), 16) == BULKHEAD_OK, "layout");
        for (int32_t& shard : placement) shard = static_cast<int32_t>(shards_) - 1 - shard;
        uint64_t moved = 0;
        must(api_->change_layout(workload_, placement.data(), 16, &moved) == BULKHEAD_OK,
             "change_layout");
        must(moved > 0, "moving something");
        must(api_->settle_layout(workload_, 1) == BULKHEAD_OK, "settle_layout");
    }

    double step(size_t i) {
        const size_t each = kSamples / shards_;
        const auto text = someText(kSamples, kSequence, i);
        std::vector<int32_t> tokens;
        std::vector<uint32_t> domains;
        for (size_t k = shard_ * each; k < (shard_ + 1) * each; ++k) {
            tokens.insert(tokens.end(), text[k].tokens.begin(), text[k].tokens.end());
            domains.push_back(text[k].domain);
        }
        const bulkhead_batch batch{
            sizeof(batch), static_cast<uint32_t>(each), tokens.data(), domains.data(), 1, 1};
        must(api_->forward_backward(workload_, &batch, nullptr, nullptr) == BULKHEAD_OK,
             "forward_backward");
        bulkhead_metrics metrics{};
        metrics.struct_size = sizeof(metrics);
        must(api_->metrics(workload_, &metrics) == BULKHEAD_OK, "metrics");
        float* gradient = nullptr;
        uint64_t count = 0;
        bulkhead_memory kind{};
        must(api_->gradient(workload_, &gradient, &count, &kind) == BULKHEAD_OK, "gradient");
        const auto power = static_cast<double>(i + 1);
        const bulkhead_update update{sizeof(update),
                                     i + 1,
                                     3e-3f,
                                     1.0f / (kSamples * kSequence),
                                     static_cast<float>(1 - std::pow(0.9, power)),
                                     static_cast<float>(1 - std::pow(0.95, power))};
        must(api_->apply(workload_, gradient, &update) == BULKHEAD_OK, "apply");
        return metrics.loss_sum / (kSamples * kSequence);
    }

    const bulkhead_device_api* device_;
    size_t shard_;
    size_t shards_;
    bulkhead_device* memory_ = nullptr;
    bulkhead_group* group_ = nullptr;
    const bulkhead_workload_api* api_ = nullptr;
    bulkhead_workload* workload_ = nullptr;
};

std::vector<double> curveOf(size_t shards) {
    const runtime::testing::GroupRanks ranks(shards, runtime::PeerChoice::kAuto);
    std::vector<std::pair<pid_t, int>> children;
    for (size_t s = 0; s < shards; ++s) {
        int ends[2];
        EXPECT_EQ(::pipe(ends), 0);
        const pid_t child = ::fork();
        if (child == 0) {
            const auto losses = ShardProcess(ranks, s).train();
            const auto bytes = static_cast<ssize_t>(sizeof(losses));
            must(::write(ends[1], losses.data(), sizeof(losses)) == bytes, "write");
            ::_exit(0);
        }
        ::close(ends[1]);
        children.emplace_back(child, ends[0]);
    }
    std::vector<double> sum(kSteps, 0.0);
    for (const auto& [child, end] : children) {
        std::array<double, kSteps> losses{};
        EXPECT_EQ(::read(end, losses.data(), sizeof(losses)), static_cast<ssize_t>(sizeof(losses)));
        ::close(end);
        int code = 0;
        ::waitpid(child, &code, 0);
        EXPECT_TRUE(WIFEXITED(code) && WEXITSTATUS(code) == 0);
        for (size_t i = 0; i < kSteps; ++i) sum[i] += losses[i];
    }
    return sum;
}

TEST(ShardProcesses, TwoAndFourGiveTheCurveOfOneEvenWhenExpertsMove) {
    Model one({.microBatch = kSamples});
    one.initialise(5);
    std::vector<double> expected;
    for (size_t i = 0; i < kSteps; ++i)
        expected.push_back(one.step(someText(kSamples, kSequence, i), 3e-3f));
    for (const size_t shards : {2, 4}) {
        SCOPED_TRACE(shards);
        EXPECT_THAT(curveOf(shards), testing::Pointwise(testing::DoubleNear(1e-4), expected));
    }
}

}  // namespace
}  // namespace bulkhead::test
