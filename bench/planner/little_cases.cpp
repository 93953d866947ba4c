// SPDX-License-Identifier: Apache-2.0
// Plans from little: few tokens, or other kinds of requests than those that come.
#include <algorithm>
#include <cstdio>
#include <numeric>

#include "backend/planner/solve/baselines.h"
#include "backend/planner/solve/cross_validation.h"
#include "backend/planner/solve/held_out.h"
#include "backend/planner/solve/random.h"
#include "bench/planner/cases.h"
#include "bench/planner/made_requests.h"

namespace bulkhead::bench {

using namespace planner;  // NOLINT: the bench is about the planner

namespace {

struct Compared {
    Plan plan;
    Outcome was, linear;
};

Compared compared(const Settings& settings, const RoutingView& train, const RoutingView& test,
                  JointOptions joint, uint64_t seed) {
    const Topology topology = flatTopology(4, 8);
    joint.effort = settings.effort;
    joint.seed = seed;
    CrossValidationOptions options;
    options.seed = seed;
    options.mixtures = joint.mixtures;
    options.otherKinds = joint.otherKinds;
    Compared made;
    made.plan = solveForecast(train, topology, joint, options).value();
    made.was = heldOut(test, made.plan, options.homes).value().outcome;
    const Plan linear = baselinePlan("linear", train, topology, 0).value();
    made.linear = heldOut(test, linear, options.homes).value().outcome;
    return made;
}

/// Requests in random order until they have `tokens`, the last one cut short; and as many others.
std::pair<RoutingView, RoutingView> few(const Routing& routing, uint64_t tokens, Random& random) {
    std::vector<TokenRange> all = wholeOf(routing).ranges;
    for (size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[random.below(i)]);
    RoutingView train{&routing, {}}, test{&routing, {}};
    size_t next = 0;
    for (RoutingView* view : {&train, &test})
        for (uint64_t left = tokens; left > 0 && next < all.size(); ++next) {
            TokenRange range = all[next];
            range.tokens = std::min(range.tokens, left);
            left -= range.tokens;
            view->ranges.push_back(range);
        }
    const auto byRequest = [](const TokenRange& a, const TokenRange& b) {
        return a.request < b.request;
    };
    std::sort(train.ranges.begin(), train.ranges.end(), byRequest);
    std::sort(test.ranges.begin(), test.ranges.end(), byRequest);
    return {train, test};
}

void fewTokens(const Settings& settings, const Routing& routing, const std::string& name,
               Report& report) {
    for (const uint64_t tokens : {64, 256, 1024, 4096}) {
        Random random(settings.splitSeed + tokens);
        const double n = settings.splits;
        double sends = 0, promised = 0, low = 0, high = 0, linear = 0, load = 0, promisedLoad = 0,
               highLoad = 0, linearLoad = 0, inside = 0, insideLoad = 0, worse = 0, fuller = 0;
        for (uint32_t split = 0; split < settings.splits; ++split) {
            const auto [train, test] = few(routing, tokens, random);
            const Compared it = compared(settings, train, test, {}, settings.seed);
            const auto& expected = it.plan.forecast.expected;
            const Range &s = expected.sends, &l = expected.nodeLoad;
            sends += it.was.sendsPerToken / n;
            promised += s.mean / n;
            low += s.low / n;
            high += s.high / n;
            linear += it.linear.sendsPerToken / n;
            load += it.was.nodeLoadMaxOverMean / n;
            promisedLoad += l.mean / n;
            highLoad += l.high / n;
            linearLoad += it.linear.nodeLoadMaxOverMean / n;
            inside += s.low <= it.was.sendsPerToken && it.was.sendsPerToken <= s.high;
            insideLoad +=
                l.low <= it.was.nodeLoadMaxOverMean && it.was.nodeLoadMaxOverMean <= l.high;
            worse += it.was.sendsPerToken > it.linear.sendsPerToken + s.high - s.mean;
            fuller += it.was.nodeLoadMaxOverMean > it.linear.nodeLoadMaxOverMean + l.high - l.mean;
            if (settings.each)
                std::printf(
                    "  %s %llu: sends %.3f (%.3f..%.3f) linear %.3f, load %.3f (%.3f..%.3f) linear "
                    "%.3f\n",
                    name.c_str(), static_cast<unsigned long long>(tokens), it.was.sendsPerToken,
                    s.low, s.high, it.linear.sendsPerToken, it.was.nodeLoadMaxOverMean, l.low,
                    l.high, it.linear.nodeLoadMaxOverMean);
        }
        std::printf(
            "%s from %llu tokens: sends %.3f, promised %.3f (%.3f..%.3f), inside %.0f%%, linear "
            "%.3f, worse %.0f%%; load %.3f, promised %.3f..%.3f, inside %.0f%%, linear %.3f, "
            "fuller %.0f%%\n",
            name.c_str(), static_cast<unsigned long long>(tokens), sends, promised, low, high,
            100 * inside / n, linear, 100 * worse / n, load, promisedLoad, highLoad,
            100 * insideLoad / n, linearLoad, 100 * fuller / n);
        std::fflush(stdout);
        const std::string what = name + " from " + std::to_string(tokens) + " tokens";
        report.row({what, "sends", number(sends, 3), "", number(load, 3), "", "",
                    number(promised, 3), ""});
        report.row({what, "linear", number(linear, 3), "", number(linearLoad, 3), "", "", "", ""});
        report.atMost(what + ": sends above linear's by more than the range", 100 * worse / n, 0,
                      "% of plans");
        report.atMost(what + ": node load above linear's by more than the range", 100 * fuller / n,
                      0, "% of plans");
    }
}

/// So many requests of one domain, by lot, and as many others of it; empty: none has so many.
std::pair<RoutingView, RoutingView> alike(const Routing& routing, size_t requests, Random& random) {
    std::vector<std::vector<TokenRange>> byDomain(routing.domains().size());
    for (const TokenRange& range : wholeOf(routing).ranges)
        byDomain[routing.requests()[range.request].domain].push_back(range);
    std::erase_if(byDomain, [&](const auto& domain) { return domain.size() < 2 * requests; });
    RoutingView train{&routing, {}}, test{&routing, {}};
    if (byDomain.empty()) return {train, test};
    std::vector<TokenRange>& all = byDomain[random.below(static_cast<uint32_t>(byDomain.size()))];
    for (size_t i = all.size(); i > 1; --i)
        std::swap(all[i - 1], all[random.below(static_cast<uint32_t>(i))]);
    const auto half = all.begin() + static_cast<ptrdiff_t>(requests);
    train.ranges.assign(all.begin(), half);
    test.ranges.assign(half, half + static_cast<ptrdiff_t>(requests));
    return {train, test};
}

/// `make`: the recording of a split.
template <class Make>
void fewAlike(const Settings& settings, const std::string& name, Make&& make, Report& report) {
    for (const size_t requests : {12, 16, 24, 36}) {
        Random random(settings.splitSeed + requests);
        double n = 0, sends = 0, promised = 0, above = 0, below = 0, load = 0, promisedLoad = 0,
               aboveLoad = 0, belowLoad = 0;
        for (uint32_t split = 0; split < settings.splits; ++split) {
            const auto [train, test] = alike(make(split), requests, random);
            if (train.ranges.empty()) break;
            const Compared it = compared(settings, train, test, {}, settings.seed);
            const auto& expected = it.plan.forecast.expected;
            const Range &s = expected.sends, &l = expected.nodeLoad;
            n += 1;
            sends += it.was.sendsPerToken;
            promised += s.mean;
            above += it.was.sendsPerToken > s.high;
            below += it.was.sendsPerToken < s.low;
            load += it.was.nodeLoadMaxOverMean;
            promisedLoad += l.mean;
            aboveLoad += it.was.nodeLoadMaxOverMean > l.high;
            belowLoad += it.was.nodeLoadMaxOverMean < l.low;
        }
        if (n == 0) continue;
        const std::string what =
            name + " from " + std::to_string(requests) + " requests of one domain";
        std::printf(
            "%s, %.0f plans: sends %.3f, promised %.3f, %.0f%% above the range, %.0f%% below; "
            "load %.3f, promised %.3f, %.0f%% above, %.0f%% below\n",
            what.c_str(), n, sends / n, promised / n, 100 * above / n, 100 * below / n, load / n,
            promisedLoad / n, 100 * aboveLoad / n, 100 * belowLoad / n);
        std::fflush(stdout);
        report.row({what, "sends", number(sends / n, 3), "", number(load / n, 3), "", "",
                    number(promised / n, 3), ""});
        report.atLeast(what + ": true sends inside the range", 100 - 100 * (above + below) / n, 85,
                       "%");
        report.atLeast(what + ": true node load inside the range",
                       100 - 100 * (aboveLoad + belowLoad) / n, 85, "%");
    }
}

/// From all requests but those of domains whose name begins so, scored on those.
void withoutDomains(const Settings& settings, const Routing& routing, const std::string& model,
                    const std::string& left, Report& report) {
    RoutingView train{&routing, {}}, test{&routing, {}};
    for (const TokenRange& range : wholeOf(routing).ranges) {
        const std::string& domain = routing.domains()[routing.requests()[range.request].domain];
        (domain.starts_with(left) ? test : train).ranges.push_back(range);
    }
    for (const std::string_view mix : {"", "worst", "unrecorded"}) {
        JointOptions joint;
        if (mix == "worst") joint.mixtures = worstMixtures(train);
        joint.otherKinds = mix == "unrecorded";
        const Compared it = compared(settings, train, test, joint, settings.seed);
        const auto& expected = it.plan.forecast.expected;
        const std::string what =
            model + " without " + left + (mix.empty() ? "" : ", --mix " + std::string(mix));
        std::printf(
            "%s: sends %.3f (%.3f, %.3f..%.3f) linear %.3f, load %.3f (%.3f..%.3f) linear "
            "%.3f\n",
            what.c_str(), it.was.sendsPerToken, expected.sends.mean, expected.sends.low,
            expected.sends.high, it.linear.sendsPerToken, it.was.nodeLoadMaxOverMean,
            expected.nodeLoad.low, expected.nodeLoad.high, it.linear.nodeLoadMaxOverMean);
        std::fflush(stdout);
        report.row({what, "sends", number(it.was.sendsPerToken, 3),
                    number(it.was.copiesPerToken, 3), number(it.was.nodeLoadMaxOverMean, 3), "", "",
                    number(expected.sends.mean, 3), ""});
        report.row({what, "linear", number(it.linear.sendsPerToken, 3),
                    number(it.linear.copiesPerToken, 3), number(it.linear.nodeLoadMaxOverMean, 3),
                    "", "", "", ""});
        report.atMost(what + ": sends less linear's",
                      it.was.sendsPerToken - it.linear.sendsPerToken, 0, "sends");
        report.atMost(what + ": node load less linear's",
                      it.was.nodeLoadMaxOverMean - it.linear.nodeLoadMaxOverMean, 0.05, "");
    }
}

}  // namespace

void littleCases(const Settings& settings, Report& report) {
    for (const auto& [folder, name] : {std::pair("esft", "ESFT"), std::pair("gptoss", "GPT-OSS")}) {
        if (!settings.model.empty() && settings.model != folder) continue;
        const Routing routing = readRecording(settings.data + "/" + folder + "/meta.json");
        fewTokens(settings, routing, name, report);
        fewAlike(
            settings, name, [&](uint32_t) -> const Routing& { return routing; }, report);
    }
    if (!settings.model.empty() && settings.model != "made") return;
    Routing made;
    fewAlike(
        settings, "made",
        [&](uint32_t split) -> const Routing& {
            return made = madeRequests(8, 64, 6, 30'000, 1, 0, settings.splitSeed + split);
        },
        report);
}

/// Every task of ESFT, on which the price of `unrecorded` was chosen, and what GPT-OSS's requests
/// come from, on which it was not: three families, and the larger data sets of two of them.
void taskCases(const Settings& settings, Report& report) {
    const struct {
        const char *folder, *name;
        std::vector<std::string> left;
    } models[] = {{"esft", "ESFT", {"intent", "law", "summary", "translation"}},
                  {"gptoss",
                   "GPT-OSS",
                   {"sorry_bench", "gpqa", "mmlu", "mmlu_dev", "mmlu_test", "mmlu_validation",
                    "mmlu_pro", "gpqa_main"}}};
    for (const auto& model : models) {
        if (!settings.model.empty() && settings.model != model.folder) continue;
        const Routing routing = readRecording(settings.data + "/" + model.folder + "/meta.json");
        for (const std::string& left : model.left)
            withoutDomains(settings, routing, model.name, left, report);
    }
}

}  // namespace bulkhead::bench
