// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/worker/device_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace bulkhead::runtime {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// A workload that is asked nothing but where it computes.
bulkhead_workload_api workloadOn(int32_t (*computesOn)(const char*)) {
    bulkhead_workload_api api{};
    api.name = "some";
    api.computes_on = computesOn;
    return api;
}
const bulkhead_workload_api kCpuOnly =
    workloadOn([](const char* device) -> int32_t { return std::strcmp(device, "cpu") == 0; });
const bulkhead_workload_api kAnywhere = workloadOn([](const char*) -> int32_t { return 1; });
const bulkhead_workload_api kNowhere = workloadOn([](const char*) -> int32_t { return 0; });

class DeviceChoice : public ::testing::Test {
  protected:
    absl::StatusOr<ChosenDevice> choose(const std::string& wanted,
                                        const bulkhead_workload_api& workload,
                                        const std::vector<std::string>& folders) {
        auto chosen = chooseDevice(wanted, workload, log_, folders);
        if (chosen.ok()) opened_.push_back(*chosen);
        return chosen;
    }
    ~DeviceChoice() override {
        for (const ChosenDevice& d : opened_) d.api->close(d.device);
    }
    PluginLog log_;
    std::vector<ChosenDevice> opened_;
};

TEST_F(DeviceChoice, theCpuIsOpenedWithoutAPluginAndReplacesNothing) {
    const auto chosen = choose("cpu", kCpuOnly, {});
    ASSERT_TRUE(chosen.ok()) << chosen.status();
    EXPECT_STREQ(chosen->api->name, "cpu");
    EXPECT_THAT(chosen->instead, IsEmpty());
}

TEST_F(DeviceChoice, withoutTheCudaPluginTheCpuTakesOverAndSaysSo) {
    const auto chosen = choose("auto", kAnywhere, {"/nowhere"});
    ASSERT_TRUE(chosen.ok()) << chosen.status();
    EXPECT_STREQ(chosen->api->name, "cpu");
    EXPECT_EQ(chosen->instead, "this build has no CUDA device");
}

TEST_F(DeviceChoice, aNamedDeviceThatIsNotThereIsAnError) {
    EXPECT_TRUE(absl::IsNotFound(choose("cuda", kAnywhere, {"/nowhere"}).status()));
}

TEST_F(DeviceChoice, aWorkloadIsNotPutOnADeviceItDoesNotKnow) {
    const absl::Status status = choose("cpu", kNowhere, {}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("does not compute on device cpu"));
}

#ifdef BULKHEAD_CUDA_PLUGINS
// The plugin as it was built. With a GPU that answers it is opened, and the workload decides;
// without one it says so in one line, and the CPU takes over.
TEST_F(DeviceChoice, theBuiltPluginIsLoadedAndAnswersForItsDriver) {
    const auto named = choose("cuda", kAnywhere, {BULKHEAD_CUDA_PLUGINS});
    const auto chosen = choose("auto", kAnywhere, {BULKHEAD_CUDA_PLUGINS});
    ASSERT_TRUE(chosen.ok()) << chosen.status();
    if (named.ok()) {
        EXPECT_STREQ(chosen->api->name, "cuda");
        return;
    }
    EXPECT_TRUE(absl::IsUnavailable(named.status())) << named.status();
    const std::string why(named.status().message());
    EXPECT_THAT(why, HasSubstr("device cuda: "));
    EXPECT_THAT(why, HasSubstr("driver"));
    EXPECT_EQ(why.find('\n'), std::string::npos);
    EXPECT_STREQ(chosen->api->name, "cpu");
    EXPECT_EQ(chosen->instead, why);
}

TEST_F(DeviceChoice, aWorkloadOfTheCpuStaysThereWhateverAnswers) {
    const auto chosen = choose("auto", kCpuOnly, {BULKHEAD_CUDA_PLUGINS});
    ASSERT_TRUE(chosen.ok()) << chosen.status();
    EXPECT_STREQ(chosen->api->name, "cpu");
    EXPECT_FALSE(chosen->instead.empty());
}
#endif

}  // namespace
}  // namespace bulkhead::runtime
