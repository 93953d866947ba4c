// SPDX-License-Identifier: Apache-2.0
// Real routing, requests that were not planned with.
#include <cstdio>
#include <functional>

#include "backend/planner/solve/baselines.h"
#include "backend/planner/solve/held_out.h"
#include "backend/planner/solve/joint.h"
#include "bench/planner/cases.h"
#include "bench/planner/prototype.h"

namespace bulkhead::bench {

using namespace planner;  // NOLINT: the bench is about the planner

namespace {

struct Bars {
    std::string folder, name;
    double sends, aimSends, copies, aimCopies;
};

/// Means over the two halves.
struct Figures {
    double sends = 0, copies = 0, load = 0, balancedness = 0, homes = 0, seconds = 0;
};

using Maker = std::function<Plan(const RoutingView&)>;

Figures measured(const Routing& routing, const Maker& make, bool copies) {
    Figures mean;
    for (const bool odd : {false, true}) {
        const RoutingView train = everySecond(wholeOf(routing), odd);
        const RoutingView test = everySecond(wholeOf(routing), !odd);
        Plan plan;
        mean.seconds += secondsOf([&] { plan = make(train); }) / 2;
        const HeldOutOptions options{0.3, 1.15, copies ? 0.0 : 1.0, copies ? 1.0 : 0.02, true};
        const Outcome outcome = heldOut(test, plan, options).value().outcome;
        mean.sends += outcome.sendsPerToken / 2;
        mean.copies += outcome.copiesPerToken / 2;
        mean.load += outcome.nodeLoadMaxOverMean / 2;
        mean.balancedness += outcome.balancedness / 2;
        mean.homes += outcome.homeLoadMaxOverMean / 2;
    }
    return mean;
}

void show(Report& report, const std::string& name, const std::string& plan, const Figures& f) {
    report.row({name, plan, number(f.sends, 3), number(f.copies, 3), number(f.load, 3),
                number(f.balancedness, 3), "", "", number(f.seconds * 1e3, 0)});
    std::printf("%s %s: sends %.3f copies %.3f load %.3f homes %.3f, %.1f s\n", name.c_str(),
                plan.c_str(), f.sends, f.copies, f.load, f.homes, f.seconds);
    std::fflush(stdout);
}

void oneModel(const Settings& settings, const Bars& bars, Report& report) {
    const Routing routing = readRecording(settings.data + "/" + bars.folder + "/meta.json");
    const Topology topology = flatTopology(4, 8);
    const auto joint = [&](bool copies, uint32_t redundant, double cap) {
        return [=, &settings](const RoutingView& train) {
            JointOptions options;
            options.sends = copies ? 0 : 1;
            options.copies = copies ? 1 : 0.02;
            options.redundant = redundant;
            options.loadCap = cap;
            options.effort = settings.effort;
            options.seed = settings.seed;
            return solveJoint(train, topology, options).value();
        };
    };
    for (const char* name : {"linear", "round_robin", "lpt", "eplb_global", "coactivation"})
        show(report, bars.name, name,
             measured(
                 routing,
                 [&](const RoutingView& train) {
                     return baselinePlan(name, train, topology, 0).value();
                 },
                 false));
    Figures ours[2], theirs[2];
    for (const bool copies : {false, true}) {
        const std::string what = copies ? "copies" : "sends";
        for (const double cap : {1.06, 1.15}) {
            theirs[copies] = measured(
                routing,
                [&](const RoutingView& train) {
                    return prototypePlan(train, topology, copies, cap, settings.seed);
                },
                copies);
            show(report, bars.name, "prototype, " + what + ", load " + number(cap, 2),
                 theirs[copies]);
            ours[copies] = measured(routing, joint(copies, 0, cap), copies);
            show(report, bars.name, "ours, " + what + ", load " + number(cap, 2), ours[copies]);
        }
    }
    const uint32_t redundant = routing.shape().experts / 8;
    const Figures more = measured(routing, joint(false, redundant, 1.08), false);
    show(report, bars.name, "ours, sends, 12.5% redundant", more);
    report.atMost(bars.name + " sends a token", ours[0].sends, bars.sends, "sends");
    report.atMost(bars.name + " sends a token, aim", ours[0].sends, bars.aimSends, "sends");
    report.atMost(bars.name + " node load max/mean of that plan", ours[0].load, 1.15, "");
    report.atMost(bars.name + " copies a token", ours[1].copies, bars.copies, "copies");
    report.atMost(bars.name + " copies a token, aim", ours[1].copies, bars.aimCopies, "copies");
    report.atMost(bars.name + " node load max/mean of that plan (copies)", ours[1].load, 1.15, "");
    report.atMost(bars.name + " sends against the prototype's", ours[0].sends / theirs[0].sends, 1,
                  "x");
    report.atMost(bars.name + " copies against the prototype's", ours[1].copies / theirs[1].copies,
                  1, "x");
    report.atMost(bars.name + " sends with 12.5% redundant experts", more.sends / ours[0].sends,
                  0.92, "x");
    report.atMost(bars.name + " node load with 12.5% redundant experts", more.load, 1.08, "");
    report.atMost(bars.name + " home tokens max/mean", std::max(ours[0].homes, ours[1].homes), 1.15,
                  "");
}

}  // namespace

void heldOutCases(const Settings& settings, Report& report) {
    report.note(
        "Requests: plans from every second request, 4 nodes of 8; homes of the others from their "
        "first 30%, at most 1.15 of the mean; the rest is scored; mean of both halves.");
    oneModel(settings, {"esft", "ESFT", 1.83, 1.76, 3.32, 3.20}, report);
    oneModel(settings, {"gptoss", "GPT-OSS", 1.61, 1.55, 2.50, 2.40}, report);
}

}  // namespace bulkhead::bench
