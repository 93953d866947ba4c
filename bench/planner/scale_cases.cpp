// SPDX-License-Identifier: Apache-2.0
// A model of DeepSeek-V3's size on 32 nodes: how long a joint plan takes, and a new one after
// drift.
#include <sys/resource.h>

#include <cstdio>

#include "backend/planner/solve/baselines.h"
#include "backend/planner/solve/held_out.h"
#include "backend/planner/solve/joint.h"
#include "backend/planner/solve/replan.h"
#include "bench/planner/cases.h"
#include "bench/planner/made_requests.h"

namespace bulkhead::bench {

using namespace planner;  // NOLINT: the bench is about the planner

namespace {

constexpr uint32_t kLayers = 58, kExperts = 256, kTopK = 8, kNodes = 32, kDomains = 40;
constexpr uint64_t kTokens = 1'000'000, kDriftTokens = 60'000;
constexpr double kQuick = 0.08, kLong = 0.8;  ///< effort

double peakGb() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_maxrss) / 1e6;
}

/// Every 10th request, for scoring.
RoutingView tenth(const Routing& routing) {
    RoutingView view = wholeOf(routing);
    std::vector<TokenRange> kept;
    for (size_t r = 0; r < view.ranges.size(); r += 10) kept.push_back(view.ranges[r]);
    view.ranges = std::move(kept);
    return view;
}

}  // namespace

void scaleCases(const Settings& settings, Report& report) {
    report.note(
        "Scale: made requests, 58 layers x 256 experts, top-8, 1 M tokens (464 MB of ids), 32 "
        "nodes "
        "of 8; objective: sends a token on every 10th request; memory: peak of the whole process.");
    const Topology topology = flatTopology(kNodes, 8);
    const Routing routing =
        madeRequests(kLayers, kExperts, kTopK, kTokens, kDomains, 0, settings.seed);
    const RoutingView whole = wholeOf(routing), part = tenth(routing);
    const std::string name = "58x256, 32 nodes, 1 M tokens";
    const auto show = [&](const std::string& plan, const Outcome& o, double seconds) {
        report.row({name, plan, number(o.sendsPerToken, 3), number(o.copiesPerToken, 3),
                    number(o.nodeLoadMaxOverMean, 3), number(o.balancedness, 3), "", "",
                    number(seconds * 1e3, 0)});
        std::printf("%s, %s: sends %.4f copies %.4f load %.3f, %.2f s, peak %.2f GB\n",
                    name.c_str(), plan.c_str(), o.sendsPerToken, o.copiesPerToken,
                    o.nodeLoadMaxOverMean, seconds, peakGb());
        std::fflush(stdout);
    };
    const auto joint = [&](double effort, double& seconds) {
        JointOptions options;
        options.effort = effort;
        options.sampleTokens = effort < 0.2 ? 8000 : 16000;
        options.seed = settings.seed;
        Plan plan;
        seconds = secondsOf([&] { plan = solveJoint(whole, topology, options).value(); });
        return plan;
    };
    double quickSeconds = 0, longSeconds = 0;
    const Plan quick = joint(kQuick, quickSeconds);
    const double peak = peakGb();
    const Outcome quickOutcome = heldOut(part, quick, {}).value().outcome;
    show("ours", quickOutcome, quickSeconds);
    const Outcome longOutcome = heldOut(part, joint(kLong, longSeconds), {}).value().outcome;
    show("ours, searched ten times as long", longOutcome, longSeconds);
    show("linear",
         heldOut(part, baselinePlan("linear", part, topology, 0).value(), {}).value().outcome, 0);

    const Routing drifted =
        madeRequests(kLayers, kExperts, kTopK, kDriftTokens, kDomains, 0.5, settings.seed);
    Replan again;
    const double replanSeconds =
        secondsOf([&] { again = replan(quick, wholeOf(drifted), {}).value(); });
    show("that plan after drift", heldOut(wholeOf(drifted), quick, {}).value().outcome, 0);
    show("replanned, " + std::to_string(again.migration.slots) + " slots move",
         heldOut(wholeOf(drifted), again.plan, {}).value().outcome, replanSeconds);
    report.atMost(name + ": joint plan", quickSeconds, 5, "s");
    report.atMost(name + ": peak memory", peak, 1, "GB");
    report.atMost(name + ": objective against a search ten times as long",
                  quickOutcome.sendsPerToken / longOutcome.sendsPerToken, 1.01, "x");
    report.atMost(name + ": replanned after drift", replanSeconds, 0.5, "s");
    report.atMost(name + ": sends after replanning against before", again.after / again.before, 1,
                  "x");
}

}  // namespace bulkhead::bench
