// SPDX-License-Identifier: Apache-2.0
#include "plugins/cuda/driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace bulkhead::cuda {
namespace {

using ::testing::HasSubstr;

std::string refusal(const std::string& library) {
    const absl::Status status = countGpus(library.c_str()).status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    return std::string(status.message());
}

std::string fake(const std::string& kind) {
    return std::string(FAKE_DRIVERS) + "/fake_driver_" + kind + ".so";
}

TEST(Driver, withoutALibraryItSaysThatThereIsNoDriverAndWhatToDo) {
    const std::string why = refusal("libno-such-driver.so.1");
    EXPECT_THAT(why, HasSubstr("no CUDA driver on this machine"));
    EXPECT_THAT(why, HasSubstr("use device \"cpu\""));
}

TEST(Driver, oneThatDoesNotStartIsQuoted) {
    EXPECT_THAT(refusal(fake("broken")),
                HasSubstr("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (system has unsupported display"));
}

TEST(Driver, oneWithoutAGpuIsUnavailable) {
    EXPECT_THAT(refusal(fake("empty")), HasSubstr("shows no GPU"));
}

TEST(Driver, aLibraryThatIsNoDriverIsTold) {
    EXPECT_THAT(refusal("libm.so.6"), HasSubstr("lacks cuInit"));
}

TEST(Driver, gpusAreCounted) {
    EXPECT_EQ(countGpus(fake("two").c_str()).value(), 2);
}

}  // namespace
}  // namespace bulkhead::cuda
