// SPDX-License-Identifier: Apache-2.0
// Without a GPU no communicator can be made; that the library which the plugin will look for is
// found and has all that it calls can be known.
#include <gtest/gtest.h>

#include "plugins/cuda/nccl_library.h"

namespace bulkhead::cuda {
namespace {

TEST(Nccl, whatTheGroupCallsIsInTheLibraryAndOfTheHeadersMajorVersion) {
    const absl::StatusOr<const NcclLibrary*> nccl = ncclLibrary();
    ASSERT_TRUE(nccl.ok()) << nccl.status();
    int version = 0;
    EXPECT_EQ((*nccl)->getVersion(&version), ncclSuccess);
    EXPECT_EQ(version / 10'000, NCCL_MAJOR);
    EXPECT_GE(version, 21'800) << "ncclConfig_t and non-blocking groups as they are used";
}

}  // namespace
}  // namespace bulkhead::cuda
