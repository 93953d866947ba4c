// SPDX-License-Identifier: Apache-2.0
// Topologies: what a file says is what is meant, and every fault is refused by its place.
#include "backend/planner/topology/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/planner/topology/topology_toml.h"

namespace bulkhead::planner {
namespace {

using testing::HasSubstr;

constexpr const char* kTwoRacks = R"(name = "two racks"
[[level]]
name = "host"
count = 8
gigabytes_per_second = 450
microseconds = 2
[[level]]
name = "rack"
count = 4
gigabytes_per_second = 50
microseconds = 6
[[level]]
name = "spine"
count = 2
gigabytes_per_second = 25
microseconds = 12
)";

TEST(Topology, levelsSayWhatTwoNodesAreApart) {
    const auto t = parseTopology(kTwoRacks, "t.toml");
    ASSERT_TRUE(t.ok()) << t.status();
    EXPECT_EQ(t->nodes(), 8u);
    EXPECT_EQ(t->gpus(), 64u);
    EXPECT_EQ(t->levelBetween(2, 2), 0u);
    EXPECT_EQ(t->levelBetween(0, 3), 1u);
    EXPECT_EQ(t->levelBetween(3, 4), 2u);
    EXPECT_DOUBLE_EQ(t->linkBetween(3, 4).bytesPerSecond, 25e9);
    EXPECT_NEAR(t->linkBetween(0, 1).seconds, 6e-6, 1e-12);
}

TEST(Topology, aMatrixReplacesTheLevelsAboveTheHost) {
    const auto t = parseTopology(R"([[level]]
name = "host"
count = 2
gigabytes_per_second = 450
microseconds = 2
[matrix]
gigabytes_per_second = [[0, 50], [40, 0]]
microseconds = [[0, 6], [7, 0]]
)",
                                 "m.toml");
    ASSERT_TRUE(t.ok()) << t.status();
    EXPECT_EQ(t->nodes(), 2u);
    EXPECT_DOUBLE_EQ(t->linkBetween(1, 0).bytesPerSecond, 40e9);
    EXPECT_DOUBLE_EQ(t->linkBetween(0, 1).bytesPerSecond, 50e9);
    EXPECT_EQ(t->levelBetween(0, 1), 1u);
}

TEST(Topology, whatIsWrittenReadsBackTheSame) {
    for (const PresetName& preset : topologyPresets()) {
        const auto made = presetTopology(std::string(preset.name));
        ASSERT_TRUE(made.ok());
        EXPECT_TRUE(checkTopology(*made).ok());
        const auto back = parseTopology(formatTopology(*made), "x");
        ASSERT_TRUE(back.ok()) << back.status();
        EXPECT_EQ(back->nodes(), made->nodes());
        for (uint32_t n = 0; n < made->nodes(); ++n)
            EXPECT_NEAR(back->linkBetween(0, n).bytesPerSecond,
                        made->linkBetween(0, n).bytesPerSecond, 1);
    }
}

TEST(Topology, everyFaultNamesItsLine) {
    struct Case {
        std::string from, to, says;
    };
    for (const Case& c : std::vector<Case>{
             {"count = 4", "count = 0", "t.toml:9: count must be a whole number from 1 to 4096"},
             {"count = 4", "count = \"four\"", "t.toml:9: count"},
             {"count = 4", "hosts = 4", "'hosts' is not a key of a level"},
             {"microseconds = 6", "microseconds = -1", "t.toml:11: microseconds"},
             {"gigabytes_per_second = 50", "gigabytes_per_second = 0", "must be more than 0"},
             {"name = \"rack\"", "name = \"host\"", "name of its own"},
             {"name = \"rack\"", "", "name is missing"},
             {"count = 2", "count = 4096", "more than"},
             {"[[level]]", "[[level", "t.toml:2"}}) {
        std::string text = kTwoRacks;
        text.replace(text.find(c.from), c.from.size(), c.to);
        const auto t = parseTopology(text, "t.toml");
        ASSERT_FALSE(t.ok()) << c.to;
        EXPECT_THAT(std::string(t.status().message()), HasSubstr(c.says));
    }
    EXPECT_THAT(std::string(parseTopology("", "e").status().message()), HasSubstr("no [[level]]"));
    EXPECT_THAT(std::string(presetTopology("moon").status().message()), HasSubstr("h100-4x8"));
}

}  // namespace
}  // namespace bulkhead::planner
