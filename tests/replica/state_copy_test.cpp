// SPDX-License-Identifier: Apache-2.0
// Snapshots of a state that is on a device, while the workload goes on there.
#include "backend/runtime/replica/worker/state_copy.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>

namespace bulkhead::runtime {
namespace {

const std::string kPlugins = FAKE_PLUGINS;

class StateCopyTest : public ::testing::Test {
  protected:
    void SetUp() override {
        const auto device = loadDevice("fake", {kPlugins});
        const auto workload = loadWorkload("bigram", {kPlugins});
        ASSERT_TRUE(device.ok() && workload.ok()) << device.status() << workload.status();
        source_.deviceApi = *device;
        source_.api = *workload;
        source_.log = &log_;
        ASSERT_TRUE(log_.check((*device)->open(log_.host(), 0, &source_.device), "open").ok());
        bulkhead_workload_config config{};
        config.struct_size = sizeof config;
        config.host = log_.host();
        config.device_api = *device;
        config.device = source_.device;
        config.shards = 1;
        config.model_toml = config.model_dir = "";
        config.sequence_length = 4;
        config.micro_batch = config.domains = 1;
        config.beta1 = 0.9f;
        ASSERT_TRUE(log_.check((*workload)->create(&config, &source_.workload), "create").ok());
        ASSERT_EQ((*workload)->initialise(source_.workload, 7), BULKHEAD_OK);
        bulkhead_model_info info{};
        ASSERT_EQ((*workload)->describe(source_.workload, &info), BULKHEAD_OK);
        bytes_ = info.state_bytes;
        void* object = dlopen((kPlugins + "/bulkhead_device_fake.so").c_str(), RTLD_NOW);
        hold_ = reinterpret_cast<void (*)(int)>(dlsym(object, "bulkhead_fake_hold_streams"));
        ASSERT_NE(hold_, nullptr);
        auto copy = StateCopy::create(source_);
        ASSERT_TRUE(copy.ok()) << copy.status();
        copy_ = *std::move(copy);
    }
    void TearDown() override {
        hold_(0);
        copy_.reset();
        source_.api->destroy(source_.workload);
        source_.deviceApi->close(source_.device);
    }

    std::vector<std::byte> exported() const {
        std::vector<std::byte> state(bytes_);
        EXPECT_EQ(source_.api->export_state(source_.workload, 0, bytes_, state.data()),
                  BULKHEAD_OK);
        return state;
    }
    void compute() const {
        const int32_t tokens[5] = {1, 2, 3, 4, 5};
        const uint32_t domain = 0;
        const bulkhead_batch batch{sizeof batch, 1, tokens, &domain, 1, 1};
        const auto ready = [](void*, uint64_t, uint64_t) {};
        ASSERT_EQ(source_.api->forward_backward(source_.workload, &batch, ready, nullptr),
                  BULKHEAD_OK);
    }
    void update() const {
        float* gradient = nullptr;
        uint64_t count = 0;
        bulkhead_memory kind{};
        ASSERT_EQ(source_.api->gradient(source_.workload, &gradient, &count, &kind), BULKHEAD_OK);
        const bulkhead_update update{sizeof update, 1, 0.1f, 1, 1, 1};
        ASSERT_EQ(source_.api->apply(source_.workload, gradient, &update), BULKHEAD_OK);
    }
    void begin(std::vector<std::byte>* to) {
        done_ = false;
        copy_->begin(bytes_, to, [this](const absl::Status& status) {
            status_ = status;
            done_ = true;
        });
    }

    PluginLog log_;
    StateCopy::Source source_;
    uint64_t bytes_ = 0;
    void (*hold_)(int) = nullptr;
    std::unique_ptr<StateCopy> copy_;
    absl::Status status_;
    std::atomic<bool> done_{false};
};

TEST_F(StateCopyTest, computingGoesOnWhileTheCopyHasNotEvenBegun) {
    const std::vector<std::byte> before = exported();
    std::vector<std::byte> copy;
    hold_(1);
    begin(&copy);
    compute();
    compute();
    EXPECT_FALSE(done_);
    hold_(0);
    copy_->await();
    ASSERT_TRUE(done_);
    EXPECT_TRUE(status_.ok()) << status_;
    EXPECT_EQ(copy, before);
}

TEST_F(StateCopyTest, eachIsTheStateOfItsStepBitForBit) {
    std::vector<std::vector<std::byte>> copies(4), states;
    for (std::vector<std::byte>& copy : copies) {
        states.push_back(exported());
        begin(&copy);
        compute();
        copy_->await();
        update();
    }
    for (size_t i = 0; i < copies.size(); ++i) {
        EXPECT_EQ(copies[i], states[i]) << i;
        if (i > 0) {
            EXPECT_NE(copies[i], states[i - 1]) << "the update changed it";
        }
    }
}

TEST_F(StateCopyTest, aSecondWaitsForTheFirst) {
    std::vector<std::byte> first, second;
    begin(&first);
    begin(&second);
    copy_->await();
    EXPECT_EQ(first, exported());
    EXPECT_EQ(second, exported());
}

TEST_F(StateCopyTest, whatTheDeviceRefusesIsToldAndTheNextOneWorks) {
    std::vector<std::byte> none, copy;
    bulkhead_workload_api refusing = *source_.api;
    refusing.export_state_on = [](bulkhead_workload*, uint64_t, uint64_t, void*, bulkhead_stream*) {
        return BULKHEAD_OUT_OF_MEMORY;
    };
    StateCopy::Source source = source_;
    source.api = &refusing;
    auto refused = StateCopy::create(source);
    ASSERT_TRUE(refused.ok());
    absl::Status status;
    (*refused)->begin(bytes_, &none, [&](const absl::Status& s) { status = s; });
    (*refused)->await();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    begin(&copy);
    copy_->await();
    EXPECT_EQ(copy, exported());
}

}  // namespace
}  // namespace bulkhead::runtime
