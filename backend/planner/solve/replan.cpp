// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/solve/replan.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "backend/planner/plan/node_routes.h"
#include "backend/planner/solve/homes.h"
#include "backend/planner/solve/joint.h"
#include "backend/planner/solve/link_costs.h"
#include "backend/planner/solve/numbering.h"

namespace bulkhead::planner {

namespace {

constexpr uint32_t kRegroupedWidth = 2048;  ///< of a request, to group by

/// Slots of one node: experts that stay keep theirs, those that come take what is freed, the
/// heaviest first where the GPU has least. Twins of an expert on a node stay twins.
void fillNode(std::vector<uint32_t>& slots, const std::vector<uint16_t>& wanted,
              const std::vector<double>& load, uint32_t first, uint32_t count,
              const std::vector<uint32_t>& gpuOfSlot) {
    std::vector<uint32_t> arriving(wanted.begin(), wanted.end()), freed;
    for (uint32_t s = first; s < first + count; ++s) {
        const bool stays = std::find(wanted.begin(), wanted.end(), slots[s]) != wanted.end();
        if (!stays) freed.push_back(s);
        std::erase(arriving, slots[s]);
    }
    std::sort(arriving.begin(), arriving.end(),
              [&](uint32_t a, uint32_t b) { return load[a] > load[b]; });
    const auto gpuLoad = [&](uint32_t slot) {
        double sum = 0;
        for (uint32_t s = first; s < first + count; ++s)
            if (gpuOfSlot[s] == gpuOfSlot[slot] &&
                std::find(freed.begin(), freed.end(), s) == freed.end())
                sum += load[slots[s]];
        return sum;
    };
    for (uint32_t expert : arriving) {
        const auto least =
            std::min_element(freed.begin(), freed.end(),
                             [&](uint32_t a, uint32_t b) { return gpuLoad(a) < gpuLoad(b); });
        slots[*least] = expert;
        freed.erase(least);
    }
}

class Replanning {
  public:
    Replanning(const Plan& current, const RoutingView& view, const ReplanOptions& options)
        : current_(current),
          view_(view),
          options_(options),
          nodes_(current.topology.nodes()),
          perNode_(current.slots() / nodes_),
          random_(options.seed),
          gpuOfSlot_(gpuOfSlots(current.firstSlot)),
          routes_(routesOf(current)),
          sample_(sampleOf(view, options.sampleTokens)),
          linkCosts_(options.weighLinks ? unevenLinkCosts(current.topology)
                                        : std::vector<double>()) {
        goal_.sends = options.sends;
        goal_.copies = options.copies;
        goal_.loadCap = options.loadCap;
        goal_.loadWeight =
            options.loadWeight > 0 ? options.loadWeight : options.sends + options.copies;
        goal_.move = options.pricePerMove;
    }

    Replan run() {
        const Round first = searched(homesFor(routes_));
        Round best = settled(first);
        if (options_.rounds > 1)
            if (Round grouped = settled(searched(groupedHomes())); grouped.after < best.after)
                best = std::move(grouped);
        Replan made;
        made.plan = current_;
        made.before = first.before / current_.shape.layers;
        made.after = best.after / current_.shape.layers;
        const double gain = made.before > 0 ? (made.before - made.after) / made.before * 100 : 0;
        made.changes =
            best.layersChanged() > 0 && made.before - made.after > options_.leastGain * made.before;
        if (!made.changes) {
            made.after = made.before;
            made.reason = absl::StrFormat(
                "kept: moving experts would save %.1f%% on these very requests, less than the "
                "%.1f%% asked for",
                gain, options_.leastGain * 100);
            if (!domainsKnown()) {
                settle(made, first.homes);
                made.reason += "; homes are chosen for the domains of this recording";
            }
            return made;
        }
        for (uint32_t layer = 0; layer < current_.shape.layers; ++layer)
            if (best.placed[layer]) lay(layer, *best.placed[layer], made.plan.layers[layer]);
        made.layersChanged = best.layersChanged();
        made.reason = absl::StrFormat(
            "saves %.1f%% of what it minimises on the requests it was made from, in %d of %d "
            "layers",
            gain, made.layersChanged, current_.shape.layers);
        settle(made, best.homes);
        return made;
    }

  private:
    /// Experts for given homes.
    struct Round {
        std::vector<uint16_t> homes;                       ///< [range]
        std::vector<std::optional<NodePlacement>> placed;  ///< [layer]; none: it stays as it is
        double before = 0, after = 0;                      ///< sums over layers

        uint32_t layersChanged() const {
            return static_cast<uint32_t>(std::count_if(
                placed.begin(), placed.end(), [](const auto& p) { return p.has_value(); }));
        }
    };

    std::vector<uint16_t> homesFor(const NodeRoutes& routes) const {
        return chooseHomes(sample_, routes, sample_.rangeTokens, options_.sends, options_.copies,
                           options_.homeCap, linkCosts_);
    }

    /// Homes for the experts and experts for the homes, as long as that gains.
    Round settled(Round best) {
        for (uint32_t round = 1; round < options_.rounds; ++round) {
            Round next = searched(homesFor(routesAfter(best)));
            if (next.after >= best.after) break;
            best = std::move(next);
        }
        return best;
    }

    /// Requests that use the same experts together, wherever those are now; each group on the node
    /// that costs it least.
    std::vector<uint16_t> groupedHomes() {
        const Signatures signatures = signaturesOf(sample_, kRegroupedWidth);
        std::vector<uint16_t> homes =
            groupRequests(signatures.rows, signatures.width, sample_.rangeTokens, nodes_,
                          options_.homeCap, 2, random_);
        const HomeCosts costs = homeCosts(sample_, routes_, linkCosts_);
        std::vector<double> ofGroup(size_t{nodes_} * nodes_, 0);
        for (size_t i = 0; i < costs.sends.size(); ++i)
            ofGroup[homes[i / nodes_] * nodes_ + i % nodes_] +=
                options_.sends * costs.sends[i] + options_.copies * costs.copies[i];
        const std::vector<uint32_t> node = assignColumns(ofGroup, nodes_);
        for (uint16_t& home : homes) home = static_cast<uint16_t>(node[home]);
        return homes;
    }

    Round searched(std::vector<uint16_t> homes) {
        Round round;
        round.homes = std::move(homes);
        for (uint32_t layer = 0; layer < current_.shape.layers; ++layer) searchLayer(layer, round);
        return round;
    }

    void searchLayer(uint32_t layer, Round& round) {
        const LayerProblem problem = problemOf(layer, round.homes);
        LayerSearch search(problem, goal_, nodePlacementOf(current_, layer, routes_.layers[layer]));
        const double before = search.value();
        if (current_.redundant() > 0)
            search.anneal(static_cast<uint64_t>(options_.proposalsPerUnit * problem.units), 0, 0,
                          random_);
        else
            search.descend(options_.sweeps, random_);
        const bool pays = before - search.value() > options_.leastLayerGain * before;
        round.before += before;
        round.after += pays ? search.value() : before;
        round.placed.push_back(pays ? std::optional(search.placement()) : std::nullopt);
    }

    LayerProblem problemOf(uint32_t layer, const std::vector<uint16_t>& homes) const {
        LayerProblem problem;
        problem.nodes = nodes_;
        problem.units = sample_.experts;
        problem.perToken = sample_.topK;
        problem.sendCost = sendCosts(linkCosts_);
        problem.ids = sample_.ids[layer];
        problem.load.assign(problem.units, 0);
        for (uint32_t t = 0; t < sample_.tokens(); ++t)
            problem.home.push_back(homes[sample_.range[t]]);
        for (uint16_t id : problem.ids) problem.load[id] += 1;
        return problem;
    }

    NodeRoutes routesAfter(const Round& round) const {
        NodeRoutes routes = routes_;
        for (size_t layer = 0; layer < round.placed.size(); ++layer)
            if (const auto& placed = round.placed[layer])
                routes.layers[layer].assign(placed->route.begin(), placed->route.end());
        return routes;
    }

    void lay(uint32_t layer, const NodePlacement& placed, LayerPlan& plan) const {
        std::vector<double> load(sample_.experts, 0);
        for (uint16_t id : sample_.ids[layer]) load[id] += 1;
        std::vector<uint32_t> nodeOfSlot = gpuOfSlot_;
        for (uint32_t& g : nodeOfSlot) g /= current_.topology.gpusPerNode();
        for (uint32_t n = 0; n < nodes_; ++n)
            fillNode(plan.expertOfSlot, placed.unitsOfNode[n], load, n * perNode_, perNode_,
                     gpuOfSlot_);
        plan.dispatch = dispatchFor({placed.route.begin(), placed.route.end()}, plan.expertOfSlot,
                                    nodeOfSlot, sample_.experts, nodes_);
    }

    /// The plan in use knows the recording's domains and no others.
    bool domainsKnown() const {
        std::set<std::string> known, now;
        for (const DomainHome& home : current_.homes) known.insert(home.domain);
        for (const TokenRange& range : view_.ranges)
            now.insert(view_.routing->domains()[view_.routing->requests()[range.request].domain]);
        return known == now;
    }

    void settle(Replan& made, const std::vector<uint16_t>& homes) const {
        made.newHomes = true;
        made.plan.homes = homesByDomain(view_, homes, sample_.rangeTokens, nodes_);
        PlanOrigin& origin = made.plan.origin;
        origin.algorithm = "replan";
        origin.seed = options_.seed;
        origin.tokens = view_.tokens();
        origin.loadCap = options_.loadCap;
        origin.homeCap = options_.homeCap;
        origin.reason = made.reason;
    }

    const Plan& current_;
    const RoutingView& view_;
    const ReplanOptions& options_;
    uint32_t nodes_, perNode_;
    Random random_;
    std::vector<uint32_t> gpuOfSlot_;
    NodeRoutes routes_;
    TokenSample sample_;
    std::vector<double> linkCosts_;  ///< empty: all alike
    LayerGoal goal_;
};

/// Applies the rules that the search did not know; counting all tokens takes as long as the search,
/// so it happens only when there are rules.
absl::Status keepRules(std::span<const PlaceRule> rules, const RoutingView& view, Replan* made) {
    if (rules.empty()) return absl::OkStatus();
    const Plan unruled = made->plan;
    if (auto status = honourPlaceRules(made->plan, rules, countsOf(view)); !status.ok())
        return status;
    if (made->plan == unruled) return absl::OkStatus();
    made->reason += "; experts moved to where they are pinned or not forbidden";
    made->changes = true;
    made->plan.origin.reason = made->reason;
    return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Replan> replan(const Plan& current, const RoutingView& view,
                              const ReplanOptions& options) {
    const ModelShape& shape = view.routing->shape();
    if (shape.layers != current.shape.layers || shape.experts != current.shape.experts)
        return absl::InvalidArgumentError(absl::StrCat(
            "the plan is for ", current.shape.layers, " layers of ", current.shape.experts,
            " experts, the recording has ", shape.layers, " of ", shape.experts));
    if (view.tokens() == 0) return absl::InvalidArgumentError("there is no token to plan from");
    if (current.topology.nodes() > 255 || current.slots() % current.topology.nodes() != 0)
        return absl::InvalidArgumentError("a plan with uneven nodes cannot be replanned");
    Replan made = Replanning(current, view, options).run();
    if (auto status = keepRules(options.rules, view, &made); !status.ok()) return status;
    auto migration = migrationBetween(current, made.plan);
    if (!migration.ok()) return migration.status();
    made.migration = *migration;
    return made;
}

}  // namespace bulkhead::planner
