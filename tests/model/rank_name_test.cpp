// SPDX-License-Identifier: Apache-2.0
#include "backend/model/rank_name.h"

#include <gtest/gtest.h>

namespace bulkhead::model {
namespace {

TEST(RankName, IsReadAsItIsShown) {
    EXPECT_EQ(rankName({2, 11}), "r2s11");
    EXPECT_EQ(parseRank("r2s11"), (RankId{2, 11}));
    EXPECT_EQ(parseRank("R2S11"), (RankId{2, 11}));
    for (const char* other : {"", "r", "rs", "r2", "r2s", "rs1", "2s1", "r2s1x", "r-1s0", "r2s-1",
                              "s2r1", "r99999999999s0", "ranks", "r2 s1"})
        EXPECT_EQ(parseRank(other), std::nullopt) << other;
}

TEST(RankName, AReplicaIsANumberWithItsLetterOrWithout) {
    EXPECT_EQ(parseReplica("2"), 2);
    EXPECT_EQ(parseReplica("r2"), 2);
    EXPECT_EQ(parseReplica("R12"), 12);
    for (const char* other : {"", "r", "two", "-1", "r-1", "2.5", "r2s1", "rr2"})
        EXPECT_EQ(parseReplica(other), std::nullopt) << other;
}

}  // namespace
}  // namespace bulkhead::model
