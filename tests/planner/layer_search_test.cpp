// SPDX-License-Identifier: Apache-2.0
// The search of one layer: its tables are what a count from scratch gives, it respects what it
// must, and it gets better.
#include "backend/planner/solve/layer_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace bulkhead::planner {
namespace {

LayerProblem madeProblem(uint32_t nodes, uint32_t units, uint32_t perToken, uint32_t tokens,
                         uint64_t seed) {
    Random random(seed);
    LayerProblem p{nodes, units, perToken, {}, {}, std::vector<double>(units, 0)};
    for (uint32_t t = 0; t < tokens; ++t) {
        const uint32_t family = random.below(nodes);
        std::set<uint16_t> ids;
        while (ids.size() < perToken) {
            const uint32_t u = random.below(units);
            if (u * 5 % nodes == family || random.below(3) == 0)
                ids.insert(static_cast<uint16_t>(u));
        }
        p.ids.insert(p.ids.end(), ids.begin(), ids.end());
        p.home.push_back(
            static_cast<uint16_t>(random.below(4) == 0 ? random.below(nodes) : family));
        for (uint16_t u : ids) p.load[u] += 1;
    }
    return p;
}

/// Units in order, slot by slot; units + extra slots in all.
NodePlacement inOrder(const LayerProblem& p, uint32_t extra) {
    std::vector<std::vector<uint16_t>> at(p.nodes);
    const uint32_t each = (p.units + extra) / p.nodes;
    for (uint32_t s = 0; s < p.units + extra; ++s)
        at[s / each].push_back(static_cast<uint16_t>(s % p.units));
    return routed(std::move(at), p);
}

struct Counted {
    double sends = 0, copies = 0;
    std::vector<double> load;
};
Counted counted(const LayerProblem& p, const NodePlacement& at) {
    Counted c{0, 0, std::vector<double>(p.nodes, 0)};
    for (uint32_t t = 0; t < p.tokens(); ++t) {
        const uint32_t base = at.route.size() > p.units ? p.home[t] * p.units : 0;
        std::set<uint32_t> to;
        for (uint32_t k = 0; k < p.perToken; ++k) {
            const uint32_t n = at.route[base + p.ids[t * p.perToken + k]];
            c.load[n] += 1;
            if (n != p.home[t]) {
                c.copies += 1;
                to.insert(n);
            }
        }
        c.sends += static_cast<double>(to.size());
    }
    c.sends /= p.tokens();
    c.copies /= p.tokens();
    return c;
}

class Search : public testing::TestWithParam<uint32_t> {};  // redundant slots

TEST_P(Search, movesKeepEveryTableAsIfCountedAnew) {
    const LayerProblem p = madeProblem(4, 24, 4, 300, 7);
    LayerGoal goal{1, 0.3, 1.1, 1, 0};
    LayerSearch search(p, goal, inOrder(p, GetParam()));
    Random random(3);
    for (int round = 0; round < 6; ++round) {
        const double before = search.value();
        search.anneal(4000, round == 0 ? 0.1 : 0.02, 0.001, random);
        EXPECT_LE(search.value(), before + 1e-9);
        const Counted c = counted(p, search.placement());
        EXPECT_NEAR(search.sendsPerToken(), c.sends, 1e-9);
        EXPECT_NEAR(search.copiesPerToken(), c.copies, 1e-9);
        const double mean = std::accumulate(c.load.begin(), c.load.end(), 0.0) / p.nodes;
        EXPECT_NEAR(search.loadMaxOverMean(),
                    *std::max_element(c.load.begin(), c.load.end()) / mean, 1e-9);
    }
}

/// anneal() ends with a value counted anew; the value carried through the moves must agree with it.
TEST_P(Search, theValueCarriedAlongIsTheOneCountedAtTheEnd) {
    const LayerProblem p = madeProblem(3, 12, 3, 200, 11);
    LayerSearch search(p, {1, 0.2, 1.05, 1, 0}, inOrder(p, GetParam() ? 3 : 0));
    Random random(5);
    search.anneal(3000, 0, 0, random);
    const double carried = search.lastCarriedValue();
    EXPECT_NEAR(carried, search.value(), 1e-9);
}

/// Two kinds of load that come in turn: units 0 to 5 are busy in the first scenario, the others in
/// the second, all alike in the mean. Tokens use two units of a kind together.
TEST(Search, whatIsBusyAtTheSameTimeIsKeptApartWhereScenariosSayIt) {
    LayerProblem p{2, 12, 2, {}, {}, std::vector<double>(12, 100)};
    for (uint16_t u = 0; u < 12; ++u)
        for (uint16_t v = static_cast<uint16_t>(u / 6 * 6); v < u; ++v)
            for (int home = 0; home < 2; ++home) {
                p.ids.insert(p.ids.end(), {u, v});
                p.home.push_back(static_cast<uint16_t>(home));
            }
    const auto fullest = [&](const LayerSearch& search) {
        int kind = 0;
        for (uint16_t u : search.placement().unitsOfNode[0]) kind += u < 6;
        return std::max(kind, 6 - kind);
    };
    Random random(3);
    LayerSearch blind(p, {1, 0, 1.2, 5, 0}, inOrder(p, 0));
    blind.anneal(20000, 0.1, 0.001, random);
    EXPECT_EQ(fullest(blind), 6) << "each kind on a node of its own saves most sends";
    for (int s = 0; s < 2; ++s)
        for (int u = 0; u < 12; ++u) p.scenarios.push_back(u / 6 == s ? 2.0f / 6 : 0.0f);
    LayerSearch knowing(p, {1, 0, 1.2, 5, 0}, inOrder(p, 0));
    knowing.anneal(20000, 0.1, 0.001, random);
    EXPECT_EQ(fullest(knowing), 3);
    EXPECT_NEAR(knowing.lastCarriedValue(), knowing.value(), 1e-9);
}

/// Sends that cost what their link does: carried along, they are what a count from scratch gives.
TEST_P(Search, sendsOfDifferentCostAreCountedAtTheirCost) {
    LayerProblem p = madeProblem(4, 24, 4, 300, 7);
    Random random(8);
    for (uint32_t i = 0; i < 16; ++i)
        p.sendCost.push_back(static_cast<int32_t>(LayerProblem::kSend * (1 + random.below(9))));
    LayerSearch search(p, {1, 0.02, 1.1, 1, 0}, inOrder(p, GetParam()));
    const double first = search.sendsPerToken();
    for (int round = 0; round < 3; ++round) {
        search.anneal(4000, 0, 0, random);
        EXPECT_NEAR(search.lastCarriedValue(), search.value(), 1e-9);
        if (GetParam() == 0) {
            LayerSearch anew(p, {1, 0.02, 1.1, 1, 0}, search.placement());
            anew.descend(3, random);
            const double carried = anew.value();
            anew.reload();
            EXPECT_NEAR(carried, anew.value(), 1e-9);
        }
    }
    double sends = 0;
    for (uint32_t t = 0; t < p.tokens(); ++t) {
        const uint32_t home = p.home[t];
        std::set<uint32_t> to{home};
        for (uint32_t k = 0; k < p.perToken; ++k) {
            const uint32_t id = p.ids[t * p.perToken + k];
            const uint32_t n = search.placement().route[(GetParam() ? home * p.units : 0) + id];
            if (to.insert(n).second) sends += p.sendCost[home * 4 + n];
        }
    }
    EXPECT_NEAR(search.sendsPerToken(), sends / LayerProblem::kSend / p.tokens(), 1e-9);
    EXPECT_LT(search.sendsPerToken(), first);
}

TEST_P(Search, everyUnitStaysSomewhereAndNoNodeHoldsOneTwice) {
    const LayerProblem p = madeProblem(4, 24, 4, 300, 9);
    LayerSearch search(p, {}, inOrder(p, GetParam()));
    Random random(1);
    search.anneal(20000, 0.05, 0.001, random);
    std::set<uint16_t> all;
    for (const auto& units : search.placement().unitsOfNode) {
        EXPECT_EQ(units.size(), (24 + GetParam()) / 4);
        EXPECT_EQ(std::set<uint16_t>(units.begin(), units.end()).size(), units.size());
        all.insert(units.begin(), units.end());
    }
    EXPECT_EQ(all.size(), 24u);
}

TEST_P(Search, aSeedDecides) {
    const LayerProblem p = madeProblem(4, 24, 4, 300, 2);
    const auto run = [&](uint64_t seed) {
        LayerSearch search(p, {}, inOrder(p, GetParam()));
        Random random(seed);
        search.anneal(5000, 0.05, 0.001, random);
        return search.placement();
    };
    EXPECT_EQ(run(1), run(1));
}

TEST_P(Search, theLoadCapIsKeptWhereItCanBe) {
    const LayerProblem p = madeProblem(4, 24, 4, 600, 4);
    LayerSearch search(p, {1, 0, 1.05, 4, 0}, inOrder(p, GetParam()));
    Random random(1);
    search.anneal(40000, 0.05, 0.001, random);
    EXPECT_LE(search.loadMaxOverMean(), 1.06);
}

INSTANTIATE_TEST_SUITE_P(Redundant, Search, testing::Values(0u, 4u));

TEST(Search, descentCarriesItsValueAndGoesBelowAShortAnnealing) {
    const LayerProblem p = madeProblem(8, 64, 4, 600, 5);
    const LayerGoal goal{1, 0.1, 1.1, 1, 0};
    Random random(2);
    LayerSearch annealed(p, goal, inOrder(p, 0));
    annealed.anneal(1500, 0, 0, random);
    LayerSearch descended(p, goal, inOrder(p, 0));
    double before = descended.value();
    for (int sweep = 0; sweep < 3; ++sweep) {
        descended.descend(1, random);
        const double carried = descended.value();
        descended.reload();
        EXPECT_NEAR(carried, descended.value(), 1e-9);
        EXPECT_LE(carried, before);
        before = carried;
    }
    EXPECT_LT(descended.value(), annealed.value());
    std::set<uint16_t> all;
    for (const auto& units : descended.placement().unitsOfNode)
        all.insert(units.begin(), units.end());
    EXPECT_EQ(all.size(), 64u);
}

TEST(Search, descentMovesNothingWhereAMoveCostsMore) {
    const LayerProblem p = madeProblem(4, 24, 4, 300, 2);
    const NodePlacement start = inOrder(p, 0);
    LayerSearch search(p, {1, 0, 1.2, 1, 100}, start);
    Random random(1);
    search.descend(5, random);
    EXPECT_EQ(search.placement(), start);
}

/// Load max/mean of the nodes, counting only units with one replica.
double aloneMaxOverMean(const LayerProblem& p, const NodePlacement& at) {
    std::vector<int> copies(p.units, 0);
    for (const auto& units : at.unitsOfNode)
        for (uint16_t u : units) ++copies[u];
    double most = 0;
    for (const auto& units : at.unitsOfNode) {
        double sum = 0;
        for (uint16_t u : units) sum += copies[u] == 1 ? p.load[u] : 0;
        most = std::max(most, sum);
    }
    return most * p.nodes / std::accumulate(p.load.begin(), p.load.end(), 0.0);
}

TEST(Search, aCapOnWhatNodesHoldAloneIsKeptAndCountedAsItMoves) {
    const LayerProblem p = madeProblem(4, 24, 4, 600, 4);
    LayerGoal goal{1, 0, 1.3, 20, 0};
    Random random(1);
    LayerSearch free(p, goal, inOrder(p, 8));
    free.anneal(30000, 0.05, 0.001, random);
    goal.aloneCap = 0.75;
    LayerSearch capped(p, goal, inOrder(p, 8));
    capped.anneal(30000, 0.05, 0.001, random);
    EXPECT_GT(aloneMaxOverMean(p, free.placement()), 0.77);
    EXPECT_LE(aloneMaxOverMean(p, capped.placement()), 0.75 + 1e-3);
    EXPECT_NEAR(capped.lastCarriedValue(), capped.value(), 1e-9);
}

TEST(Search, aPriceOnMovesKeepsUnitsInPlace) {
    const LayerProblem p = madeProblem(4, 24, 4, 300, 2);
    const auto moved = [&](double price) {
        const NodePlacement start = inOrder(p, 0);
        LayerSearch search(p, {1, 0, 1.2, 1, price}, start);
        Random random(1);
        search.anneal(20000, 0, 0, random);
        int count = 0;
        for (uint32_t u = 0; u < p.units; ++u)
            count += search.placement().route[u] != start.route[u];
        return count;
    };
    EXPECT_GT(moved(0), moved(0.1));
    EXPECT_EQ(moved(100), 0);
}

}  // namespace
}  // namespace bulkhead::planner
