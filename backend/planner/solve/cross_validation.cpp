// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/solve/cross_validation.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "backend/planner/solve/expected_load.h"
#include "backend/planner/solve/random.h"

namespace bulkhead::planner {

namespace {

constexpr uint32_t kGapDraws = 50;
constexpr uint32_t kServedDraws =
    18;  ///< so that each block has its turn, in groups of two or three
/// The group of drawBlocks() where a router evens load out for what comes: a plan then fits the
/// load of its own requests by next to nothing.
constexpr uint32_t kGroupEvened = 2;
constexpr uint64_t kMostServed = 20'000'000;  ///< choices of experts in these draws
constexpr uint32_t kLeastServed = 8;          ///< tokens of a request in them, if it has so many
constexpr uint64_t kMostChoices =
    60'000'000;  ///< of experts that a plan is scored on; then every so many-th request

/// The requests, cut in time where they are too few to leave some of them out.
RoutingView pieces(const RoutingView& view) {
    if (view.ranges.size() >= kFewRanges || view.ranges.empty()) return view;
    const uint64_t tokens = view.tokens();
    RoutingView made{view.routing, {}};
    for (const TokenRange& range : view.ranges) {
        const uint64_t parts = std::clamp<uint64_t>(
            (2 * kFewRanges * range.tokens + tokens - 1) / std::max<uint64_t>(tokens, 1), 1,
            std::max<uint64_t>(range.tokens / 2, 1));
        for (uint64_t i = 0; i < parts; ++i) {
            const uint64_t from = range.tokens * i / parts, to = range.tokens * (i + 1) / parts;
            made.ranges.push_back({range.request, range.firstToken + from, to - from});
        }
    }
    return made;
}

/// [block] the fold that it is left out in: of neighbours each in another one, by lot, so that
/// folds have the same mixture where requests are sorted by domain.
std::vector<uint32_t> foldsOf(uint32_t blocks, uint32_t folds, uint64_t seed) {
    std::vector<uint32_t> made, lot(folds);
    Random random(seed ^ 0x666F6C6473ull);
    while (made.size() < blocks) {
        std::iota(lot.begin(), lot.end(), 0);
        for (size_t i = lot.size(); i > 1; --i) std::swap(lot[i - 1], lot[random.below(i)]);
        made.insert(made.end(), lot.begin(), lot.end());
    }
    made.resize(blocks);
    return made;
}

/// The mean over tokens; `weights` of the blocks' tokens, empty: 1.
double meanOf(const std::vector<CrossValidation::Block>& blocks,
              double CrossValidation::Block::*what, std::span<const double> weights) {
    double sum = 0, tokens = 0;
    for (size_t b = 0; b < blocks.size(); ++b) {
        const double weight = weights.empty() ? 1 : weights[b];
        sum += weight * blocks[b].*what;
        tokens += weight * blocks[b].tokens;
    }
    return tokens > 0 ? sum / tokens : 0;
}

/// Scores of all blocks under one plan.
struct Scores {
    std::vector<CrossValidation::Block> blocks;
    std::vector<std::vector<float>> node, gpu;  ///< [layer], blocks x places

    double sends() const { return perToken(&CrossValidation::Block::sends); }
    double copies() const { return perToken(&CrossValidation::Block::copies); }
    double perToken(double CrossValidation::Block::*what) const { return meanOf(blocks, what, {}); }
};

void addLoad(const std::vector<double>& load, std::vector<float>& to) {
    to.insert(to.end(), load.begin(), load.end());
}

/// `chosen` blocks of `outcomes`, [block][layer].
Scores scoresOf(const std::vector<std::vector<LayerOutcome>>& outcomes,
                const std::vector<double>& tokens, const std::vector<uint32_t>& chosen) {
    Scores made;
    if (outcomes.empty()) return made;
    const size_t layers = outcomes[0].size();
    made.node.resize(layers);
    made.gpu.resize(layers);
    for (uint32_t b : chosen) {
        CrossValidation::Block block{tokens[b], 0, 0};
        for (size_t layer = 0; layer < layers; ++layer) {
            const LayerOutcome& out = outcomes[b][layer];
            block.sends += out.sends * tokens[b] / static_cast<double>(layers);
            block.copies += out.copies * tokens[b] / static_cast<double>(layers);
            addLoad(out.nodeLoad, made.node[layer]);
            addLoad(out.gpuLoad, made.gpu[layer]);
        }
        made.blocks.push_back(block);
    }
    return made;
}

/// A recording as blocks, of which a part of the requests is scored.
struct Blocks {
    RoutingView view;
    bool byTime = false;
    std::vector<uint32_t> of;  ///< [range of view]
    uint32_t count = 0;
    std::vector<uint32_t> kinds;     ///< [block] byKind(); one where blocks are stretches of time
    std::vector<uint32_t> domains;   ///< [block] of its last request
    std::vector<uint32_t> recorded;  ///< blocks in the order of their first requests
    RoutingView scored;
    std::vector<uint32_t> ofScored;  ///< [range of scored]
};

bool givenMixture(const CrossValidationOptions& options) {
    return !options.mixtures.empty() || options.otherKinds;
}

/// As many as there are requests, or of several that stand beside each other.
Blocks blocksOf(const RoutingView& whole, bool givenMixture) {
    Blocks made{pieces(whole), false, {}, 0, {}, {}, {}, {whole.routing, {}}, {}};
    const auto ranges = static_cast<uint32_t>(made.view.ranges.size());
    made.byTime = ranges != whole.ranges.size();
    made.count = std::min(ranges, kMostBlocks);
    const ByKind sorted = byKind(made.view, givenMixture);
    made.kinds.resize(made.count);
    made.domains.resize(made.count);
    std::vector<uint32_t> met(made.count, 0);
    const ModelShape& shape = whole.routing->shape();
    const uint64_t every = std::clamp<uint64_t>(
        whole.tokens() * shape.layers * shape.topK / kMostChoices, 1, ranges / kMostBlocks + 1);
    for (uint32_t r = 0; r < ranges; ++r) {
        made.of.push_back(static_cast<uint32_t>(uint64_t{sorted.places[r]} * made.count / ranges));
        made.kinds[made.of[r]] = made.byTime ? 0 : sorted.kinds[sorted.places[r]];
        made.domains[made.of[r]] = whole.routing->requests()[made.view.ranges[r].request].domain;
        if (met[made.of[r]]++ == 0) made.recorded.push_back(made.of[r]);
        if (r % every != 0) continue;
        made.scored.ranges.push_back(made.view.ranges[r]);
        made.ofScored.push_back(made.of[r]);
    }
    return made;
}

/// [block] its domain, of those that have any. FailedPrecondition when there are fewer than three,
/// or too few requests to tell them apart.
absl::StatusOr<std::vector<uint32_t>> domainsOf(const Blocks& blocks) {
    std::set<uint32_t> met;
    for (const TokenRange& range : blocks.view.ranges)
        met.insert(blocks.view.routing->requests()[range.request].domain);
    const std::set<uint32_t> has(blocks.domains.begin(), blocks.domains.end());
    std::vector<uint32_t> made;
    for (const uint32_t domain : blocks.domains)
        made.push_back(static_cast<uint32_t>(std::distance(met.begin(), met.find(domain))));
    if (met.size() < 3 || has.size() < met.size())
        return absl::FailedPreconditionError(absl::StrCat(
            "the recording has ", met.size(), met.size() == 1 ? " domain" : " domains",
            ", which say too little of requests of other kinds; at least three are needed, with "
            "several requests each"));
    return made;
}

/// The range over kinds of requests to come; each that was left out in turn counts alike.
Range rangeOverKinds(const std::vector<FourFigures<double>>& left,
                     double FourFigures<double>::*figure, double least) {
    const auto count = static_cast<double>(left.size());
    double mean = 0, squares = 0;
    for (const auto& kind : left) mean += kind.*figure / count;
    for (const auto& kind : left) squares += (kind.*figure - mean) * (kind.*figure - mean);
    const double wide = deviationsOf(kRangeConfidence, static_cast<uint32_t>(left.size()) - 1) *
                        std::sqrt(squares / (count - 1) * (1 + 1 / count));
    return {mean, std::max(least, mean - wide), mean + wide};
}

/// Every request of `view` under a plan, block by block.
struct Served {
    std::vector<std::vector<LayerOutcome>> outcomes;  ///< [block][layer]
    std::vector<double> tokens;                       ///< [block]
};

absl::StatusOr<Served> serve(const Blocks& blocks, const Plan& plan,
                             const HeldOutOptions& options) {
    const RoutingView& view = blocks.scored;
    auto arrival = arrive(view, plan, options);
    if (!arrival.ok()) return arrival.status();
    Served made;
    made.tokens.assign(blocks.count, 0);
    std::vector<uint32_t> blockOf;
    size_t r = 0;
    for (const TokenRange& scored : arrival->scored.ranges) {
        // A tail ends where its range does; ranges that had none are left out.
        while (view.ranges[r].firstToken + view.ranges[r].tokens !=
               scored.firstToken + scored.tokens)
            ++r;
        const uint32_t block = blocks.ofScored[r];
        blockOf.push_back(block);
        made.tokens[block] += static_cast<double>(scored.tokens);
    }
    auto outcomes = evaluateBlocks(arrival->scored, arrival->plan, arrival->homes, arrival->router,
                                   blockOf, blocks.count);
    if (!outcomes.ok()) return outcomes.status();
    made.outcomes = *std::move(outcomes);
    return made;
}

/// Figures of some of `draws`, each served anew: which replicas serve a request depends on its home
/// and on the load that others bring. `draws`: [draw][block] weight.
absl::StatusOr<FourFigures<Spread>> servedDraws(const Blocks& blocks, const Plan& plan,
                                                const std::vector<std::vector<float>>& draws,
                                                const CrossValidationOptions& options) {
    const uint64_t choices = blocks.scored.tokens() * plan.shape.layers * plan.shape.topK;
    const double part = static_cast<double>(kMostServed) / kServedDraws /
                        static_cast<double>(std::max<uint64_t>(choices, 1));
    Random random(options.seed);
    std::vector<Outcome> outcomes;
    for (uint32_t i = 0; i < kServedDraws; ++i) {
        RoutingView drawn{blocks.scored.routing, {}};
        for (size_t r = 0; r < blocks.ofScored.size(); ++r) {
            TokenRange range = blocks.scored.ranges[r];
            const double some = std::ceil(part * static_cast<double>(range.tokens));
            range.tokens =
                std::min(range.tokens, static_cast<uint64_t>(std::max<double>(some, kLeastServed)));
            for (double left = draws[i][blocks.ofScored[r]]; random.unit() < left; left -= 1)
                drawn.ranges.push_back(range);
        }
        const auto served = heldOut(drawn, plan, options.homes);
        if (absl::IsFailedPrecondition(served.status())) continue;  // nothing was drawn
        if (!served.ok()) return served.status();
        outcomes.push_back(served->outcome);
    }
    if (outcomes.empty())
        return absl::FailedPreconditionError("the recording has too little of these mixtures");
    const auto spread = [&](double Outcome::*figure) {
        Spread made;
        const auto count = static_cast<double>(outcomes.size());
        for (const Outcome& outcome : outcomes) made.mean += outcome.*figure / count;
        for (const Outcome& outcome : outcomes)
            made.deviation += (outcome.*figure - made.mean) * (outcome.*figure - made.mean) / count;
        made.deviation = std::sqrt(made.deviation);
        return made;
    };
    return FourFigures<Spread>{spread(&Outcome::sendsPerToken), spread(&Outcome::copiesPerToken),
                               spread(&Outcome::nodeLoadMaxOverMean),
                               spread(&Outcome::gpuLoadMaxOverMean)};
}

/// Excess load of places on the left-out blocks over the load that resampling the others predicts.
struct Gap {
    double sum = 0, variance = 0;
    void add(const std::vector<std::vector<float>>& in, const std::vector<std::vector<float>>& out,
             std::span<const uint32_t> kindsIn, size_t blocksOut, uint32_t folds, uint64_t seed) {
        const auto places = static_cast<uint32_t>(in[0].size() / kindsIn.size());
        // The others are folds - 1 times as many as the fold.
        const Spread told = loadSpread(in, places, drawBlocks(kindsIn, folds + 1, kGapDraws, seed));
        const Spread was = loadSpread(out, places, {std::vector<float>(blocksOut, 1.0f)});
        sum += was.mean - told.mean;
        variance += told.deviation * told.deviation;
    }
    LoadGap mean(uint32_t folds) const { return {sum / folds, std::sqrt(variance) / folds}; }
};

/// Standard deviation of a mean over tokens when blocks are resampled among neighbours in `order`.
double deviationOf(const std::vector<CrossValidation::Block>& blocks,
                   const std::vector<uint32_t>& order, const std::vector<uint32_t>& kinds,
                   double CrossValidation::Block::*what, uint64_t seed,
                   const std::vector<double>& weights) {
    double sum = 0, squares = 0;
    const auto draws = drawEquals(kinds, seed);
    const auto count = static_cast<double>(draws.size());
    for (const auto& draw : draws) {
        double value = 0, tokens = 0;
        for (size_t i = 0; i < order.size(); ++i) {
            const double drawn = draw[i] * weights[order[i]];
            value += drawn * blocks[order[i]].*what;
            tokens += drawn * blocks[order[i]].tokens;
        }
        const double mean = tokens > 0 ? value / tokens : 0;
        sum += mean / count;
        squares += mean * mean / count;
    }
    return std::sqrt(std::max(0.0, squares - sum * sum));
}

/// Neighbours are requests of a kind, or those that were recorded one after the other: whichever
/// differ more.
double deviationOf(const CrossValidation& validated, double CrossValidation::Block::*what,
                   uint64_t seed, const std::vector<double>& weights) {
    std::vector<uint32_t> inOrder(validated.blocks.size());
    std::iota(inOrder.begin(), inOrder.end(), 0);
    return std::max(deviationOf(validated.blocks, inOrder, validated.kinds, what, seed, weights),
                    deviationOf(validated.blocks, validated.recorded,
                                std::vector<uint32_t>(inOrder.size(), 0), what, seed, weights));
}

/// One for all mixtures.
Range rangeOver(const std::vector<Range>& ranges) {
    Range made = ranges[0];
    for (const Range& range : ranges) {
        made.mean = std::max(made.mean, range.mean);
        made.low = std::min(made.low, range.low);
        made.high = std::max(made.high, range.high);
    }
    return made;
}

/// [mixture][block of those that have tokens]
std::vector<std::vector<double>> blockWeights(const Blocks& blocks,
                                              const std::vector<Mixture>& mixtures) {
    std::vector<std::vector<double>> made;
    for (const Mixture& mixture : mixtures) {
        const std::vector<double> weights = weightsOf(blocks.view, mixture);
        std::vector<double> sum(blocks.count, 0), tokens(blocks.count, 0);
        for (size_t r = 0; r < weights.size(); ++r) {
            const auto has = static_cast<double>(blocks.view.ranges[r].tokens);
            sum[blocks.of[r]] += weights[r] * has;
            tokens[blocks.of[r]] += has;
        }
        std::vector<double>& of = made.emplace_back();
        for (size_t b = 0; b < sum.size(); ++b) of.push_back(sum[b] / std::max(tokens[b], 1.0));
    }
    if (made.empty()) made.emplace_back(blocks.count, 1.0);
    return made;
}

}  // namespace

absl::StatusOr<CrossValidation> crossValidate(const RoutingView& whole, const PlanMaker& make,
                                              const CrossValidationOptions& options) {
    const Blocks blocks = blocksOf(whole, givenMixture(options));
    CrossValidation made;
    made.byTime = blocks.byTime;
    made.folds = std::min(options.folds, blocks.count);
    if (made.folds < 2)
        return absl::FailedPreconditionError("there are too few tokens to leave some of them out");
    std::vector<uint32_t> foldOf = foldsOf(blocks.count, made.folds, options.seed);
    if (options.otherKinds) {
        auto domains = domainsOf(blocks);
        if (!domains.ok()) return domains.status();
        foldOf = *std::move(domains);
        made.folds = *std::max_element(foldOf.begin(), foldOf.end()) + 1;
    }
    made.blocks.resize(blocks.count);
    made.recorded = blocks.recorded;
    made.kinds = blocks.kinds;
    Gap node, gpu;
    for (uint32_t fold = 0; fold < made.folds; ++fold) {
        RoutingView others{whole.routing, {}};
        for (size_t r = 0; r < blocks.of.size(); ++r)
            if (foldOf[blocks.of[r]] != fold) others.ranges.push_back(blocks.view.ranges[r]);
        auto plan = make(others);
        if (!plan.ok()) return plan.status();
        const auto served = serve(blocks, *plan, options.homes);
        if (!served.ok()) return served.status();
        std::vector<uint32_t> in, out, kindsIn;
        for (uint32_t b = 0; b < blocks.count; ++b)
            if (served->tokens[b] > 0) (foldOf[b] == fold ? out : in).push_back(b);
        for (uint32_t b : in) kindsIn.push_back(blocks.kinds[b]);
        if (in.empty() || out.empty()) continue;
        const Scores seen = scoresOf(served->outcomes, served->tokens, in),
                     unseen = scoresOf(served->outcomes, served->tokens, out);
        const double share = 1.0 / made.folds;
        made.moreSends += (unseen.sends() - seen.sends()) * share;
        made.moreCopies += (unseen.copies() - seen.copies()) * share;
        node.add(seen.node, unseen.node, kindsIn, out.size(), made.folds, options.seed + fold);
        gpu.add(seen.gpu, unseen.gpu, kindsIn, out.size(), made.folds, options.seed + fold);
        for (size_t i = 0; i < out.size(); ++i) made.blocks[out[i]] = unseen.blocks[i];
        const auto alike = [](size_t count) {
            return std::vector<std::vector<float>>{std::vector<float>(count, 1.0f)};
        };
        const Topology& topology = plan->topology;
        made.left.push_back({unseen.sends(), unseen.copies(),
                             loadSpread(unseen.node, topology.nodes(), alike(out.size())).mean,
                             loadSpread(unseen.gpu, topology.gpus(), alike(out.size())).mean});
    }
    made.node = node.mean(made.folds);
    made.gpu = gpu.mean(made.folds);
    return made;
}

absl::StatusOr<Forecast> forecastOf(const RoutingView& whole, const Plan& plan,
                                    const CrossValidation& validated,
                                    const CrossValidationOptions& options) {
    const Blocks blocks = blocksOf(whole, givenMixture(options));
    const auto served = serve(blocks, plan, options.homes);
    if (!served.ok()) return served.status();
    std::vector<uint32_t> all;
    for (uint32_t b = 0; b < blocks.count; ++b)
        if (served->tokens[b] > 0) all.push_back(b);
    const Scores seen = scoresOf(served->outcomes, served->tokens, all);
    const auto count = static_cast<uint32_t>(all.size());
    const std::vector<std::vector<float>> everything{std::vector<float>(count, 1.0f)};
    std::vector<uint32_t> kinds;
    for (uint32_t b : all) kinds.push_back(blocks.kinds[b]);
    const bool replicas = plan.redundant() > 0;
    const bool evened = replicas && plan.origin.router == Router::kTokenAware;
    const auto draws = evened ? drawBlocks(kinds, kGroupEvened, kServedDraws, options.seed)
                              : drawEquals(kinds, options.seed);
    const double deviations = deviationsOf(kRangeConfidence, freedomOf(whole));
    const DrawsOf of = drawsOf(whole, givenMixture(options));
    const auto weights = blockWeights(blocks, options.mixtures);
    const uint32_t nodes = plan.topology.nodes(), gpus = plan.topology.gpus();
    Forecast made;
    made.blocks = count;
    made.folds = validated.folds;
    made.byTime = validated.byTime;
    made.inSample = {seen.sends(), seen.copies(), loadSpread(seen.node, nodes, everything).mean,
                     loadSpread(seen.gpu, gpus, everything).mean};
    made.tokensPerExpert = static_cast<double>(whole.tokens()) * plan.shape.topK /
                           static_cast<double>(plan.shape.experts);
    if (options.otherKinds) {
        using Figures = FourFigures<double>;
        made.expected = {rangeOverKinds(validated.left, &Figures::sends, 0),
                         rangeOverKinds(validated.left, &Figures::copies, 0),
                         rangeOverKinds(validated.left, &Figures::nodeLoad, 1),
                         rangeOverKinds(validated.left, &Figures::gpuLoad, 1)};
        made.byKind = true;
        return made;
    }
    std::vector<std::vector<std::vector<float>>> drawn;  // [mixture][draw][block of those in `all`]
    std::vector<FourFigures<Spread>> figures;            // [mixture], where there are replicas
    for (const std::vector<double>& weight : weights) {
        drawn.push_back(draws);
        std::vector<std::vector<float>> ofAll(draws.size(), std::vector<float>(blocks.count, 0));
        for (size_t i = 0; i < draws.size(); ++i)
            for (uint32_t b = 0; b < count; ++b)
                ofAll[i][all[b]] = drawn.back()[i][b] *= static_cast<float>(weight[all[b]]);
        if (!replicas) continue;
        auto served = servedDraws(blocks, plan, ofAll, options);
        if (!served.ok()) return served.status();
        figures.push_back(*served);
    }
    const auto perToken = [&](double CrossValidation::Block::*what, double inSample, double gap,
                              Spread FourFigures<Spread>::*figure) {
        std::vector<Range> ranges;
        const double recorded = meanOf(validated.blocks, what, {});
        for (size_t m = 0; m < weights.size(); ++m) {
            // It is made from more than the plans of the folds, and by that less wrong, and
            // searched for longer, which fits it the more to its own requests: these two are taken
            // to cancel each other (bench/planner, few requests of one domain, and halves).
            double mean = inSample + gap + meanOf(validated.blocks, what, weights[m]) - recorded;
            // Replicas even out the load of their own requests at the lowest price, and half of
            // what draws of them cost beyond it comes.
            if (replicas) mean += std::max(0.0, (figures[m].*figure).mean - inSample) / 2;
            const double wide = sendsTooSmall(of) * deviations *
                                deviationOf(validated, what, options.seed, weights[m]);
            ranges.push_back({mean, std::max(0.0, mean - wide), mean + wide});
        }
        return rangeOver(ranges);
    };
    const auto load = [&](const std::vector<std::vector<float>>& in, uint32_t places,
                          const LoadGap& gap, Spread FourFigures<Spread>::*figure) {
        std::vector<Range> ranges;
        for (size_t m = 0; m < weights.size(); ++m)
            ranges.push_back(
                replicas ? loadRange(figures[m].*figure, {}, of, deviations)
                         : loadRange(loadSpread(in, places, drawn[m]), gap, of, deviations));
        return rangeOver(ranges);
    };
    using Drawn = FourFigures<Spread>;
    made.expected = {perToken(&CrossValidation::Block::sends, made.inSample.sends,
                              validated.moreSends, &Drawn::sends),
                     perToken(&CrossValidation::Block::copies, made.inSample.copies,
                              validated.moreCopies, &Drawn::copies),
                     load(seen.node, nodes, validated.node, &Drawn::nodeLoad),
                     load(seen.gpu, gpus, validated.gpu, &Drawn::gpuLoad)};
    if (count < kFewRanges) {  // these say nothing of how others differ
        const auto experts = static_cast<double>(plan.shape.topK);
        const auto upTo = [](Range& range, double least, double most) {
            range = {range.mean, least, std::max(range.mean, most)};
        };
        upTo(made.expected.sends, 0, std::min(experts, nodes - 1.0));
        upTo(made.expected.copies, 0, std::min<double>(experts, gpus));
        upTo(made.expected.nodeLoad, 1, nodes);
        upTo(made.expected.gpuLoad, 1, gpus);
    }
    return made;
}

absl::StatusOr<Plan> solveForecast(const RoutingView& view, const Topology& topology,
                                   const JointOptions& joint,
                                   const CrossValidationOptions& options) {
    const auto validated = crossValidate(
        view,
        [&](const RoutingView& others) {
            JointOptions how = joint;
            how.effort *= kFoldEffort;
            how.onRound = nullptr;
            how.onSearch = nullptr;
            return solveJoint(others, topology, how);
        },
        options);
    if (!validated.ok()) return validated.status();
    JointOptions how = joint;
    how.loadGap = validated->node;
    auto plan = solveJoint(view, topology, how);
    if (!plan.ok()) return plan;
    auto forecast = forecastOf(view, *plan, *validated, options);
    if (!forecast.ok()) return forecast.status();
    plan->forecast = *forecast;
    return plan;
}

}  // namespace bulkhead::planner
