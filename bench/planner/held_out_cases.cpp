// SPDX-License-Identifier: Apache-2.0
// Real routing, requests that were not planned with.
#include <cstdio>
#include <functional>

#include "backend/planner/solve/baselines.h"
#include "backend/planner/solve/held_out.h"
#include "backend/planner/solve/joint.h"
#include "backend/planner/solve/random.h"
#include "bench/planner/cases.h"
#include "bench/planner/prototype.h"

namespace bulkhead::bench {

using namespace planner;  // NOLINT: the bench is about the planner

namespace {

constexpr uint32_t kOtherPairs = 3;

struct Bars {
    std::string folder, name;
    double sends, aimSends, copies, aimCopies;
};

/// Means over halves.
struct Figures {
    double sends = 0, copies = 0, load = 0, balancedness = 0, homes = 0, seconds = 0;
};

using Maker = std::function<Plan(const RoutingView&)>;

/// Requests that a plan is made from, and others that it is scored on.
struct Halves {
    RoutingView train, test;
};

/// Every second request, and the others.
std::vector<Halves> evenAndOdd(const Routing& routing) {
    const RoutingView even = everySecond(wholeOf(routing), false),
                      odd = everySecond(wholeOf(routing), true);
    return {{even, odd}, {odd, even}};
}

/// Of each two neighbours one for either half, by lot; the two halves in turn.
std::vector<Halves> byLot(const Routing& routing, uint32_t pairs, uint64_t seed) {
    Random random(seed);
    std::vector<Halves> made;
    for (uint32_t pair = 0; pair < pairs; ++pair) {
        RoutingView a{&routing, {}}, b{&routing, {}};
        const std::vector<TokenRange> all = wholeOf(routing).ranges;
        for (size_t i = 0; i < all.size(); i += 2) {
            const bool first = random.below(2) == 0;
            (first ? a : b).ranges.push_back(all[i]);
            if (i + 1 < all.size()) (first ? b : a).ranges.push_back(all[i + 1]);
        }
        made.push_back({a, b});
        made.push_back({b, a});
    }
    return made;
}

Figures measured(const std::vector<Halves>& halves, const Maker& make, bool copies) {
    Figures mean;
    const double weight = 1.0 / static_cast<double>(halves.size());
    for (const auto& [train, test] : halves) {
        Plan plan;
        mean.seconds += secondsOf([&] { plan = make(train); }) * weight;
        const HeldOutOptions options{0.3, 1.15, copies ? 0.0 : 1.0, copies ? 1.0 : 0.02};
        const Outcome outcome = heldOut(test, plan, options).value().outcome;
        mean.sends += outcome.sendsPerToken * weight;
        mean.copies += outcome.copiesPerToken * weight;
        mean.load += outcome.nodeLoadMaxOverMean * weight;
        mean.balancedness += outcome.balancedness * weight;
        mean.homes += outcome.homeLoadMaxOverMean * weight;
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
    const std::vector<Halves> halves = evenAndOdd(routing);
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
                 halves,
                 [&](const RoutingView& train) {
                     return baselinePlan(name, train, topology, 0).value();
                 },
                 false));
    Figures ours[2], theirs[2];
    for (const bool copies : {false, true}) {
        const std::string what = copies ? "copies" : "sends";
        for (const double cap : {1.06, 1.15}) {
            theirs[copies] = measured(
                halves,
                [&](const RoutingView& train) {
                    return prototypePlan(train, topology, copies, cap, settings.seed);
                },
                copies);
            show(report, bars.name, "prototype, " + what + ", load " + number(cap, 2),
                 theirs[copies]);
            ours[copies] = measured(halves, joint(copies, 0, cap), copies);
            show(report, bars.name, "ours, " + what + ", load " + number(cap, 2), ours[copies]);
        }
    }
    const uint32_t redundant = routing.shape().experts / 8;
    const Figures more = measured(halves, joint(false, redundant, 1.08), false);
    show(report, bars.name, "ours, sends, 12.5% redundant", more);
    // Part of the figures above that is the luck of those two halves.
    const std::vector<Halves> others = byLot(routing, kOtherPairs, settings.seed);
    const std::string lot = ", halves by lot";
    for (const bool copies : {false, true})
        show(report, bars.name,
             (copies ? "ours, copies, load 1.15" : "ours, sends, load 1.15") + lot,
             measured(others, joint(copies, 0, 1.15), copies));
    show(report, bars.name, "ours, sends, 12.5% redundant" + lot,
         measured(others, joint(false, redundant, 1.08), false));
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
        "first 30%, at most 1.15 of the mean; the rest is scored; mean of both halves. By lot: "
        "three "
        "other pairs of halves, of each two neighbours one for either.");
    oneModel(settings, {"esft", "ESFT", 1.83, 1.76, 3.32, 3.20}, report);
    oneModel(settings, {"gptoss", "GPT-OSS", 1.61, 1.55, 2.50, 2.40}, report);
}

}  // namespace bulkhead::bench
