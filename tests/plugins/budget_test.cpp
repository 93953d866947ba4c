// SPDX-License-Identifier: Apache-2.0
// GPU calls in a step of the `base` model, counted on a device that computes nothing.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "bulkhead/data_plane.h"
#include "plugins/llama_moe/workload.h"
#include "tests/plugins/recording_device.h"

namespace bulkhead::test {
namespace {

constexpr uint32_t kSequence = 2048, kSamples = 8, kMicroBatches = 4;
// Calls of one step; the host waits for the sum of squares. On an H100 kernels alone fill the step,
// since the host is ahead of them all the time: fewer launches would not make it shorter.
constexpr uint64_t kLaunches = 2'102, kSynchronisations = 1;
constexpr uint64_t kHashLaunches = 2;

class Budget : public ::testing::Test {
  protected:
    Budget() {
        bulkhead_workload_config config{};
        config.struct_size = sizeof config;
        config.host = &host_;
        config.device_api = recordingDevice();
        config.shards = 1;
        config.model_toml = "size = \"base\"";
        config.model_dir = BULKHEAD_MODELS;
        config.sequence_length = kSequence;
        config.micro_batch = kSamples;
        config.domains = 1;
        EXPECT_EQ(llama_moe::createOn(recordingMachine(), &config, &workload_), BULKHEAD_OK)
            << error_;
        info_.struct_size = sizeof info_;
        EXPECT_EQ(api_->describe(workload_, &info_), BULKHEAD_OK);
        for (size_t i = 0; i < kSamples * (kSequence + 1); ++i)
            tokens_.push_back(static_cast<int32_t>(i * 31 % 256));
        step();  // a rank's warm-up
        hash();
        clearRecord();
    }
    ~Budget() override { api_->destroy(workload_); }

    void compute(bool first, bool last) {
        const std::vector<uint32_t> domains(kSamples);
        const bulkhead_batch batch{sizeof batch,   kSamples, tokens_.data(),
                                   domains.data(), first,    last};
        ASSERT_EQ(api_->forward_backward(workload_, &batch, nullptr, nullptr), BULKHEAD_OK)
            << error_;
    }
    /// As a rank does it, but for the exchange.
    void step() {
        for (uint32_t i = 0; i < kMicroBatches; ++i) compute(i == 0, i + 1 == kMicroBatches);
        float* gradient = nullptr;
        uint64_t count = 0;
        bulkhead_memory kind{};
        ASSERT_EQ(api_->gradient(workload_, &gradient, &count, &kind), BULKHEAD_OK);
        double squares = 0;
        ASSERT_EQ(api_->sum_of_squares(workload_, gradient, &squares), BULKHEAD_OK);
        const bulkhead_update update{sizeof update, 1, 1e-4f, 1e-5f, 0.1f, 0.05f};
        ASSERT_EQ(api_->apply(workload_, gradient, &update), BULKHEAD_OK);
        std::vector<double> domainLoss(1);
        bulkhead_metrics metrics{};
        metrics.struct_size = sizeof metrics;
        metrics.domain_loss_sum = domainLoss.data();
        ASSERT_EQ(api_->metrics(workload_, &metrics), BULKHEAD_OK);
        EXPECT_EQ(metrics.tokens, uint64_t{kMicroBatches} * kSamples * kSequence);
    }
    /// Hashes the state, as a step with a parity check does.
    void hash() {
        uint64_t hash = 0;
        ASSERT_EQ(api_->hash(workload_, &hash), BULKHEAD_OK);
    }

    std::string error_;
    bulkhead_host host_{
        &error_, [](void*, int32_t, const char*) {},
        [](void* error, const char* line) { *static_cast<std::string*>(error) = line; }};
    const bulkhead_workload_api* api_ = llama_moe::workloadApi();
    bulkhead_workload* workload_ = nullptr;
    bulkhead_model_info info_{};
    std::vector<int32_t> tokens_;
};

TEST_F(Budget, AStepAllocatesNothing) {
    step();
    hash();
    EXPECT_EQ(record().allocations, 0u);
}

TEST_F(Budget, OfTheStateOnlyItsPiecesHashesComeToTheHost) {
    const uint64_t tokens = uint64_t{kMicroBatches} * kSamples * kSequence;
    step();
    hash();
    // Choices of eight mixtures, losses, and a hash of each 16 KiB.
    const uint64_t needed = tokens * (8 * sizeof(int32_t) + sizeof(double));
    EXPECT_GT(info_.state_bytes, uint64_t{8} << 30);
    EXPECT_LT(record().bytesToHost, needed + info_.state_bytes / 2048 + (1 << 20));
}

/// It would wait its turn behind a snapshot, and training behind it.
TEST_F(Budget, NothingComesToTheHostBeforeTheStepsLastBackwardPass) {
    compute(true, false);
    EXPECT_EQ(record().bytesToHost, 0u);
    compute(false, true);
    EXPECT_GE(record().bytesToHost,
              2 * kSamples * kSequence * (8 * sizeof(int32_t) + sizeof(double)));
}

TEST_F(Budget, LaunchesAndWaitsOfAStep) {
    step();
    EXPECT_EQ(record().kernels + record().products, kLaunches);
    EXPECT_EQ(record().synchronisations, kSynchronisations);
    hash();
    EXPECT_EQ(record().kernels + record().products, kLaunches + kHashLaunches);
    EXPECT_EQ(record().synchronisations, kSynchronisations + 1);
}

TEST_F(Budget, OnlyTheBackwardPassThatAnExchangeRunsBesideLeavesItRoom) {
    compute(true, false);
    EXPECT_EQ(record().productsWithRoom, 0u);
    const uint64_t before = record().products;
    compute(false, true);
    const uint64_t last = record().products - before;
    EXPECT_GT(record().productsWithRoom, last / 2);
    EXPECT_LT(record().productsWithRoom, last) << "none runs beside its forward pass";
    EXPECT_EQ(record().processorsLeft, BULKHEAD_EXCHANGE_PROCESSORS);
    clearRecord();
    compute(true, false);
    EXPECT_EQ(record().productsWithRoom, 0u);
}

}  // namespace
}  // namespace bulkhead::test
