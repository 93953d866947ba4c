// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "backend/runtime/simulation/story.h"
#include "tests/simulation/mutation.h"

namespace bulkhead::simulation {
namespace {

using mutation::Mutation;

constexpr uint64_t kMostSeeds = 3000;
constexpr uint64_t kControlSeeds = 200;
constexpr size_t kFaults = 40;

class MutationTest : public ::testing::TestWithParam<Mutation> {
  protected:
    void TearDown() override { mutation::active = Mutation::none; }
};

TEST_P(MutationTest, IsFound) {
    mutation::active = GetParam();
    for (uint64_t seed = 1; seed <= kMostSeeds; ++seed) {
        const Verdict v = runTrial(seed, kFaults);
        if (!v.broken) continue;
        std::printf("    found by seed %llu, after %llu faults: %s\n",
                    static_cast<unsigned long long>(seed),
                    static_cast<unsigned long long>(v.counts.faults), v.broken->c_str());
        return;
    }
    ADD_FAILURE() << "not found within " << kMostSeeds << " seeds";
}

std::vector<Mutation> all() {
    std::vector<Mutation> out;
    for (size_t i = 1; i < mutation::kNames.size(); ++i) out.push_back(static_cast<Mutation>(i));
    return out;
}

INSTANTIATE_TEST_SUITE_P(Protocol, MutationTest, ::testing::ValuesIn(all()), [](const auto& info) {
    return std::string(mutation::kNames[static_cast<size_t>(info.param)]);
});

TEST(MutationStory, ABugIsMinimisedToldAndReplaysExactly) {
    mutation::active = Mutation::record_without_the_lost;
    uint64_t seed = 1;
    while (!runTrial(seed, kFaults).broken) ++seed;
    const auto setup = drawSetup(seed);
    const Schedule schedule = drawSchedule(seed, setup, kFaults);
    const Verdict v = runTrial(seed, setup, schedule);
    ASSERT_TRUE(v.broken);
    const Minimised m = minimise(seed, setup, schedule, v);
    const Verdict again = runTrial(seed, setup, m.schedule);
    const std::string story = tellStory(seed, setup, m, false);
    mutation::active = Mutation::none;
    EXPECT_LE(m.schedule.size(), 6u);
    EXPECT_EQ(m.verdict.invariant(), v.invariant());
    EXPECT_EQ(again.digest, m.verdict.digest);
    EXPECT_EQ(again.broken, m.verdict.broken);
    EXPECT_THAT(story, ::testing::HasSubstr("in the end: " + *again.broken));
    for (const Fault& f : m.schedule) EXPECT_THAT(story, ::testing::HasSubstr(describe(f)));
}

/// The same code without a bug, so that what is found is the bug.
TEST(MutationControl, NothingIsFoundWithoutOne) {
    for (uint64_t seed = 1; seed <= kControlSeeds; ++seed) {
        const Verdict v = runTrial(seed, kFaults);
        EXPECT_FALSE(v.broken) << "seed " << seed << ": " << *v.broken;
    }
}

}  // namespace
}  // namespace bulkhead::simulation
