// SPDX-License-Identifier: Apache-2.0
// Changes to the plan in use when routing drifts.
#include <gtest/gtest.h>

#include <numeric>

#include "backend/planner/solve/held_out.h"
#include "backend/planner/solve/joint.h"
#include "backend/planner/solve/replan.h"
#include "tests/planner/made_routing.h"

namespace bulkhead::planner {
namespace {

TEST(Replan, keepsAPlanThatStillFitsAndChangesOneThatDoesNot) {
    const Routing before = madeRouting(fourDomains(40));
    JointOptions joint;
    joint.effort = 0.3;
    const Plan plan = solveJoint(wholeOf(before), flatTopology(4, 2), joint).value();
    ReplanOptions options;
    options.proposalsPerUnit = 2000;
    const auto same = replan(plan, wholeOf(before), options);
    ASSERT_TRUE(same.ok()) << same.status();
    EXPECT_FALSE(same->changes) << same->reason;
    EXPECT_EQ(same->plan, plan);
    EXPECT_EQ(same->migration.slots, 0u);

    MadeOptions drifted = fourDomains(40);
    drifted.seed = 99;
    drifted.domains = 3;  // other experts belong together now
    const Routing after = madeRouting(drifted);
    const auto changed = replan(plan, wholeOf(after), options);
    ASSERT_TRUE(changed.ok());
    EXPECT_TRUE(changed->changes) << changed->reason;
    EXPECT_LT(changed->after, 0.98 * changed->before);
    EXPECT_TRUE(checkPlan(changed->plan).ok()) << checkPlan(changed->plan);
    EXPECT_GT(changed->migration.slots, 0u);
    const auto old = heldOut(wholeOf(after), plan, {}),
               now = heldOut(wholeOf(after), changed->plan, {});
    EXPECT_LT(now->outcome.sendsPerToken, old->outcome.sendsPerToken);

    ReplanOptions dear = options;
    dear.pricePerMove = 100;
    EXPECT_FALSE(replan(plan, wholeOf(after), dear)->changes);
}

TEST(Replan, domainsThatThePlanInUseDoesNotKnowGetHomes) {
    MadeOptions all = fourDomains(48);
    all.layers = 3;
    all.own = 0.9;
    const Routing routing = madeRouting(all);
    const auto ofDomains = [&](uint32_t a, uint32_t b) {
        std::vector<uint32_t> requests;
        for (uint32_t r = 0; r < routing.requests().size(); ++r)
            if (const uint32_t d = routing.requests()[r].domain; d == a || d == b)
                requests.push_back(r);
        return requestsOf(routing, requests);
    };
    JointOptions joint;
    joint.effort = 0.3;
    const Plan plan = solveJoint(ofDomains(0, 1), flatTopology(4, 2), joint).value();
    const RoutingView now = ofDomains(1, 3);
    ReplanOptions options;
    options.sweeps = 20;
    options.rounds = 4;
    for (const double leastGain : {0.02, 1.0}) {
        options.leastGain = leastGain;
        const Replan made = replan(plan, now, options).value();
        EXPECT_EQ(made.changes, leastGain < 1) << made.reason;
        EXPECT_TRUE(made.newHomes);
        ASSERT_EQ(made.plan.homes.size(), 2u);
        EXPECT_EQ(made.plan.homes[0].domain, "d1");
        EXPECT_EQ(made.plan.homes[1].domain, "d3");
        EXPECT_EQ(made.plan.origin.tokens, now.tokens());
        for (const DomainHome& home : made.plan.homes)
            EXPECT_NEAR(std::accumulate(home.share.begin(), home.share.end(), 0.0), 1, 1e-9);
    }
    options.leastGain = 0.02;
    const Replan often = replan(plan, now, options).value();
    options.rounds = 1;
    EXPECT_LE(often.after, replan(plan, now, options).value().after);
    // Each domain by itself on some of the nodes, as a plan from nothing would have it.
    const auto sends = [&](const Plan& p) {
        return heldOut(now, p, {}).value().outcome.sendsPerToken;
    };
    EXPECT_LT(sends(often.plan), 1.15 * sends(solveJoint(now, flatTopology(4, 2), joint).value()));
}

}  // namespace
}  // namespace bulkhead::planner
