// SPDX-License-Identifier: Apache-2.0
// Copies of a state that is on a device, while the workload goes on there.
#include "backend/runtime/replica/device_copy.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <span>
#include <string>
#include <vector>

namespace bulkhead::runtime {
namespace {

const std::string kPlugins = FAKE_PLUGINS;

class DeviceCopyTest : public ::testing::Test {
  protected:
    void SetUp() override {
        const auto device = loadDevice("fake", {kPlugins});
        const auto workload = loadWorkload("bigram", {kPlugins});
        ASSERT_TRUE(device.ok() && workload.ok()) << device.status() << workload.status();
        device_.api = *device;
        api_ = *workload;
        device_.log = &log_;
        ASSERT_TRUE(log_.check((*device)->open(log_.host(), 0, &device_.device), "open").ok());
        bulkhead_workload_config config{};
        config.struct_size = sizeof config;
        config.host = log_.host();
        config.device_api = *device;
        config.device = device_.device;
        config.shards = 1;
        config.model_toml = config.model_dir = "";
        config.sequence_length = 4;
        config.micro_batch = config.domains = 1;
        config.beta1 = 0.9f;
        ASSERT_TRUE(log_.check((*workload)->create(&config, &workload_), "create").ok());
        ASSERT_EQ((*workload)->initialise(workload_, 7), BULKHEAD_OK);
        bulkhead_model_info info{};
        ASSERT_EQ((*workload)->describe(workload_, &info), BULKHEAD_OK);
        bytes_ = info.state_bytes;
        void* object = dlopen((kPlugins + "/bulkhead_device_fake.so").c_str(), RTLD_NOW);
        hold_ = reinterpret_cast<void (*)(int)>(dlsym(object, "bulkhead_fake_hold_streams"));
        ASSERT_NE(hold_, nullptr);
        auto copy = DeviceCopy::create(device_);
        ASSERT_TRUE(copy.ok()) << copy.status();
        copy_ = *std::move(copy);
    }
    void TearDown() override {
        hold_(0);
        copy_.reset();
        api_->destroy(workload_);
        device_.api->close(device_.device);
    }

    std::vector<std::byte> exported() const {
        std::vector<std::byte> state(bytes_);
        EXPECT_EQ(api_->export_state(workload_, 0, bytes_, state.data()), BULKHEAD_OK);
        return state;
    }
    void compute() const {
        const int32_t tokens[5] = {1, 2, 3, 4, 5};
        const uint32_t domain = 0;
        const bulkhead_batch batch{sizeof batch, 1, tokens, &domain, 1, 1};
        const auto ready = [](void*, uint64_t, uint64_t) {};
        ASSERT_EQ(api_->forward_backward(workload_, &batch, ready, nullptr), BULKHEAD_OK);
    }
    void update() const {
        float* gradient = nullptr;
        uint64_t count = 0;
        bulkhead_memory kind{};
        ASSERT_EQ(api_->gradient(workload_, &gradient, &count, &kind), BULKHEAD_OK);
        const bulkhead_update update{sizeof update, 1, 0.1f, 1, 1, 1};
        ASSERT_EQ(api_->apply(workload_, gradient, &update), BULKHEAD_OK);
    }
    void begin(std::vector<std::byte>* to) {
        done_ = false;
        copy_->begin({bytes_,
                      [this](uint64_t at, uint64_t bytes, void* piece, bulkhead_stream* stream) {
                          return refuses_
                                     ? BULKHEAD_OUT_OF_MEMORY
                                     : api_->export_state_on(workload_, at, bytes, piece, stream);
                      },
                      [to](std::span<const std::byte> part) {
                          to->insert(to->end(), part.begin(), part.end());
                      },
                      [this](const absl::Status& status) {
                          status_ = status;
                          done_ = true;
                      }});
    }

    /// Of the state, as a rank takes it.
    void snapshot(StateBytes* to) {
        done_ = false;
        copy_->snapshot(
            bytes_,
            [this](uint64_t at, uint64_t bytes, void* piece, bulkhead_stream* stream) {
                return refuses_ ? BULKHEAD_OUT_OF_MEMORY
                                : api_->export_state_on(workload_, at, bytes, piece, stream);
            },
            to,
            [this](const absl::Status& status) {
                status_ = status;
                done_ = true;
            });
    }
    static std::vector<std::byte> contents(const StateBytes& bytes) {
        return {bytes.begin(), bytes.end()};
    }

    PluginLog log_;
    OpenDevice device_;
    const bulkhead_workload_api* api_ = nullptr;
    bulkhead_workload* workload_ = nullptr;
    uint64_t bytes_ = 0;
    void (*hold_)(int) = nullptr;
    std::unique_ptr<DeviceCopy> copy_;
    absl::Status status_;
    std::atomic<bool> done_{false}, refuses_{false};
};

TEST_F(DeviceCopyTest, computingGoesOnWhileTheCopyHasNotEvenBegun) {
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

TEST_F(DeviceCopyTest, eachIsTheStateOfItsStepBitForBit) {
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

TEST_F(DeviceCopyTest, theyAreMadeOneBehindTheOther) {
    std::vector<std::byte> first, second;
    copy_->await();
    begin(&first);
    begin(&second);
    copy_->await();
    EXPECT_EQ(first, exported());
    EXPECT_EQ(second, exported());
}

TEST_F(DeviceCopyTest, oneThatIsGivenUpEndsAtItsNextPartAndSaysSo) {
    std::vector<absl::Status> ends;
    for (int i = 0; i < 2; ++i)  // longer than anybody waits
        copy_->begin({uint64_t{1} << 60,
                      [](uint64_t, uint64_t, void*, bulkhead_stream*) { return BULKHEAD_OK; },
                      nullptr, [&](const absl::Status& s) { ends.push_back(s); }});
    copy_->giveUp();
    ASSERT_EQ(ends.size(), 2u);
    for (const absl::Status& end : ends) EXPECT_TRUE(absl::IsCancelled(end)) << end;
    copy_->giveUp();
    std::vector<std::byte> next;
    begin(&next);
    copy_->await();
    EXPECT_TRUE(status_.ok()) << status_;
    EXPECT_EQ(next, exported());
}

TEST_F(DeviceCopyTest, theRoomIsLentToOneStateAtATimeWhoeverBringsIt) {
    copy_->makeRoom(bytes_);
    {
        const StateBytes fetched = copy_->lend(bytes_);
        EXPECT_TRUE(fetched.lent());
        EXPECT_FALSE(copy_->lend(bytes_).lent());
        StateBytes state;
        snapshot(&state);
        copy_->await();
        EXPECT_FALSE(state.lent());
        EXPECT_EQ(contents(state), exported());
    }
    EXPECT_FALSE(copy_->lend(bytes_ + 1).lent());
    EXPECT_TRUE(copy_->lend(bytes_).lent());
}

TEST_F(DeviceCopyTest, whatTheDeviceRefusesIsToldAndTheNextOneWorks) {
    std::vector<std::byte> none, copy;
    refuses_ = true;
    begin(&none);
    copy_->await();
    EXPECT_TRUE(absl::IsResourceExhausted(status_)) << status_;
    refuses_ = false;
    begin(&copy);
    copy_->await();
    EXPECT_TRUE(status_.ok()) << status_;
    EXPECT_EQ(copy, exported());
}

TEST_F(DeviceCopyTest, statesGoIntoTheRoomThatWasMadeForThemOneAfterTheOther) {
    copy_->makeRoom(bytes_);
    const std::byte* room = nullptr;
    for (int i = 0; i < 3; ++i) {
        const std::vector<std::byte> before = exported();
        StateBytes state;
        snapshot(&state);
        compute();
        copy_->await();
        EXPECT_TRUE(status_.ok()) << status_;
        EXPECT_TRUE(state.lent());
        EXPECT_EQ(contents(state), before);
        EXPECT_TRUE(room == nullptr || room == state.data());
        room = state.data();
        update();
    }
}

TEST_F(DeviceCopyTest, computingGoesOnWhileAStateHasNotBegunItsWayIntoTheRoom) {
    copy_->makeRoom(bytes_);
    const std::vector<std::byte> before = exported();
    StateBytes state;
    hold_(1);
    snapshot(&state);
    compute();
    EXPECT_FALSE(done_);
    hold_(0);
    copy_->await();
    EXPECT_EQ(contents(state), before);
}

TEST_F(DeviceCopyTest, whatSomebodyStillReadsIsNotWrittenOver) {
    copy_->makeRoom(bytes_);
    StateBytes first, second, third;
    snapshot(&first);
    copy_->await();
    const std::vector<std::byte> before = exported();
    compute();
    update();
    snapshot(&second);
    copy_->await();
    EXPECT_FALSE(second.lent());
    EXPECT_EQ(contents(first), before);
    EXPECT_EQ(contents(second), exported());
    EXPECT_NE(contents(first), contents(second));
    first = {};
    snapshot(&third);
    copy_->await();
    EXPECT_TRUE(third.lent());
    EXPECT_EQ(contents(third), exported());
}

TEST_F(DeviceCopyTest, aRoomThatIsTooSmallIsNotUsed) {
    copy_->makeRoom(bytes_ - 1);
    StateBytes state;
    snapshot(&state);
    copy_->await();
    EXPECT_FALSE(state.lent());
    EXPECT_EQ(contents(state), exported());
}

TEST_F(DeviceCopyTest, aHostWithoutSoMuchMemoryGivesNoRoom) {
    copy_->makeRoom(uint64_t{1} << 60);
    StateBytes state;
    snapshot(&state);
    copy_->await();
    EXPECT_TRUE(status_.ok()) << status_;
    EXPECT_FALSE(state.lent());
    EXPECT_EQ(contents(state), exported());
}

TEST_F(DeviceCopyTest, theRoomIsFreeAgainAfterARefusal) {
    copy_->makeRoom(bytes_);
    refuses_ = true;
    {
        StateBytes none;
        snapshot(&none);
        copy_->await();
        EXPECT_TRUE(absl::IsResourceExhausted(status_)) << status_;
    }
    refuses_ = false;
    StateBytes state;
    snapshot(&state);
    copy_->await();
    EXPECT_TRUE(state.lent());
    EXPECT_EQ(contents(state), exported());
}

TEST_F(DeviceCopyTest, aStateThatWasLentOutlivesItsCopier) {
    copy_->makeRoom(bytes_);
    StateBytes state;
    snapshot(&state);
    copy_->await();
    copy_.reset();
    EXPECT_EQ(contents(state), exported());
    device_.api->free(device_.device, state.data());  // else left to the process's end
}

}  // namespace
}  // namespace bulkhead::runtime
