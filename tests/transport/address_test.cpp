// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/address.h"

#include <gmock/gmock.h>

namespace bulkhead::runtime {
namespace {

TEST(AddressTest, AHostNameBecomesAnIpAddressAndTheRestStays) {
    EXPECT_EQ(*resolveHost("localhost:7171"), "127.0.0.1:7171");
    EXPECT_EQ(*resolveHost("localhost"), "127.0.0.1");
    for (const char* same : {"10.0.0.9:1", "10.0.0.9", "unix:/run/x", "[::1]:4", "::1"})
        EXPECT_EQ(*resolveHost(same), same);
    const std::string tooLong(300, 'a');  // is refused without asking a server
    const auto unknown = resolveHost(tooLong + ":1");
    EXPECT_TRUE(absl::IsUnavailable(unknown.status()));
    EXPECT_THAT(std::string(unknown.status().message()), ::testing::HasSubstr(tooLong));
}

}  // namespace
}  // namespace bulkhead::runtime
