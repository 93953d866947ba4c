// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/protocol/sample_deal.h"

#include <gmock/gmock.h>

#include <random>
#include <set>

namespace bulkhead::protocol {
namespace {

using testing::HasSubstr;

TEST(SampleDeal, WithoutAGroupingShardsTakeTurns) {
    const auto dealt = dealSamples({{0, 10, 13}, {2, 4, 8}}, 3, {});
    EXPECT_EQ(dealt[0], (std::vector<Sample>{{0, 10}, {2, 4}, {2, 7}}));
    EXPECT_EQ(dealt[1], (std::vector<Sample>{{0, 11}, {2, 5}}));
    EXPECT_EQ(dealt[2], (std::vector<Sample>{{0, 12}, {2, 6}}));
}

TEST(SampleDeal, EachDomainGoesToItsShard) {
    // Domain 0 to shard 2, 1 to 0, 2 to 1.
    const auto dealt =
        dealSamples({{0, 4, 6}, {1, 90, 92}, {2, 7, 9}}, 3, {0, 0, 1, 5, 0, 0, 0, 9, 0});
    EXPECT_EQ(dealt[0], (std::vector<Sample>{{1, 90}, {1, 91}}));
    EXPECT_EQ(dealt[1], (std::vector<Sample>{{2, 7}, {2, 8}}));
    EXPECT_EQ(dealt[2], (std::vector<Sample>{{0, 4}, {0, 5}}));
}

TEST(SampleDeal, WhoFindsItsHomeFullGoesWhereMostOfItsDomainIsBesides) {
    // All four at home on shard 0, which has room for two; then shard 2 before shard 1.
    const auto dealt = dealSamples({{0, 0, 4}, {1, 0, 2}}, 3, {100, 1, 2, 0, 1, 0});
    EXPECT_EQ(dealt[0], (std::vector<Sample>{{0, 0}, {0, 1}}));
    EXPECT_EQ(dealt[1], (std::vector<Sample>{{1, 0}, {1, 1}}));
    EXPECT_EQ(dealt[2], (std::vector<Sample>{{0, 2}, {0, 3}}));
}

TEST(SampleDeal, TheEmptierOneIsPreferredOnlyAmongThoseWithTheSamePart) {
    // All six at home on shard 2, which has room for two; shard 1 has no part in the domain.
    const auto dealt = dealSamples({{0, 1, 7}}, 3, {1, 0, 100000});
    EXPECT_EQ(dealt[0], (std::vector<Sample>{{0, 3}, {0, 4}}));
    EXPECT_EQ(dealt[1], (std::vector<Sample>{{0, 5}, {0, 6}}));
    const auto even = dealSamples({{0, 1, 7}}, 3, {0, 0, 1});
    EXPECT_EQ(even[0], (std::vector<Sample>{{0, 3}, {0, 5}}));
    EXPECT_EQ(even[1], (std::vector<Sample>{{0, 4}, {0, 6}}));
}

TEST(SampleDeal, SharesHoldOverAnyStretchOfTheStream) {
    const std::vector<uint32_t> share = {600, 300, 100, 0};
    for (const uint64_t from : {0ull, 12345ull, 1ull << 40}) {
        std::vector<uint64_t> home(4);
        // One sample at a time, so that no home is ever full.
        for (uint64_t i = from; i < from + 200; ++i) {
            const auto dealt = dealSamples({{0, i, i + 1}}, 4, share);
            for (size_t s = 0; s < 4; ++s) home[s] += dealt[s].size();
        }
        EXPECT_NEAR(static_cast<double>(home[0]), 120, 3);
        EXPECT_NEAR(static_cast<double>(home[1]), 60, 3);
        EXPECT_NEAR(static_cast<double>(home[2]), 20, 3);
        EXPECT_EQ(home[3], 0u);
    }
}

TEST(SampleDeal, AnyLeaseByAnySharesIsTiledAndNoShardHasMoreThanItsPart) {
    std::mt19937_64 random(5);
    for (int trial = 0; trial < 3000; ++trial) {
        const auto domains = static_cast<uint32_t>(1 + random() % 5);
        const auto shards = static_cast<uint32_t>(1 + random() % 6);
        std::vector<uint32_t> share;
        for (uint32_t i = 0; random() % 4 != 0 && i < domains * shards; ++i)
            share.push_back(static_cast<uint32_t>(random() % 3 == 0 ? 0 : random() % 1000));
        if (share.size() != size_t{domains} * shards ||
            !checkDomainShare(share, domains, shards).ok())
            share.clear();
        std::vector<SampleRange> lease;
        std::set<Sample> wanted;
        for (uint32_t d = 0; d < domains; ++d) {
            const uint64_t begin = random() % 1000000;
            lease.push_back({d, begin, begin + random() % 7});
            for (uint64_t i = begin; i < lease.back().end; ++i) wanted.insert({d, i});
        }
        std::set<Sample> seen;
        for (const auto& mine : dealSamples(lease, shards, share)) {
            EXPECT_LE(mine.size(), (wanted.size() + shards - 1) / shards);
            for (const Sample& sample : mine) EXPECT_TRUE(seen.insert(sample).second);
        }
        ASSERT_EQ(seen, wanted) << "trial " << trial;
    }
}

TEST(SampleDeal, AGroupingNeedsAPartOfEveryDomain) {
    EXPECT_TRUE(checkDomainShare({}, 4, 4).ok());
    EXPECT_TRUE(checkDomainShare({1, 0, 0, 7}, 2, 2).ok());
    const auto refusal = [](const std::vector<uint32_t>& share) {
        return std::string(checkDomainShare(share, 2, 2).message());
    };
    EXPECT_THAT(refusal({1, 0, 0}), HasSubstr("3 entries; expected 2 domains x 2 shards"));
    EXPECT_THAT(refusal({1, 0, 0, 0}), HasSubstr("domain 1 0 parts"));
    EXPECT_THAT(refusal({UINT32_MAX, 1, 0, 1}), HasSubstr("domain 0 4294967296 parts"));
}

}  // namespace
}  // namespace bulkhead::protocol
