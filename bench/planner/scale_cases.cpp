// SPDX-License-Identifier: Apache-2.0
// A model of DeepSeek-V3's size on 32 nodes: how long a joint plan takes, and a new one after
// drift.
#include <sys/resource.h>

#include <cstdio>

#include "backend/planner/solve/baselines.h"
#include "backend/planner/solve/expected_load.h"
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
constexpr uint64_t kSampleTokens = 16'000;
constexpr uint32_t kFewLayers = 8;  ///< that a long search is compared on
constexpr double kLong = 1.5;       ///< effort: 250 times the processor time of the usual search
constexpr uint32_t kRedundant = 32;
constexpr double kQuick = 0.08;  ///< effort with redundant experts, which are always annealed

double peakGb() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_maxrss) / 1e6;
}

/// A joint plan, what it took, and what its search minimised, at its end.
struct Joint {
    Plan plan;
    double seconds = 0, objective = 0;
};

Joint joint(const RoutingView& view, const Settings& settings, double effort, uint32_t redundant) {
    JointOptions options;
    options.effort = effort;
    options.redundant = redundant;
    options.sampleTokens = kSampleTokens;
    options.seed = settings.seed;
    Joint made;
    options.onRound = [&](uint32_t, double objective) { made.objective = objective; };
    made.seconds = processorSecondsOf(
        [&] { made.plan = solveJoint(view, flatTopology(kNodes, 8), options).value(); });
    return made;
}

Outcome scored(const RoutingView& view, const Plan& plan) {
    return heldOut(view, plan, {}).value().outcome;
}

/// Gap between the usual search and one with far more time, on some layers.
void finalObjective(const Settings& settings, Report& report, const std::string& name) {
    const Routing few =
        madeRequests(kFewLayers, kExperts, kTopK, kTokens, kDomains, 0, settings.seed);
    const RoutingView whole = wholeOf(few);
    const Joint usual = joint(whole, settings, 1, 0), longer = joint(whole, settings, kLong, 0);
    const double own = scored(whole, usual.plan).sendsPerToken,
                 best = scored(whole, longer.plan).sendsPerToken;
    report.row({name, "ours, " + std::to_string(kFewLayers) + " layers", number(own, 3), "", "", "",
                "", "", number(usual.seconds * 1e3, 0)});
    report.row({name, "ours, annealed, " + std::to_string(kFewLayers) + " layers", number(best, 3),
                "", "", "", "", "", number(longer.seconds * 1e3, 0)});
    report.atMost(name + ": objective against an annealed search's",
                  usual.objective / longer.objective, 1.01, "x");
    report.atMost(name + ": its sends against an annealed search's", own / best, 1.01, "x");
}

}  // namespace

void scaleCases(const Settings& settings, Report& report) {
    report.note(
        "Scale: made requests, 58 layers x 256 experts, top-8, 1 M tokens (464 MB of ids), 32 "
        "nodes of 8; scored on all requests after their first 30 %; memory: peak of the whole "
        "process; time: of the processor; bound: what no placement without replicas can be below, "
        "or the cap of 1.15.");
    const Topology topology = flatTopology(kNodes, 8);
    const Routing routing =
        madeRequests(kLayers, kExperts, kTopK, kTokens, kDomains, 0, settings.seed);
    const RoutingView whole = wholeOf(routing);
    const std::string name = "58x256, 32 nodes, 1 M tokens";
    const auto show = [&](const std::string& plan, const Outcome& o, double bound, double seconds) {
        report.row({name, plan, number(o.sendsPerToken, 3), number(o.copiesPerToken, 3),
                    number(o.nodeLoadMaxOverMean, 3), number(o.balancedness, 3), "",
                    bound > 0 ? number(bound, 3) : "", number(seconds * 1e3, 0)});
    };
    const Joint quick = joint(whole, settings, 1, 0);
    const double peak = peakGb(), least = leastNodeLoad(countsOf(tailOf(whole, 0.3)), kNodes, 1.15);
    const Outcome outcome = scored(whole, quick.plan);
    show("ours", outcome, least, quick.seconds);
    show("linear", scored(whole, baselinePlan("linear", whole, topology, 0).value()), least, 0);
    const Joint more = joint(whole, settings, kQuick, kRedundant);
    const Outcome spread = scored(whole, more.plan);
    show("ours, " + std::to_string(kRedundant) + " redundant", spread, 0, more.seconds);

    const Routing drifted =
        madeRequests(kLayers, kExperts, kTopK, kDriftTokens, kDomains, 0.5, settings.seed);
    const RoutingView now = wholeOf(drifted);
    Replan again;
    const double replanSeconds =
        processorSecondsOf([&] { again = replan(quick.plan, now, {}).value(); });
    const double leastNow = leastNodeLoad(countsOf(tailOf(now, 0.3)), kNodes, 1.15);
    show("that plan after drift", scored(now, quick.plan), leastNow, 0);
    show("replanned, " + std::to_string(again.migration.slots) + " slots move",
         scored(now, again.plan), leastNow, replanSeconds);
    report.atMost(name + ": joint plan", quick.seconds, 5, "s");
    report.atMost(name + ": peak memory", peak, 1, "GB");
    report.atMost(name + ": node load max/mean against the bound",
                  outcome.nodeLoadMaxOverMean / least, 1.01, "x");
    report.atMost(name + ": node load max/mean with redundant experts", spread.nodeLoadMaxOverMean,
                  1.15, "");
    report.atMost(name + ": replanned after drift", replanSeconds, 0.5, "s");
    report.atMost(name + ": sends after replanning against before", again.after / again.before, 1,
                  "x");
    finalObjective(settings, report, name);
}

}  // namespace bulkhead::bench
