// SPDX-License-Identifier: Apache-2.0
// Every reader against many changed inputs, the same ones in every run. `./dev fuzz` does it for
// longer and guided by coverage.
#include <gtest/gtest.h>

#include "tests/support/fuzz/mutation.h"
#include "tests/support/fuzz/targets.h"

namespace bulkhead::fuzz {
namespace {

#ifdef BULKHEAD_SANITIZED
constexpr int kTries = 3'000;
#else
constexpr int kTries = 20'000;
#endif

TEST(Fuzz, everyReaderReadsItsSeeds) {
    for (const Target& target : targets())
        for (size_t i = 0; i < target.seeds.size(); ++i)
            EXPECT_TRUE(target.run(target.seeds[i])) << target.name << ", seed " << i;
}

TEST(Fuzz, everyReaderReturnsWhateverComes) {
    for (const Target& target : targets()) {
        Mutator mutator(1);
        int refused = 0;
        for (int i = 0; i < kTries; ++i) {
            const std::string& seed = target.seeds[mutator.below(target.seeds.size())];
            if (!target.run(mutator.mutate(seed, target.seeds))) ++refused;
        }
        EXPECT_GT(refused, kTries / 10) << target.name << " takes nearly anything";
    }
}

}  // namespace
}  // namespace bulkhead::fuzz
