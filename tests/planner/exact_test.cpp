// SPDX-License-Identifier: Apache-2.0
// Against an exact solver (GLPK) on cases small enough for one: never better than the optimum (that
// would be a wrong count), and within 2% of it, homes of requests within 0.5%.
#include <glpk.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "backend/planner/solve/balance.h"
#include "backend/planner/solve/homes.h"
#include "backend/planner/solve/layer_search.h"

namespace bulkhead::planner {
namespace {

/// A mixed-integer program that is minimised; rows and columns are added as they come.
class Program {
  public:
    Program() : p_(glp_create_prob()) {
        glp_term_out(GLP_OFF);
        glp_set_obj_dir(p_, GLP_MIN);
    }
    ~Program() { glp_delete_prob(p_); }
    Program(const Program&) = delete;

    int column(double cost, bool whole) {
        const int c = glp_add_cols(p_, 1);
        glp_set_obj_coef(p_, c, cost);
        if (whole)
            glp_set_col_kind(p_, c, GLP_BV);
        else
            glp_set_col_bnds(p_, c, GLP_LO, 0, 0);
        return c;
    }
    void row(int kind, double low, double high, const std::vector<std::pair<int, double>>& terms) {
        const int r = glp_add_rows(p_, 1);
        glp_set_row_bnds(p_, r, kind, low, high);
        std::vector<int> index{0};
        std::vector<double> value{0};
        for (const auto& [column, factor] : terms) {
            index.push_back(column);
            value.push_back(factor);
        }
        glp_set_mat_row(p_, r, static_cast<int>(terms.size()), index.data(), value.data());
    }
    /// The optimum; fails the test when it was not proved.
    double solve() {
        glp_iocp how;
        glp_init_iocp(&how);
        how.presolve = GLP_ON;
        how.tm_lim = 60'000;
        how.cov_cuts = how.clq_cuts = how.mir_cuts = GLP_ON;
        EXPECT_EQ(glp_intopt(p_, &how), 0);
        EXPECT_EQ(glp_mip_status(p_), GLP_OPT);
        return glp_mip_obj_val(p_);
    }

  private:
    glp_prob* p_;
};

struct Case {
    uint32_t nodes, units, perToken, tokens;
    double sends, copies;
    uint64_t seed;
};

LayerProblem problemOf(const Case& c) {
    Random random(c.seed);
    LayerProblem p{c.nodes, c.units, c.perToken, {}, {}, std::vector<double>(c.units, 0)};
    for (uint32_t t = 0; t < c.tokens; ++t) {
        std::set<uint16_t> ids;
        const uint32_t family = random.below(c.nodes);
        while (ids.size() < c.perToken) {
            const uint32_t u = random.below(c.units);
            if (u % c.nodes == family || random.below(3) == 0) ids.insert(static_cast<uint16_t>(u));
        }
        p.ids.insert(p.ids.end(), ids.begin(), ids.end());
        p.home.push_back(static_cast<uint16_t>(family));
        for (uint16_t u : ids) p.load[u] += 1;
    }
    return p;
}

/// x[u][n]: unit on node; y[t][n]: token visits node. Least sends and copies under the load cap.
double exactPlacement(const LayerProblem& p, const Case& c, double cap) {
    Program program;
    std::vector<std::vector<int>> x(p.units);
    for (uint32_t u = 0; u < p.units; ++u) {
        std::vector<std::pair<int, double>> once;
        for (uint32_t n = 0; n < p.nodes; ++n) {
            double remote = 0;
            for (uint32_t t = 0; t < p.tokens(); ++t)
                for (uint32_t k = 0; k < p.perToken; ++k)
                    remote += p.ids[t * p.perToken + k] == u && p.home[t] != n;
            x[u].push_back(program.column(c.copies * remote / p.tokens(), true));
            once.push_back({x[u][n], 1});
        }
        program.row(GLP_FX, 1, 1, once);
    }
    const double mean = std::accumulate(p.load.begin(), p.load.end(), 0.0) / p.nodes;
    for (uint32_t n = 0; n < p.nodes; ++n) {
        std::vector<std::pair<int, double>> count, load;
        for (uint32_t u = 0; u < p.units; ++u) {
            count.push_back({x[u][n], 1});
            load.push_back({x[u][n], p.load[u]});
        }
        program.row(GLP_FX, p.units / p.nodes, p.units / p.nodes, count);
        program.row(GLP_UP, 0, cap * mean, load);
    }
    for (uint32_t t = 0; c.sends > 0 && t < p.tokens(); ++t)
        for (uint32_t n = 0; n < p.nodes; ++n) {
            if (n == p.home[t]) continue;
            const int y = program.column(c.sends / p.tokens(), false);
            for (uint32_t k = 0; k < p.perToken; ++k)
                program.row(GLP_LO, 0, 0, {{y, 1}, {x[p.ids[t * p.perToken + k]][n], -1}});
        }
    return program.solve();
}

class Exact : public testing::TestWithParam<Case> {};

TEST_P(Exact, placementIsWithinTwoPercentOfTheOptimum) {
    const Case& c = GetParam();
    const LayerProblem p = problemOf(c);
    constexpr double kCap = 1.3;
    const double optimum = exactPlacement(p, c, kCap);
    std::vector<std::vector<uint16_t>> start(p.nodes);
    for (uint32_t u = 0; u < p.units; ++u)
        start[u / (p.units / p.nodes)].push_back(static_cast<uint16_t>(u));
    // A steep price on load makes the cap as hard as the program's.
    LayerSearch search(p, {c.sends, c.copies, kCap, 50, 0}, routed(start, p));
    Random random(1);
    search.anneal(60000, 0.1, 0.001, random);
    const double found = c.sends * search.sendsPerToken() + c.copies * search.copiesPerToken();
    EXPECT_LE(search.loadMaxOverMean(), kCap + 1e-9);
    EXPECT_GE(found, optimum - 1e-6);
    EXPECT_LE(found, optimum * 1.02 + 1e-9) << "optimum " << optimum;
}

INSTANTIATE_TEST_SUITE_P(Small, Exact,
                         testing::Values(Case{2, 8, 3, 24, 1, 0, 1}, Case{2, 10, 3, 30, 1, 0, 2},
                                         Case{3, 9, 2, 24, 1, 0, 3}, Case{2, 8, 2, 40, 1, 0.1, 4},
                                         Case{4, 16, 2, 60, 0, 1, 5}, Case{3, 12, 3, 60, 0, 1, 6}));

TEST(Exact, homesAreWithinTwoPercentOfTheOptimum) {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
        Random random(seed);
        HomeProblem p{3, {}, {}, 1.15};
        for (uint32_t r = 0; r < 18; ++r) {
            p.tokens.push_back(10 + random.below(90));
            for (uint32_t n = 0; n < p.nodes; ++n)
                p.gain.push_back(p.tokens.back() * (1 + random.unit() * (n == r % 2 ? 2 : 1)));
        }
        const double total = std::accumulate(p.tokens.begin(), p.tokens.end(), 0.0);
        Program program;
        std::vector<std::vector<std::pair<int, double>>> load(p.nodes);
        for (uint32_t r = 0; r < p.requests(); ++r) {
            std::vector<std::pair<int, double>> once;
            for (uint32_t n = 0; n < p.nodes; ++n) {
                const int x = program.column(-p.gain[r * p.nodes + n], true);
                once.push_back({x, 1});
                load[n].push_back({x, p.tokens[r]});
            }
            program.row(GLP_FX, 1, 1, once);
        }
        for (const auto& terms : load) program.row(GLP_UP, 0, p.cap * total / p.nodes, terms);
        const double optimum = -program.solve();
        const std::vector<uint16_t> homes = assignHomes(p);
        double found = 0;
        std::vector<double> tokens(p.nodes, 0);
        for (uint32_t r = 0; r < p.requests(); ++r) {
            found += p.gain[r * p.nodes + homes[r]];
            tokens[homes[r]] += p.tokens[r];
        }
        for (double t : tokens) EXPECT_LE(t, p.cap * total / p.nodes * (1 + 1e-9));
        EXPECT_LE(found, optimum + 1e-6);
        EXPECT_GE(found, optimum * 0.995) << "seed " << seed;
    }
}

/// Least possible fullest GPU when each expert has one slot.
TEST(Exact, packingIsWithinTwoPercentOfTheOptimum) {
    for (uint64_t seed = 1; seed <= 4; ++seed) {
        Random random(seed);
        std::vector<double> load;
        for (int e = 0; e < 12; ++e) load.push_back(100 + random.below(900));
        const std::vector<uint32_t> slots(3, 4);
        Program program;
        const int fullest = program.column(1, false);
        std::vector<std::vector<std::pair<int, double>>> count(3), sum(3, {{fullest, -1}});
        for (double l : load) {
            std::vector<std::pair<int, double>> once;
            for (size_t g = 0; g < 3; ++g) {
                const int x = program.column(0, true);
                once.push_back({x, 1});
                count[g].push_back({x, 1});
                sum[g].push_back({x, l});
            }
            program.row(GLP_FX, 1, 1, once);
        }
        for (size_t g = 0; g < 3; ++g) {
            program.row(GLP_FX, 4, 4, count[g]);
            program.row(GLP_UP, 0, 0, sum[g]);
        }
        const double optimum = program.solve();
        std::vector<uint32_t> experts(12);
        Balancer({12, 1, slots, 1}).balance(load, experts);
        const double mean = std::accumulate(load.begin(), load.end(), 0.0) / 3;
        const double found = mean / balancednessOf(load, experts, slots);
        EXPECT_GE(found, optimum - 1e-6);
        EXPECT_LE(found, optimum * 1.02) << "seed " << seed;
    }
}

}  // namespace
}  // namespace bulkhead::planner
