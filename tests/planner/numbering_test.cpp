// SPDX-License-Identifier: Apache-2.0
// Numbering of nodes, compared with an exhaustive search.
#include "backend/planner/solve/numbering.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/planner/solve/link_costs.h"
#include "backend/planner/solve/random.h"

namespace bulkhead::planner {
namespace {

std::vector<double> drawn(uint32_t size, Random& random) {
    std::vector<double> values(size_t{size} * size);
    for (double& x : values) x = random.unit() * 20 - 10;
    return values;
}

TEST(AssignColumns, findsTheCheapestOfAllAssignments) {
    Random random(3);
    for (uint32_t size = 1; size < 7; ++size)
        for (int round = 0; round < 10; ++round) {
            std::vector<double> costs = drawn(size, random);
            if (round % 2)  // many of them alike
                for (double& c : costs) c = std::floor(c / 5);
            const auto sumOf = [&](const std::vector<uint32_t>& columns) {
                double sum = 0;
                for (uint32_t row = 0; row < size; ++row) sum += costs[row * size + columns[row]];
                return sum;
            };
            std::vector<uint32_t> columns(size);
            std::iota(columns.begin(), columns.end(), 0);
            double best = INFINITY;
            do {
                best = std::min(best, sumOf(columns));
            } while (std::next_permutation(columns.begin(), columns.end()));
            const std::vector<uint32_t> found = assignColumns(costs, size);
            EXPECT_NEAR(sumOf(found), best, 1e-9);
            EXPECT_THAT(found, testing::UnorderedElementsAreArray(columns));
        }
}

/// Two racks of two hosts; the far link is ten times slower.
Topology twoRacks() {
    return {
        "", {{"host", 2, {450e9, 2e-6}}, {"rack", 2, {50e9, 6e-6}}, {"hall", 2, {5e9, 6e-5}}}, {}};
}

TEST(NearPlaces, whoTalksMostIsInOneRack) {
    std::vector<double> traffic(16, 1);
    traffic[0 * 4 + 2] = traffic[2 * 4 + 0] = traffic[1 * 4 + 3] = 100;
    const auto place = nearPlaces(traffic, linkCosts(twoRacks()), 4);
    EXPECT_EQ(place[0] / 2, place[2] / 2);
    EXPECT_EQ(place[1] / 2, place[3] / 2);
}

TEST(NearPlaces, isNeverWorseThanWhereItStartsAndStaysWhereAllAreAlike) {
    Random random(5);
    for (int round = 0; round < 20; ++round) {
        std::vector<double> traffic = drawn(6, random), costs = drawn(6, random);
        for (double& x : traffic) x = std::abs(x);
        for (double& x : costs) x = std::abs(x);
        const auto paid = [&](const std::vector<uint32_t>& place) {
            double sum = 0;
            for (uint32_t a = 0; a < 6; ++a)
                for (uint32_t b = 0; b < 6; ++b)
                    sum += a == b ? 0 : traffic[a * 6 + b] * costs[place[a] * 6 + place[b]];
            return sum;
        };
        std::vector<uint32_t> same(6);
        std::iota(same.begin(), same.end(), 0);
        const auto place = nearPlaces(traffic, costs, 6);
        EXPECT_LT(paid(place), paid(same));
        for (uint32_t a = 0; a < 6; ++a)  // no exchange gains
            for (uint32_t b = 0; b < a; ++b) {
                auto other = place;
                std::swap(other[a], other[b]);
                EXPECT_GE(paid(other), paid(place) - 1e-6);
            }
        EXPECT_EQ(nearPlaces(traffic, linkCosts(flatTopology(6, 1)), 6), same);
    }
}

}  // namespace
}  // namespace bulkhead::planner
