// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/solve/domain_plan.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "backend/planner/solve/random.h"

namespace bulkhead::planner {
namespace {

using testing::HasSubstr;

/// `apart` of a domain's tokens go to experts that are its own, the rest to any; drawn.
DomainCounts counts(uint32_t layers, uint32_t domains, uint32_t experts, double apart,
                    uint64_t seed) {
    DomainCounts c{layers, domains, experts,
                   std::vector<double>(size_t{layers} * domains * experts)};
    Random random(seed);
    for (uint32_t l = 0; l < layers; ++l) {
        std::vector<uint32_t> owner(experts);
        for (uint32_t e = 0; e < experts; ++e) owner[e] = e * domains / experts;
        for (size_t i = experts; i > 1; --i) std::swap(owner[i - 1], owner[random.below(i)]);
        for (uint32_t d = 0; d < domains; ++d)
            for (uint32_t e = 0; e < experts; ++e)
                c.values[(size_t{l} * domains + d) * experts + e] =
                    1000 * (apart * (owner[e] == d) * domains + (1 - apart)) *
                    (0.9 + 0.2 * random.unit());
    }
    return c;
}

DomainPlan linear(const DomainCounts& c, uint32_t nodes) {
    DomainPlan plan;
    for (uint32_t l = 0; l < c.layers; ++l)
        for (uint32_t e = 0; e < c.experts; ++e) plan.nodeOf.push_back(e * nodes / c.experts);
    return plan;
}

DomainPlanOptions on(uint32_t nodes) {
    DomainPlanOptions options;
    options.nodes = nodes;
    return options;
}

/// Counted token by token.
double counted(const DomainCounts& c, const DomainPlan& plan, uint32_t nodes) {
    double remote = 0, all = 0;
    for (uint32_t l = 0; l < c.layers; ++l)
        for (uint32_t d = 0; d < c.domains; ++d)
            for (uint32_t e = 0; e < c.experts; ++e)
                for (uint32_t home = 0; home < nodes; ++home) {
                    const double tokens =
                        c.at(l, d, e) *
                        (plan.share.empty() ? 1.0 / nodes : plan.share[size_t{d} * nodes + home]);
                    all += tokens;
                    if (plan.nodeOf[size_t{l} * c.experts + e] != home) remote += tokens;
                }
    return remote / all;
}

TEST(DomainPlan, FindsTheExpertsOfEachDomainAndKeepsThemTogether) {
    const DomainCounts c = counts(3, 4, 16, 1, 7);
    const auto made = solveDomains(c, linear(c, 4), on(4));
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_NEAR(made->before, 0.75, 1e-9) << "samples of any domain are anywhere";
    EXPECT_NEAR(made->after, 0, 1e-9);
}

TEST(DomainPlan, KeepsRulesAndEachNodeItsNumberOfExperts) {
    const DomainCounts c = counts(4, 4, 32, 0.4, 11);
    DomainPlan now = linear(c, 4);
    for (uint32_t e = 24; e < 27; ++e) now.nodeOf[e] = 2;  // uneven, in the first layer only
    DomainPlanOptions options = on(4);
    Random random(3);
    for (uint32_t l = 0; l < c.layers; ++l)
        for (uint32_t e = 0; e < c.experts; e += 5) {
            const auto node = static_cast<uint32_t>(random.below(4));
            options.rules.push_back({l, e, e % 2 == 0, true, node});
        }
    const auto made = solveDomains(c, now, options);
    ASSERT_TRUE(made.ok()) << made.status();
    for (const PlaceRule& rule : options.rules)
        EXPECT_EQ(made->plan.nodeOf[rule.layer * c.experts + rule.expert] == rule.place, rule.pins)
            << placeRuleText(rule);
    for (uint32_t l = 0; l < c.layers; ++l)
        for (uint32_t n = 0; n < 4; ++n) {
            const auto held = [&](const DomainPlan& p) {
                const auto row = p.nodeOf.begin() + l * c.experts;
                return std::count(row, row + c.experts, n);
            };
            EXPECT_EQ(held(made->plan), held(now)) << "layer " << l << ", node " << n;
        }
    EXPECT_LT(made->after, 0.9 * made->before) << "and still saves";
    options.rules = {{0, 0, true, false, 1}};
    EXPECT_THAT(std::string(solveDomains(c, now, options).status().message()),
                HasSubstr("expected a node, not a GPU"));
}

TEST(DomainPlan, SavesWhatRoutingAllowsAndCountsItRight) {
    const DomainCounts c = counts(4, 4, 32, 0.4, 11);
    const auto made = solveDomains(c, linear(c, 4), on(4));
    ASSERT_TRUE(made.ok());
    // At best 0.4 and a quarter of the rest are at home.
    EXPECT_NEAR(made->after, 0.75 * 0.6, 0.02);
    EXPECT_NEAR(made->after, counted(c, made->plan, 4), 1e-9);
    EXPECT_NEAR(made->before, counted(c, linear(c, 4), 4), 1e-9);
    EXPECT_LE(made->nodeLoadMaxOverMean, 1.15);
}

TEST(DomainPlan, EveryNodeKeepsItsNumberOfExpertsAndItsShareOfSamples) {
    for (const uint32_t domains : {2u, 3u, 4u, 7u}) {
        const DomainCounts c = counts(2, domains, 24, 0.7, domains);
        const auto made = solveDomains(c, linear(c, 4), on(4));
        ASSERT_TRUE(made.ok());
        for (uint32_t l = 0; l < 2; ++l)
            for (uint32_t n = 0; n < 4; ++n)
                EXPECT_EQ(std::count(made->plan.nodeOf.begin() + l * 24,
                                     made->plan.nodeOf.begin() + (l + 1) * 24, n),
                          6);
        std::vector<double> load(4), weight(domains);
        double all = 0;
        for (size_t i = 0; i < c.values.size(); ++i) {
            weight[i / 24 % domains] += c.values[i];
            all += c.values[i];
        }
        for (uint32_t d = 0; d < domains; ++d) {
            double row = 0;
            for (uint32_t n = 0; n < 4; ++n) {
                row += made->plan.share[size_t{d} * 4 + n];
                load[n] += made->plan.share[size_t{d} * 4 + n] * weight[d] / all;
            }
            EXPECT_NEAR(row, 1, 1e-9);
        }
        for (const double x : load) EXPECT_NEAR(x, 0.25, 0.02) << domains << " domains";
    }
}

TEST(DomainPlan, WithoutGroupingNothingCanBeSavedWhereSamplesAreEverywhere) {
    const DomainCounts c = counts(2, 4, 16, 0.8, 3);
    DomainPlanOptions options = on(4);
    options.group = false;
    const auto made = solveDomains(c, linear(c, 4), options);
    ASSERT_TRUE(made.ok());
    EXPECT_EQ(made->expertsMoved, 0u);
    EXPECT_TRUE(made->plan.share.empty());
}

TEST(DomainPlan, APlanInUseStaysAndDriftMovesOnlyWhatPays) {
    const DomainCounts c = counts(2, 4, 16, 0.8, 3);
    const auto made = solveDomains(c, linear(c, 4), on(4));
    ASSERT_TRUE(made.ok());
    const auto again = solveDomains(c, made->plan, on(4));
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(again->expertsMoved, 0u);
    EXPECT_EQ(again->plan.share, made->plan.share);
    // Two experts of a layer change places.
    DomainCounts drifted = c;
    const auto at = [&](uint32_t e) { return made->plan.nodeOf[e]; };
    uint32_t other = 1;
    while (at(other) == at(0)) ++other;
    for (uint32_t d = 0; d < 4; ++d)
        std::swap(drifted.values[size_t{d} * 16], drifted.values[size_t{d} * 16 + other]);
    const auto after = solveDomains(drifted, made->plan, on(4));
    ASSERT_TRUE(after.ok());
    EXPECT_EQ(after->expertsMoved, 2u);
    EXPECT_NEAR(after->after, made->after, 1e-9);
}

/// Shards have no meaning of their own: no other naming of them may move fewer experts.
TEST(DomainPlan, NoOtherNamingOfNodesMovesFewerExperts) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        const DomainCounts c = counts(3, 4, 32, 0.5, seed);
        const DomainPlan now = linear(c, 4);
        DomainPlanOptions options = on(4);
        options.seed = seed;
        const auto made = solveDomains(c, now, options);
        ASSERT_TRUE(made.ok());
        std::vector<uint32_t> name{0, 1, 2, 3};
        do {
            uint64_t moves = 0;
            for (size_t i = 0; i < now.nodeOf.size(); ++i)
                moves += name[made->plan.nodeOf[i]] != now.nodeOf[i];
            EXPECT_GE(moves, made->expertsMoved) << "seed " << seed;
        } while (std::next_permutation(name.begin(), name.end()));
    }
}

TEST(DomainPlan, TheSameSeedGivesTheSamePlan) {
    const DomainCounts c = counts(3, 5, 24, 0.5, 5);
    const auto a = solveDomains(c, linear(c, 4), on(4));
    const auto b = solveDomains(c, linear(c, 4), on(4));
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_EQ(a->plan.nodeOf, b->plan.nodeOf);
    EXPECT_EQ(a->plan.share, b->plan.share);
}

TEST(DomainPlan, RefusesWhatDoesNotFit) {
    const DomainCounts c = counts(2, 4, 16, 0.8, 3);
    const auto refusal = [](const DomainCounts& counts, const DomainPlan& plan) {
        return std::string(solveDomains(counts, plan, on(4)).status().message());
    };
    DomainPlan plan = linear(c, 4);
    plan.nodeOf.pop_back();
    EXPECT_THAT(refusal(c, plan), HasSubstr("32 experts, found 31"));
    plan = linear(c, 4);
    plan.nodeOf[0] = 4;
    EXPECT_THAT(refusal(c, plan), HasSubstr("node 4 of 4"));
    plan = linear(c, 4);
    plan.share = {1};
    EXPECT_THAT(refusal(c, plan), HasSubstr("16 shares, found 1"));
    DomainCounts none = c;
    std::fill(none.values.begin(), none.values.end(), 0.0);
    EXPECT_THAT(refusal(none, linear(c, 4)), HasSubstr("no token"));
    none.values.pop_back();
    EXPECT_THAT(refusal(none, linear(c, 4)), HasSubstr("expected 128 counts"));
}

}  // namespace
}  // namespace bulkhead::planner
