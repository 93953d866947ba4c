// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/solve/joint.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <span>

#include "absl/strings/str_cat.h"
#include "backend/planner/solve/balance.h"
#include "backend/planner/solve/expected_load.h"
#include "backend/planner/solve/held_out.h"
#include "backend/planner/solve/homes.h"
#include "backend/planner/solve/link_costs.h"
#include "backend/planner/solve/numbering.h"

namespace bulkhead::planner {

namespace {

constexpr uint32_t kSignatureWidth = 2048, kNarrowSignature = 512;
constexpr double kHotFirst = 0.3, kHotLater = 0.1;  ///< x topK / units: what one swap is worth
constexpr double kColdRatio = 0.01;
constexpr double kProposalsPerUnit = 700;
/// A search that cannot propose every swap so many times finds more by looking for the best one of
/// each unit at once; and every search ends so.
constexpr double kProposalsPerPair = 8;
constexpr uint32_t kSweeps = 20;
constexpr uint32_t kRounds = 5, kRoundsOfMany = 3;
/// Short rounds more, as long as the load that the forecast will say is above the cap.
constexpr uint32_t kMostRepairs = 6;
constexpr double kRepairLength = 0.5, kHotRepair = 0.03, kCapTolerance = 0.001;
constexpr double kAboveCap = 0.01;      ///< of the upper end: not worth a dearer search
constexpr double kMostAboveCap = 0.15;  ///< of a single layer, when others stay below
/// With replicas the router evens out what new requests bring (TokenRouter): it gets part of the
/// load above the mean, and on each node some that can be served elsewhere.
constexpr double kTighter = 0.5, kFree = 0.12;
constexpr uint32_t kScenarios = 3 * kGroupOfEquals, kScenariosOfMixture = kGroupOfEquals;
/// A search varies the parts of so many kinds at most by so many deviations (sway).
constexpr size_t kMostSwayed = 6;
constexpr double kSway = 2;
/// Price of load, in that of the first searches, at which a cap is tried that they did not keep
/// where the mixture of kinds is luck.
constexpr double kDearer = 4, kMostForCap = 0.15;  ///< and what of the objective it may cost
/// Either makes a plan for its own requests alone where they are fewer (freedomOf).
constexpr uint32_t kLeastFreedom = 8;
/// Found on ESFT's tasks, each left out of the others (bench/planner): of requests alone, the load
/// above the mean that each may bring to a node, as a part of what is allowed of all, and the price
/// of more, in those of a plan for what was recorded, for one domain.
constexpr uint32_t kMostAlone = 80;
constexpr double kTighterAlone = 2.0 / 3, kPriceOfOneDomain = 72;
constexpr uint32_t kFewRequests = 600;  ///< so many can afford several groupings
/// Descent alone ranks the starting groupings, at a hundredth of the cost of annealing.
constexpr uint32_t kStartsOfDescent = 12, kStarts = 3;
constexpr double kLongFirst = 2;  ///< the first annealing, from the best of them

uint32_t domainsIn(const RoutingView& view) {
    std::set<uint32_t> met;
    for (const TokenRange& range : view.ranges)
        met.insert(view.routing->requests()[range.request].domain);
    return static_cast<uint32_t>(std::max<size_t>(met.size(), 1));
}

/// The mixture of domains is no matter of luck.
bool givenMixture(const JointOptions& options) {
    return !options.mixtures.empty() || options.otherKinds;
}

class JointSearch {
  public:
    /// `number`: of several, each of which begins elsewhere; where requests come by lot, all but
    /// the first vary their mixture. `price`: of load above the cap, in the usual one.
    JointSearch(const RoutingView& view, const Topology& topology, const JointOptions& options,
                std::vector<uint32_t> firstSlot, uint32_t number, double price = 1)
        : view_(view),
          topology_(topology),
          options_(options),
          firstSlot_(std::move(firstSlot)),
          random_(options.seed + number * 0x9E3779B97F4A7C15ull),
          nodes_(topology.nodes()),
          linkCosts_(unevenLinkCosts(topology)) {
        const ModelShape& shape = view.routing->shape();
        perUnit_ = options.keepGroups ? shape.experts / shape.routerGroups : 1;
        units_ = shape.experts / perUnit_;
        const RoutingView tails = options.prefix > 0 ? tailOf(view, options.prefix) : view;
        scored_ = tails.ranges.empty() ? view : tails;
        sample_ = sampleOf(scored_, options.sampleTokens);
        counts_ = countsOf(scored_);
        givenMixture_ = givenMixture(options);
        sways_ = number > 0 && drawsOf(view, givenMixture_) == DrawsOf::kLot;
        ranges_ = byKind(scored_, givenMixture_);
        for (const Mixture& mixture : options.mixtures)
            weights_.push_back(weightsOf(scored_, mixture));
        if (weights_.empty()) weights_.emplace_back(scored_.ranges.size(), 1.0);
        goal_.sends = options.sends;
        goal_.copies = options.copies;
        goal_.loadCap = options.loadCap;
        goal_.loadWeight = price * (options.sends + options.copies);
        if (options.otherKinds) {
            goal_.loadCap = 1 + kTighterAlone * (options.loadCap - 1);
            goal_.loadWeight *= kPriceOfOneDomain / domainsIn(view);
        }
        if (options.redundant > 0) {
            goal_.loadCap = 1 + kTighter * (options.loadCap - 1);
            goal_.aloneCap = goal_.loadCap - kFree;
        }
    }

    /// Some searches are worth more than one long one where each finds another plan.
    static uint32_t searches(const RoutingView& view, const JointOptions& options) {
        if (view.ranges.size() > kFewRequests || options.redundant > 0 || options.otherKinds)
            return 1;
        return std::max(1u, static_cast<uint32_t>(options.effort / kSearchEffort));
    }

    Plan solve() {
        start();
        const double proposals = kProposalsPerUnit * units_ * options_.effort;
        const uint32_t rounds = fewRequests() ? kRounds : kRoundsOfMany;
        for (uint32_t round = 1; goOn() && round < rounds; ++round) {
            if (calibrates()) calibrate();
            const bool first = descendsFirst() && round == 1;  // that is annealed
            oneRound(first ? kLongFirst * proposals : proposals, first ? kHotFirst : kHotLater,
                     round);
        }
        if (calibrates())
            for (uint32_t round = rounds; goOn() && round < rounds + kMostRepairs; ++round) {
                if (calibrate() <= kCapTolerance || goal_.loadCap <= 1) break;
                oneRound(proposals * kRepairLength, kHotRepair, round);
            }
        nameNodes();
        return plan();
    }

    /// Excess of the expected load's upper end over the cap; 0 for plans that are not calibrated.
    double above() { return calibrates() ? std::max(0.0, calibrate()) : 0; }

  private:
    /// Several groupings where they are cheap; the one that the first round makes most of stays.
    void start() {
        const bool few = fewRequests(), descends = descendsFirst();
        const Signatures signatures =
            signaturesOf(sample_, few ? kSignatureWidth : kNarrowSignature);
        const uint32_t starts = descends ? kStartsOfDescent : few ? kStarts : 1;
        const double proposals = kProposalsPerUnit * units_ * options_.effort;
        prepare();
        double best = INFINITY;
        std::vector<uint16_t> bestHomes;
        std::vector<NodePlacement> bestPlacement;
        for (uint32_t i = 0; i < starts && (i == 0 || goOn()); ++i) {
            homes_ = groupRequests(signatures.rows, signatures.width, sample_.rangeTokens, nodes_,
                                   options_.homeCap, few ? 2 : 1, random_);
            placement_.clear();
            for (LayerProblem& problem : problems_) {
                setHomes(problem);
                placement_.push_back(routed(firstUnits(problem), problem));
            }
            double value = anneal(descends ? 0 : proposals, kHotFirst);
            if (descends) {
                regroup();
                for (LayerProblem& problem : problems_) setHomes(problem);
                value = anneal(0, kHotFirst);
            }
            if (value >= best) continue;
            best = value;
            bestHomes = homes_;
            bestPlacement = placement_;
        }
        homes_ = std::move(bestHomes);
        placement_ = std::move(bestPlacement);
        if (options_.onRound) options_.onRound(0, best);
        nameNodes();
        if (options_.weighLinks)
            for (LayerProblem& problem : problems_) problem.sendCost = sendCosts(linkCosts_);
        regroup();
    }

    /// Groups of experts and requests go to the nodes where what they exchange has the shortest
    /// way. Where all nodes are equally far apart they stay.
    void nameNodes() {
        if (linkCosts_.empty()) return;
        const std::vector<uint32_t> place =
            nearPlaces(trafficOf(sample_, routes(), homes_), linkCosts_, nodes_);
        for (uint16_t& home : homes_) home = static_cast<uint16_t>(place[home]);
        for (NodePlacement& p : placement_) {
            NodePlacement named = p;
            const bool byHome = p.route.size() > units_;
            for (uint32_t n = 0; n < nodes_; ++n) named.unitsOfNode[place[n]] = p.unitsOfNode[n];
            for (size_t i = 0; i < p.route.size(); ++i)
                named.route[(byHome ? place[i / units_] * units_ : 0) + i % units_] =
                    static_cast<uint8_t>(place[p.route[i]]);
            p = std::move(named);
        }
    }

    bool goOn() const { return !options_.goOn || options_.goOn(); }

    /// No draw of what was recorded tells how full another kind makes a node.
    bool calibrates() const { return options_.redundant == 0 && !options_.otherKinds; }

    /// Descent does not know replicas.
    bool descendsFirst() const { return fewRequests() && options_.redundant == 0; }

    bool fewRequests() const { return sample_.rangeTokens.size() <= kFewRequests; }

    void oneRound(double proposals, double hot, uint32_t round) {
        for (LayerProblem& problem : problems_) setHomes(problem);
        const double value = anneal(proposals, hot);
        regroup();
        if (options_.onRound) options_.onRound(round, value);
    }

    void setHomes(LayerProblem& problem) const {
        for (uint32_t t = 0; t < sample_.tokens(); ++t) problem.home[t] = homes_[sample_.range[t]];
    }

    void prepare() {
        problems_.resize(counts_.layers());
        for (uint32_t layer = 0; layer < counts_.layers(); ++layer) {
            LayerProblem& p = problems_[layer];
            p.nodes = nodes_;
            p.units = units_;
            p.perToken = sample_.topK;
            p.ids = sample_.ids[layer];
            if (perUnit_ > 1) toUnits(p);
            p.home.resize(sample_.tokens());
            p.load.assign(units_, 0);
            for (uint32_t e = 0; e < counts_.experts(); ++e)
                p.load[e / perUnit_] += static_cast<double>(counts_.at(layer, e));
            floor_.push_back(options_.redundant > 0 ? 1 : leastNodeLoad(p.load, nodes_));
        }
        drawScenarios();
    }

    /// Loads that new requests may bring: requests drawn anew, as expectedNodeLoad() does. A search
    /// that knows them keeps apart what is busy at the same time. The mixture is varied kind by
    /// kind: so few draws by lot would make a plan that holds for them alone.
    void drawScenarios() {
        if (options_.redundant > 0 || (!fewRequests() && !options_.otherKinds)) return;
        std::vector<uint32_t> kinds;
        const std::vector<uint32_t> block = blockOfTokens(sample_, byKind(scored_, true), kinds);
        const auto mixtures = static_cast<uint32_t>(weights_.size());
        const uint32_t drawn = mixtures > 1          ? mixtures * kScenariosOfMixture
                               : options_.otherKinds ? kGroupOfEquals
                                                     : kScenarios;
        auto draws = drawBlocks(kinds, kGroupOfEquals, drawn, options_.seed ^ 0x7363656Eull);
        if (sways_ && freedomOf(view_) >= kLeastFreedom) sway(draws, kinds);
        const auto all = static_cast<uint32_t>(kinds.size());
        const uint32_t alone = options_.otherKinds ? std::min(all, kMostAlone) : 0;
        for (uint32_t i = 0; i < alone; ++i)
            draws.emplace_back(all, 0.0f)[size_t{i} * all / alone] = 1;
        const auto scenarios = static_cast<uint32_t>(draws.size());
        std::vector<double> sampled(sample_.rangeTokens.size(), 0);
        for (uint32_t range : sample_.range) sampled[range] += 1;
        const auto blocks = static_cast<uint32_t>(kinds.size());
        std::vector<float> used;  // mixtures x blocks x units: tokens
        for (size_t layer = 0; layer < problems_.size(); ++layer) {
            LayerProblem& p = problems_[layer];
            used.assign(size_t{mixtures} * blocks * units_, 0);
            for (uint32_t t = 0; t < sample_.tokens(); ++t)
                for (uint32_t m = 0; m < mixtures; ++m) {
                    const uint32_t range = sample_.range[t];
                    const auto tokens = static_cast<float>(sample_.rangeTokens[range] /
                                                           sampled[range] * weights_[m][range]);
                    float* of = &used[(size_t{m} * blocks + block[t]) * units_];
                    for (uint32_t i = 0; i < p.perToken; ++i)
                        if (const uint16_t unit = p.ids[size_t{t} * p.perToken + i];
                            unit != p.kNoUnit)
                            of[unit] += tokens;
                }
            p.scenarios.assign(size_t{scenarios} * units_, 0);
            for (uint32_t s = 0; s < scenarios; ++s) {
                const uint32_t mixture = mixtures > 1 ? s / kScenariosOfMixture : 0;
                for (uint32_t b = 0; b < blocks; ++b) {
                    const float* of = &used[(size_t{mixture} * blocks + b) * units_];
                    for (uint32_t unit = 0; draws[s][b] > 0 && unit < units_; ++unit)
                        p.scenarios[s * units_ + unit] += draws[s][b] * of[unit];
                }
            }
            floor_[layer] = options_.otherKinds ? 1 : 0;
            for (uint32_t s = 0; s < scenarios; ++s) {
                const std::span<float> load(&p.scenarios[size_t{s} * units_], units_);
                const float sum = std::accumulate(load.begin(), load.end(), 0.0f);
                for (float& unit : load) unit *= sum > 0 ? static_cast<float>(nodes_) / sum : 0;
                if (!options_.otherKinds)
                    floor_[layer] += leastNodeLoad({load.begin(), load.end()}, nodes_) / scenarios;
            }
        }
    }

    /// All but the first of `draws` get more or fewer of one kind, each kind in turn: as many as
    /// the mixture of as many other requests may be off by.
    static void sway(std::vector<std::vector<float>>& draws, const std::vector<uint32_t>& kinds) {
        std::map<uint32_t, double> blocks;
        for (uint32_t kind : kinds) blocks[kind] += 1;
        if (blocks.size() < 2 || blocks.size() > kMostSwayed) return;
        std::vector<std::vector<float>> made{draws[0]};
        const auto count = static_cast<double>(kinds.size());
        for (const auto& [kind, of] : blocks)
            for (double side : {-1.0, 1.0}) {
                const double part = of / count;
                const double off = kSway * std::sqrt(2 * part * (1 - part) / count);
                const double other = std::clamp(part + side * off, 0.01, 0.99);
                made.push_back(draws[made.size() % draws.size()]);
                for (size_t b = 0; b < kinds.size(); ++b)
                    made.back()[b] *= static_cast<float>(
                        kinds[b] == kind ? other / part : (1 - other) / (1 - part));
            }
        while (made.size() < draws.size()) made.push_back(draws[made.size()]);
        draws = std::move(made);
    }

    void toUnits(LayerProblem& p) const {
        for (size_t t = 0; t < p.ids.size(); t += p.perToken)
            for (uint32_t i = 0; i < p.perToken; ++i) {
                uint16_t& id = p.ids[t + i];
                id = static_cast<uint16_t>(id / perUnit_);
                for (uint32_t j = 0; j < i; ++j)
                    if (p.ids[t + j] == id) {
                        id = LayerProblem::kNoUnit;
                        break;
                    }
            }
    }

    /// Every unit where its tokens are most at home, the heaviest choosing first; what slots are
    /// left go to whom they serve most.
    std::vector<std::vector<uint16_t>> firstUnits(const LayerProblem& p) const {
        const uint32_t slots =
            perUnit_ > 1 || options_.redundant == 0 ? units_ / nodes_ : firstSlot_.back() / nodes_;
        std::vector<double> use(size_t{nodes_} * units_, 0);
        for (uint32_t t = 0; t < p.tokens(); ++t)
            for (uint32_t i = 0; i < p.perToken; ++i)
                if (const uint16_t u = p.ids[size_t{t} * p.perToken + i]; u != p.kNoUnit)
                    use[p.home[t] * units_ + u] += 1;
        std::vector<uint32_t> order(units_);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](uint32_t a, uint32_t b) { return p.load[a] > p.load[b]; });
        const double mean = std::accumulate(p.load.begin(), p.load.end(), 0.0) / nodes_;
        std::vector<std::vector<uint16_t>> at(nodes_);
        std::vector<double> load(nodes_, 0);
        for (uint32_t u : order) {
            int best = -1;
            const auto score = [&](uint32_t n) {
                return use[n * units_ + u] - (load[n] > mean ? 1e9 * (load[n] - mean + 1) : 0);
            };
            for (uint32_t n = 0; n < nodes_; ++n)
                if (at[n].size() < slots &&
                    (best < 0 || score(n) > score(static_cast<uint32_t>(best))))
                    best = static_cast<int>(n);
            at[static_cast<size_t>(best)].push_back(static_cast<uint16_t>(u));
            load[static_cast<size_t>(best)] += p.load[u];
        }
        for (uint32_t n = 0; n < nodes_; ++n) {
            std::vector<uint8_t> held(units_, 0);
            for (uint16_t u : at[n]) held[u] = 1;
            std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
                return use[n * units_ + a] > use[n * units_ + b];
            });
            for (uint32_t i = 0; at[n].size() < slots && i < units_; ++i)
                if (!held[order[i]]) at[n].push_back(static_cast<uint16_t>(order[i]));
        }
        return at;
    }

    double anneal(double proposals, double hot) {
        double sum = 0;
        // A short search has no time to cool down from much heat.
        const double worth = hot * std::min(1.0, 2 * options_.effort) * sample_.topK / units_ *
                             (goal_.sends + goal_.copies);
        const uint32_t pairs = units_ * (units_ - units_ / nodes_) / 2;
        const bool annealed = options_.redundant > 0 || proposals >= kProposalsPerPair * pairs;
        for (size_t layer = 0; layer < problems_.size(); ++layer) {
            LayerGoal goal = goal_;
            goal.loadCap = std::max(goal.loadCap, floor_[layer]);
            LayerSearch search(problems_[layer], goal, std::move(placement_[layer]));
            if (annealed && goOn())
                search.anneal(static_cast<uint64_t>(proposals), worth, worth * kColdRatio, random_);
            search.descend(kSweeps, random_);
            sum += search.value();
            placement_[layer] = search.placement();
        }
        return sum / static_cast<double>(problems_.size());
    }

    NodeRoutes routes() const {
        NodeRoutes made{nodes_, counts_.experts(), {}};
        for (const NodePlacement& p : placement_) {
            std::vector<uint16_t> route;
            for (size_t view = 0; view < p.route.size() / units_; ++view)
                for (uint32_t e = 0; e < counts_.experts(); ++e)
                    route.push_back(p.route[view * units_ + e / perUnit_]);
            made.layers.push_back(std::move(route));
        }
        return made;
    }

    void regroup() {
        homes_ =
            chooseHomes(sample_, routes(), sample_.rangeTokens, goal_.sends, goal_.copies,
                        options_.homeCap, options_.weighLinks ? linkCosts_ : std::vector<double>());
    }

    /// A layer may be fuller than wished for where others are less full: what counts is the mean
    /// over layers, as a step waits for the fullest node of each in turn. Layers that no placement
    /// can keep under the cap are not taken out on the others. How far the upper end is above the
    /// cap that was asked for.
    double calibrate() {
        std::vector<uint32_t> layers;
        for (uint32_t layer = 0; layer < floor_.size(); ++layer)
            if (floor_[layer] <= options_.loadCap) layers.push_back(layer);
        if (layers.empty()) return 0;
        const double deviations = deviationsOf(options_.confidence, freedomOf(view_));
        const DrawsOf of = drawsOf(view_, givenMixture_);
        double upper = 0;
        for (const std::vector<double>& weights : weights_) {
            const Spread expected = expectedNodeLoad(sample_, routes(), homes_, ranges_, layers,
                                                     options_.seed, weights);
            upper = std::max(upper, loadRange(expected, options_.loadGap, of, deviations).high);
        }
        const double over = upper - options_.loadCap;
        goal_.loadCap = std::clamp(goal_.loadCap - over, 1.0, options_.loadCap + kMostAboveCap);
        return over;
    }

    Plan plan() const {
        Plan made;
        made.shape = view_.routing->shape();
        made.topology = topology_;
        made.firstSlot = firstSlot_;
        for (uint32_t layer = 0; layer < counts_.layers(); ++layer) {
            std::vector<double> load(counts_.experts());
            for (uint32_t e = 0; e < load.size(); ++e)
                load[e] = static_cast<double>(counts_.at(layer, e));
            made.layers.push_back(
                layOut(expanded(placement_[layer], load), load, topology_, firstSlot_));
        }
        made.homes = homesByDomain(scored_, homes_, sample_.rangeTokens, nodes_);
        made.origin.algorithm = "joint";
        made.origin.seed = options_.seed;
        made.origin.tokens = view_.tokens();
        made.origin.loadCap = options_.loadCap;
        made.origin.homeCap = options_.homeCap;
        made.origin.prefix = options_.prefix;
        made.origin.router = options_.router;
        return made;
    }

    /// Groups back to their experts; slots of a node that are left hold its heaviest ones again.
    NodePlacement expanded(const NodePlacement& p, const std::vector<double>& load) const {
        if (perUnit_ == 1 && p.unitsOfNode[0].size() == firstSlot_.back() / nodes_) return p;
        NodePlacement made{std::vector<std::vector<uint16_t>>(nodes_), {}};
        for (uint32_t e = 0; e < counts_.experts(); ++e)
            made.route.push_back(p.route[e / perUnit_]);
        for (uint32_t n = 0; n < nodes_; ++n) {
            std::vector<uint16_t>& at = made.unitsOfNode[n];
            for (uint16_t g : p.unitsOfNode[n])
                for (uint32_t i = 0; i < perUnit_; ++i)
                    at.push_back(static_cast<uint16_t>(g * perUnit_ + i));
            std::vector<uint32_t> count(counts_.experts(), 1);
            const size_t own = at.size();
            while (at.size() < firstSlot_.back() / nodes_) {
                const uint16_t next = *std::max_element(
                    at.begin(), at.begin() + static_cast<ptrdiff_t>(own),
                    [&](uint16_t a, uint16_t b) {
                        const auto weight = [&](uint16_t e) {
                            return count[e] < topology_.gpusPerNode() ? load[e] / count[e] : -1.0;
                        };
                        return weight(a) < weight(b);
                    });
                ++count[next];
                at.push_back(next);
            }
        }
        return made;
    }

    const RoutingView& view_;
    const Topology& topology_;
    const JointOptions& options_;
    std::vector<uint32_t> firstSlot_;
    Random random_;
    uint32_t nodes_, perUnit_ = 1, units_ = 0;
    std::vector<double> linkCosts_;  ///< empty: all alike
    RoutingView scored_;
    TokenSample sample_;
    bool givenMixture_ = false, sways_ = false;
    ByKind ranges_;                             ///< of scored_
    std::vector<std::vector<double>> weights_;  ///< [mixture][range of scored_]
    Counts counts_;
    LayerGoal goal_;
    std::vector<LayerProblem> problems_;
    std::vector<NodePlacement> placement_;
    std::vector<double> floor_;    ///< [layer] node load max/mean that no placement can be below
    std::vector<uint16_t> homes_;  ///< [range]
};

/// The sends of a plan on its own requests, and a price for what its fullest node has above the
/// cap.
double cost(const RoutingView& view, const Plan& plan, const JointOptions& options) {
    HeldOutOptions homes;
    if (options.prefix > 0) homes.prefix = options.prefix;
    homes.homeCap = options.homeCap;
    homes.sends = options.sends;
    homes.copies = options.copies;
    const auto held = heldOut(view, plan, homes);
    if (!held.ok()) return INFINITY;
    const Outcome& it = held->outcome;
    return options.sends * it.sendsPerToken + options.copies * it.copiesPerToken +
           (options.sends + options.copies) * plan.shape.topK *
               std::max(0.0, it.nodeLoadMaxOverMean - options.loadCap);
}

}  // namespace

LayerPlan layOut(const NodePlacement& placement, const std::vector<double>& load,
                 const Topology& topology, const std::vector<uint32_t>& firstSlot) {
    const uint32_t nodes = topology.nodes(), gpus = topology.gpusPerNode();
    const auto experts = static_cast<uint32_t>(load.size());
    const bool byHome = placement.route.size() > experts;
    LayerPlan made;
    std::vector<uint32_t> nodeOfSlot;
    for (uint32_t n = 0; n < nodes; ++n) {
        const std::vector<uint16_t>& units = placement.unitsOfNode[n];
        std::vector<double> weight(units.size());
        for (size_t i = 0; i < units.size(); ++i) {
            const double twins =
                static_cast<double>(std::count(units.begin(), units.end(), units[i]));
            double homes = 0;
            for (uint32_t h = 0; h < (byHome ? nodes : 1); ++h)
                homes += placement.route[h * (byHome ? experts : 0) + units[i]] == n;
            weight[i] = load[units[i]] * homes / (byHome ? nodes : 1) / twins;
        }
        std::vector<uint32_t> capacity;
        for (uint32_t g = n * gpus; g < (n + 1) * gpus; ++g)
            capacity.push_back(firstSlot[g + 1] - firstSlot[g]);
        const std::vector<uint32_t> gpuOf = packEvenly(weight, capacity);
        for (uint32_t g = 0; g < gpus; ++g)
            for (size_t i = 0; i < units.size(); ++i)
                if (gpuOf[i] == g) made.expertOfSlot.push_back(units[i]);
        nodeOfSlot.resize(made.expertOfSlot.size(), n);
    }
    made.dispatch = dispatchFor({placement.route.begin(), placement.route.end()}, made.expertOfSlot,
                                nodeOfSlot, experts, nodes);
    return made;
}

NodePlacement nodePlacementOf(const Plan& plan, uint32_t layer,
                              const std::vector<uint16_t>& route) {
    const uint32_t nodes = plan.topology.nodes(), perNode = plan.slots() / nodes;
    NodePlacement made{std::vector<std::vector<uint16_t>>(nodes), {}};
    made.route.assign(route.begin(), route.end());
    for (uint32_t s = 0; s < plan.slots(); ++s)
        made.unitsOfNode[s / perNode].push_back(
            static_cast<uint16_t>(plan.layers[layer].expertOfSlot[s]));
    for (std::vector<uint16_t>& at : made.unitsOfNode) {
        std::sort(at.begin(), at.end());
        at.erase(std::unique(at.begin(), at.end()), at.end());
    }
    return made;
}

absl::StatusOr<Plan> solveJoint(const RoutingView& view, const Topology& topology,
                                const JointOptions& options) {
    if (auto status = checkTopology(topology); !status.ok()) return status;
    const ModelShape& shape = view.routing->shape();
    if (view.tokens() == 0) return absl::InvalidArgumentError("there is no token to plan from");
    if (topology.nodes() > 255)
        return absl::InvalidArgumentError("a joint plan is made for at most 255 nodes");
    if (options.otherKinds && options.redundant > 0)
        return absl::InvalidArgumentError(
            "a plan for kinds of requests that were not recorded has no redundant experts yet");
    if (options.keepGroups && shape.routerGroups % topology.nodes() != 0)
        return absl::InvalidArgumentError(
            absl::StrCat(shape.routerGroups, " router groups do not divide over ", topology.nodes(),
                         " nodes; plan without keeping groups together"));
    auto firstSlot = shareSlots(topology, shape.experts, options.redundant);
    if (!firstSlot.ok()) return firstSlot.status();
    if (firstSlot->back() / topology.nodes() > shape.experts)
        return absl::InvalidArgumentError(
            absl::StrCat("a node would have more slots than the ", shape.experts, " experts"));
    const auto searched = [&](uint32_t redundant) {
        JointOptions how = options;
        how.redundant = redundant;
        const uint32_t count = JointSearch::searches(view, how);
        how.effort /= count;
        const auto goOn = [&] { return !options.goOn || options.goOn(); };
        Plan best;
        double least = INFINITY, above = 0;
        for (uint32_t i = 0; i < count && (i == 0 || goOn()); ++i) {
            JointSearch search(view, topology, how, *firstSlot, i);
            Plan plan = search.solve();
            const double over = search.above();
            // A send is worth about as much as load that is higher by one mean.
            const double value =
                count > 1 ? cost(view, plan, how) + (how.sends + how.copies) * over : 0;
            if (count > 1 && options.onSearch) options.onSearch(value);
            if (value >= least && i > 0) continue;
            least = value;
            above = over;
            best = std::move(plan);
        }
        const bool byLot = drawsOf(view, givenMixture(options)) == DrawsOf::kLot;
        if (above <= kAboveCap || !byLot || freedomOf(view) < kLeastFreedom || !goOn()) return best;
        JointSearch dearer(view, topology, how, *firstSlot, count, kDearer);
        Plan plan = dearer.solve();
        const bool pays = dearer.above() <= kAboveCap &&
                          cost(view, plan, how) <= (1 + kMostForCap) * cost(view, best, how);
        return pays ? plan : best;
    };
    const bool choice = options.redundant > 0 && options.router != Router::kTokenAware &&
                        !options.keepGroups && shape.experts % topology.nodes() == 0;
    if (!choice) return searched(options.redundant);
    // A router may choose the replica on another node, which the search did not count.
    Plan without = searched(0);
    Plan with = searched(options.redundant);
    return cost(view, with, options) < cost(view, without, options) ? with : without;
}

}  // namespace bulkhead::planner
