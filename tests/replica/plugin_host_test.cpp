// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/plugin_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace bulkhead::runtime {
namespace {

using ::testing::HasSubstr;

std::string message(const absl::Status& status) {
    return std::string(status.message());
}

absl::Status loadBad(const std::string& name) {
    return loadWorkload(std::string(BAD_PLUGINS) + "/bad_plugin_" + name + ".so", {}).status();
}

TEST(PluginHost, anUnknownNameListsWhereItLooked) {
    const absl::Status s = loadWorkload("nosuch", {"/tmp/here", "/tmp/there"}).status();
    EXPECT_TRUE(absl::IsNotFound(s));
    EXPECT_THAT(message(s), HasSubstr("unknown workload \"nosuch\""));
    EXPECT_THAT(message(s), HasSubstr("/tmp/here, /tmp/there"));
}

TEST(PluginHost, aPathThatIsNotThereIsNamed) {
    EXPECT_THAT(message(loadWorkload("/tmp/absent.so", {}).status()), HasSubstr("/tmp/absent.so"));
}

TEST(PluginHost, anotherAbiVersionIsRefused) {
    const absl::Status s = loadBad("other_abi");
    EXPECT_TRUE(absl::IsFailedPrecondition(s));
    EXPECT_THAT(message(s), HasSubstr("does not serve workload ABI"));
}

TEST(PluginHost, aSmallerTableIsRefused) {
    EXPECT_THAT(message(loadBad("short_table")), HasSubstr("a table of 16 bytes"));
}

TEST(PluginHost, aLibraryThatIsNoPluginIsRefused) {
    EXPECT_THAT(message(loadBad("nothing")), HasSubstr("does not export"));
}

TEST(PluginHost, theLastLineOfAPluginBecomesTheStatusOnce) {
    PluginLog log;
    log.host()->error(log.host()->context, "experts = 7 does not divide by 2 shards");
    const absl::Status first = log.check(BULKHEAD_INVALID, "workload x");
    EXPECT_TRUE(absl::IsInvalidArgument(first));
    EXPECT_EQ(message(first), "workload x: experts = 7 does not divide by 2 shards");
    EXPECT_THAT(message(log.check(BULKHEAD_INTERNAL, "step 3")), HasSubstr("no reason"));
    EXPECT_TRUE(log.check(BULKHEAD_OK, "fine").ok());
}

}  // namespace
}  // namespace bulkhead::runtime
