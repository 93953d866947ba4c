// SPDX-License-Identifier: Apache-2.0
// Random halves by whole requests: what a plan says of itself, and what it does.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "backend/planner/solve/cross_validation.h"
#include "backend/planner/solve/held_out.h"
#include "backend/planner/solve/random.h"
#include "bench/planner/cases.h"

namespace bulkhead::bench {

using namespace planner;  // NOLINT: the bench is about the planner

namespace {

/// A random half of the requests, and the others. `neighbours`: of each two one for either, so that
/// both have the recorded mixture of domains.
std::pair<RoutingView, RoutingView> halves(const Routing& routing, bool neighbours,
                                           Random& random) {
    RoutingView train{&routing, {}}, test{&routing, {}};
    std::vector<TokenRange> all = wholeOf(routing).ranges;
    for (size_t i = all.size(); !neighbours && i > 1; --i)
        std::swap(all[i - 1], all[random.below(i)]);
    for (size_t i = 0; i < all.size(); i += 2) {
        const bool first = random.below(2) == 0;
        (first ? train : test).ranges.push_back(all[i]);
        if (i + 1 < all.size()) (first ? test : train).ranges.push_back(all[i + 1]);
    }
    for (RoutingView* view : {&train, &test})
        std::sort(view->ranges.begin(), view->ranges.end(),
                  [](const TokenRange& a, const TokenRange& b) { return a.request < b.request; });
    return {train, test};
}

struct Tally {
    double sum = 0, promised = 0, wide = 0, inside = 0, above = 0, count = 0;
    void add(const Range& range, double was) {
        sum += was;
        promised += range.mean;
        wide += range.high - range.low;
        inside += was >= range.low && was <= range.high;
        above += was > range.high;
        count += 1;
    }
};

void oneTarget(const Settings& settings, const Routing& routing, const std::string& name,
               bool copies, double cap, double bar, Report& report) {
    const Topology topology = flatTopology(4, 8);
    Random random(settings.splitSeed);
    Tally sends, copied, node, gpu;
    double kept = 0, seconds = 0, inSample = 0, plain = 0, times = 0;
    double ownSends = 0, ownCopies = 0, ownLoad = 0, sendsBeside = 0, copiesBeside = 0;
    for (uint32_t split = 0; split < settings.splits; ++split) {
        const auto [train, test] = halves(routing, settings.neighbours, random);
        JointOptions joint;
        joint.sends = copies ? 0 : 1;
        joint.copies = copies ? 1 : 0.02;
        joint.loadCap = cap;
        joint.effort = settings.effort;
        joint.seed = settings.seed;
        CrossValidationOptions options;
        options.homes = {0.3, 1.15, joint.sends, joint.copies};
        options.seed = settings.seed;
        if (settings.neighbours) joint.mixtures = options.mixtures = {recordedMixture(train)};
        Plan plan;
        const double took = processorSecondsOf(
            [&] { plan = solveForecast(train, topology, joint, options).value(); });
        seconds += took;
        if (split == 0) {
            plain = processorSecondsOf([&] { solveJoint(train, topology, joint).value(); });
            times = took / plain;
        }
        const Outcome was = heldOut(test, plan, options.homes).value().outcome;
        const auto& expected = plan.forecast.expected;
        sends.add(expected.sends, was.sendsPerToken);
        copied.add(expected.copies, was.copiesPerToken);
        node.add(expected.nodeLoad, was.nodeLoadMaxOverMean);
        gpu.add(expected.gpuLoad, was.gpuLoadMaxOverMean);
        kept += was.nodeLoadMaxOverMean <= cap;
        inSample += plan.forecast.inSample.nodeLoad;
        if (split < settings.own) {
            const Plan own = solveJoint(test, topology, joint).value();
            const Outcome it = heldOut(test, own, options.homes).value().outcome;
            ownSends += it.sendsPerToken;
            ownCopies += it.copiesPerToken;
            ownLoad += it.nodeLoadMaxOverMean;
            sendsBeside += was.sendsPerToken;
            copiesBeside += was.copiesPerToken;
        }
        if (!settings.each) continue;
        std::printf(
            "  %s %.2f %u: sends %.3f (%.3f %.3f..%.3f, in-sample %.3f) load %.3f (%.3f "
            "%.3f..%.3f, "
            "in-sample %.3f)\n",
            name.c_str(), cap, split, was.sendsPerToken, expected.sends.mean, expected.sends.low,
            expected.sends.high, plan.forecast.inSample.sends, was.nodeLoadMaxOverMean,
            expected.nodeLoad.mean, expected.nodeLoad.low, expected.nodeLoad.high,
            plan.forecast.inSample.nodeLoad);
        std::fflush(stdout);
    }
    const double n = settings.splits;
    const auto show = [&](const char* figure, const Tally& t) {
        std::printf(
            "%s %s cap %.2f, %s: %.3f, promised %.3f, range %.3f wide, inside %.0f%%, "
            "above %.0f%%\n",
            name.c_str(), copies ? "copies" : "sends", cap, figure, t.sum / n, t.promised / n,
            t.wide / n, 100 * t.inside / n, 100 * t.above / n);
        report.row({name + " " + std::to_string(settings.splits) + " random halves",
                    std::string(copies ? "copies" : "sends") + ", cap " + number(cap, 2), figure,
                    number(t.sum / n, 3), number(t.promised / n, 3), "",
                    number(100 * t.inside / n, 0), "", number(seconds / n * 1e3, 0)});
    };
    show("sends", sends);
    show("copies", copied);
    show("node load", node);
    show("GPU load", gpu);
    std::printf("  cap kept in %.0f%%; in-sample load %.3f; %.2f s a plan, %.2f s without\n",
                100 * kept / n, inSample / n, seconds / n, plain);
    if (const double own = std::min(settings.own, settings.splits); own > 0)
        std::printf(
            "  from the scored half itself, first %.0f splits: sends %.3f (%.3f from the other), "
            "copies %.3f (%.3f), load %.3f\n",
            own, ownSends / own, sendsBeside / own, ownCopies / own, copiesBeside / own,
            ownLoad / own);
    std::fflush(stdout);
    const std::string what = name + (copies ? " copies" : " sends") + ", cap " + number(cap, 2);
    report.atMost(what + ": a token", (copies ? copied : sends).sum / n, bar,
                  copies ? "copies" : "sends");
    report.atMost(what + ": with cross-validation, times as long", times, 2, "");
    report.atLeast(what + ": splits that keep the cap", 100 * kept / n, 90, "%");
    const double inside = 100 * (copies ? copied : sends).inside / n;
    const std::string figure = copies ? ": true copies" : ": true sends";
    report.atLeast(what + figure + " inside the range", inside, 85, "%");
    report.atMost(what + figure + " inside the range", inside, 95, "%");
    report.atLeast(what + ": true node load inside the range", 100 * node.inside / n, 85, "%");
    report.atMost(what + ": true node load inside the range", 100 * node.inside / n, 95, "%");
}

}  // namespace

void splitCases(const Settings& settings, Report& report) {
    const struct {
        const char *folder, *name;
        double sends, copies, tight;
    } models[] = {{"esft", "ESFT", 1.76, 3.34, 1.80}, {"gptoss", "GPT-OSS", 1.55, 2.47, 1.58}};
    for (const auto& model : models) {
        if (!settings.model.empty() && settings.model != model.folder) continue;
        const Routing routing = readRecording(settings.data + "/" + model.folder + "/meta.json");
        const auto wanted = [&](const char* target) {
            return settings.target.empty() || settings.target == target;
        };
        if (wanted("sends"))
            oneTarget(settings, routing, model.name, false, 1.15, model.sends, report);
        if (wanted("copies"))
            oneTarget(settings, routing, model.name, true, 1.15, model.copies, report);
        if (wanted("tight"))
            oneTarget(settings, routing, model.name, false, 1.06, model.tight, report);
    }
}

}  // namespace bulkhead::bench
