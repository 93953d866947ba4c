// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/solve/per_domain.h"

#include <gmock/gmock.h>

#include "backend/planner/import/import.h"
#include "backend/planner/solve/baselines.h"
#include "backend/planner/solve/numbering.h"
#include "tests/planner/made_routing.h"
#include "tests/planner/shared_data.h"

namespace bulkhead::planner {
namespace {

using testing::HasSubstr;

/// The plan with node n called order[n], by hand.
Plan renamed(const Plan& plan, const std::vector<uint32_t>& order) {
    Plan out = plan;
    const uint32_t perNode = plan.slots() / plan.topology.nodes();
    for (size_t l = 0; l < plan.layers.size(); ++l) {
        LayerPlan& layer = out.layers[l];
        for (uint32_t s = 0; s < plan.slots(); ++s)
            layer.expertOfSlot[order[s / perNode] * perNode + s % perNode] =
                plan.layers[l].expertOfSlot[s];
        for (Dispatch& d : layer.dispatch) {
            const Dispatch old = d;
            std::vector<std::pair<uint32_t, size_t>> slots;
            for (size_t i = 0; i < old.slots.size(); ++i)
                slots.push_back(
                    {order[old.slots[i] / perNode] * perNode + old.slots[i] % perNode, i});
            std::sort(slots.begin(), slots.end());
            for (size_t i = 0; i < slots.size(); ++i) {
                d.slots[i] = slots[i].first;
                for (uint32_t n = 0; n < plan.topology.nodes(); ++n)
                    d.weights[order[n] * slots.size() + i] =
                        old.weights[n * slots.size() + slots[i].second];
            }
        }
    }
    for (DomainHome& home : out.homes)
        for (uint32_t n = 0; n < plan.topology.nodes(); ++n)
            home.share[order[n]] =
                plan.homes[static_cast<size_t>(&home - out.homes.data())].share[n];
    return out;
}

TEST(PerDomain, NodesThatOnlyHaveOtherNamesAreFoundAgain) {
    MadeOptions made;
    made.layers = 3;
    made.experts = 32;
    made.requests = 32;
    const Routing routing = madeRouting(made);
    JointOptions joint;
    joint.redundant = 8;
    joint.effort = 0.1;
    const auto plan = solveJoint(wholeOf(routing), flatTopology(4, 2), joint);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_FALSE(plan->homes.empty());
    ASSERT_TRUE(std::any_of(plan->layers.begin(), plan->layers.end(),
                            [](const LayerPlan& l) { return !l.dispatch.empty(); }));
    const Plan other = renamed(*plan, {2, 0, 3, 1});
    ASSERT_TRUE(checkPlan(other).ok()) << checkPlan(other);
    EXPECT_NE(other, *plan);
    EXPECT_EQ(numberedLike(*plan, other), *plan);
    EXPECT_EQ(migrationBetween(*plan, numberedLike(*plan, other))->slots, 0u);
}

TEST(PerDomain, SaysWhatAPlanOfItsOwnSavesAndWhatSwitchingCosts) {
    MadeOptions made;
    made.requests = 32;
    made.domains = 3;
    const Routing routing = madeRouting(made);
    PerDomainOptions options;
    options.joint.effort = 0.1;
    const auto all = solvePerDomain(routing, flatTopology(2, 2), options);
    ASSERT_TRUE(all.ok()) << all.status();
    ASSERT_EQ(all->domains.size(), 3u);
    ASSERT_EQ(all->switches.size(), 4u);
    for (size_t d = 0; d < 3; ++d) {
        const DomainPlanGain& gain = all->domains[d];
        EXPECT_EQ(gain.domain, "d" + std::to_string(d));
        const Migration cost = all->switches[0][d + 1];
        EXPECT_EQ(cost.bytes, migrationBetween(all->shared, gain.plan)->bytes);
        EXPECT_EQ(all->switches[d + 1][d + 1].slots, 0u);
        const double was = gain.shared.time.stepSeconds, is = gain.own.time.stepSeconds;
        EXPECT_DOUBLE_EQ(gain.gain(), (was - is) / was);
        EXPECT_EQ(gain.worth, gain.gain() >= 0.02);
        EXPECT_DOUBLE_EQ(gain.paysAfterSteps(cost), is < was ? cost.seconds / (was - is) : -1);
        EXPECT_THAT(gain.reason, HasSubstr(gain.worth ? "has paid after" : "keep the shared plan"));
    }
    options.leastGain = 1;
    const auto strict = solvePerDomain(routing, flatTopology(2, 2), options);
    for (const DomainPlanGain& gain : strict->domains) EXPECT_FALSE(gain.worth) << gain.reason;
}

TEST(PerDomain, NeedsDomainsAndRequestsOfEach) {
    MadeOptions made;
    made.domains = 1;
    const Topology topology = flatTopology(2, 1);
    EXPECT_THAT(std::string(solvePerDomain(madeRouting(made), topology, {}).status().message()),
                HasSubstr("has one domain"));
    made.domains = 2;
    made.requests = 3;
    EXPECT_THAT(std::string(solvePerDomain(madeRouting(made), topology, {}).status().message()),
                HasSubstr("domain \"d1\" has 1 requests; expected at least 2"));
}

/// Four kinds of text: each one's experts fill nodes of their own, so a domain that is served alone
/// does better with a plan that spreads them over all nodes.
TEST(PerDomain, OnRealRoutingADomainAloneDoesBetterWithItsOwnPlan) {
    BULKHEAD_SHARED_DATA(path, "moe/esft/meta.json");
    const auto recording = importRecording(*path);
    ASSERT_TRUE(recording.ok() && recording->routing);
    PerDomainOptions options;
    options.joint.effort = 0.1;
    const auto all = solvePerDomain(*recording->routing, flatTopology(4, 8), options);
    ASSERT_TRUE(all.ok()) << all.status();
    ASSERT_EQ(all->domains.size(), 4u);
    for (const DomainPlanGain& gain : all->domains) {
        std::printf("    %s: %s\n", gain.domain.c_str(), gain.reason.c_str());
        const Outcome &shared = gain.shared.outcome, &own = gain.own.outcome;
        EXPECT_GT(gain.gain(), 0) << gain.domain << ", on requests nobody planned with";
        EXPECT_LT(own.nodeLoadMaxOverMean, shared.nodeLoadMaxOverMean) << gain.domain;
    }
}

}  // namespace
}  // namespace bulkhead::planner
