// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/solve/layer_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

namespace bulkhead::planner {

namespace {

constexpr double kRelativeCold = 1e-3;

}  // namespace

NodePlacement routed(std::vector<std::vector<uint16_t>> unitsOfNode, const LayerProblem& problem) {
    const uint32_t nodes = problem.nodes, units = problem.units;
    std::vector<std::vector<uint8_t>> where(units);
    for (uint32_t n = 0; n < nodes; ++n)
        for (uint16_t u : unitsOfNode[n]) where[u].push_back(static_cast<uint8_t>(n));
    const bool replicas =
        std::any_of(where.begin(), where.end(), [](const auto& at) { return at.size() > 1; });
    NodePlacement made{std::move(unitsOfNode), {}};
    std::vector<double> load(nodes, 0);
    for (uint32_t view = 0; view < (replicas ? nodes : 1); ++view)
        for (uint32_t u = 0; u < units; ++u) {
            uint8_t best = where[u][0];
            for (uint8_t n : where[u])
                if (best != view && (n == view || load[n] < load[best])) best = n;
            load[best] += problem.load[u];
            made.route.push_back(best);
        }
    return made;
}

LayerSearch::LayerSearch(const LayerProblem& problem, LayerGoal goal, NodePlacement start)
    : problem_(problem), goal_(goal), at_(std::move(start)) {
    const uint32_t nodes = problem.nodes, units = problem.units;
    holds_.assign(size_t{units} * nodes, 0);
    for (uint32_t n = 0; n < nodes; ++n)
        for (uint16_t u : at_.unitsOfNode[n]) holds_[u * nodes + n] = 1;
    heldAtStart_ = holds_;
    cost_ = problem.sendCost.empty() ? std::vector<int32_t>(size_t{nodes} * nodes, 1)
                                     : problem.sendCost;
    for (uint32_t n = 0; n < nodes; ++n) cost_[n * nodes + n] = 0;
    reload();
}

void LayerSearch::reload() {
    const uint32_t nodes = problem_.nodes, units = problem_.units, k = problem_.perToken;
    const uint32_t tokens = problem_.tokens();
    views_ = static_cast<uint32_t>(at_.route.size() / units);
    holds_.assign(size_t{units} * nodes, 0);
    copies_.assign(units, 0);
    for (uint32_t n = 0; n < nodes; ++n)
        for (uint16_t u : at_.unitsOfNode[n]) {
            holds_[u * nodes + n] = 1;
            ++copies_[u];
        }
    replicas_ = views_ > 1;

    homeCount_.assign(size_t{nodes} * units, 0);
    postingStart_.assign(size_t{views_} * units + 1, 0);
    for (uint32_t t = 0; t < tokens; ++t)
        for (uint32_t i = 0; i < k; ++i) {
            const uint16_t u = problem_.ids[size_t{t} * k + i];
            if (u == LayerProblem::kNoUnit) continue;
            ++homeCount_[problem_.home[t] * units + u];
            ++postingStart_[(views_ > 1 ? problem_.home[t] : 0u) * units + u + 1];
        }
    std::partial_sum(postingStart_.begin(), postingStart_.end(), postingStart_.begin());
    viewLoad_.assign(size_t{views_} * units, 0);
    for (uint32_t u = 0; u < units; ++u) {
        double sampled = 0;
        for (uint32_t v = 0; v < views_; ++v)
            sampled += postingStart_[v * units + u + 1] - postingStart_[v * units + u];
        for (uint32_t v = 0; v < views_; ++v) {
            const double part = postingStart_[v * units + u + 1] - postingStart_[v * units + u];
            viewLoad_[v * units + u] =
                problem_.load[u] * (sampled > 0 ? part / sampled : 1.0 / views_);
        }
    }
    meanLoad_ = std::accumulate(problem_.load.begin(), problem_.load.end(), 0.0) / nodes;
    nodeLoad_.assign(nodes, 0);
    for (size_t i = 0; i < viewLoad_.size(); ++i) nodeLoad_[at_.route[i]] += viewLoad_[i];

    reloadTokens();
    double over = 0;
    if (replicas_)
        for (double load : nodeLoad_) over += penalty(load, goal_.loadCap);
    else
        noteScenarios();
    for (double price : nodePenalty_) over += price;
    aloneLoad_.assign(nodes, 0);
    for (uint32_t n = 0; n < nodes; ++n) {
        for (uint16_t u : at_.unitsOfNode[n])
            aloneLoad_[n] += copies_[u] == 1 ? problem_.load[u] : 0;
        over += penalty(aloneLoad_[n], goal_.aloneCap);
    }
    double moved = 0;
    for (size_t i = 0; i < holds_.size(); ++i) moved += holds_[i] && !heldAtStart_[i];
    value_ = goal_.sends * (goal_.sends > 0 ? sendsPerToken() : 0) +
             goal_.copies * copiesPerToken() + over + goal_.move * moved;
}

/// Loads of nodes in every scenario, and what they cost.
void LayerSearch::noteScenarios() {
    const uint32_t units = problem_.units;
    const std::vector<float>& given = problem_.scenarios;
    scenarios_ = given.empty() ? 1 : static_cast<uint32_t>(given.size() / units);
    part_.assign(size_t{units} * scenarios_, 0);
    for (uint32_t u = 0; u < units; ++u)
        for (uint32_t s = 0; s < scenarios_; ++s)
            part_[u * scenarios_ + s] = !given.empty() ? given[s * units + u]
                                        : meanLoad_ > 0
                                            ? static_cast<float>(problem_.load[u] / meanLoad_)
                                            : 0.0f;
    full_.assign(size_t{problem_.nodes} * scenarios_, 0);
    for (uint32_t u = 0; u < units; ++u)
        for (uint32_t s = 0; s < scenarios_; ++s)
            full_[at_.route[u] * scenarios_ + s] += part_[u * scenarios_ + s];
    nodePenalty_.assign(problem_.nodes, 0);
    for (uint32_t n = 0; n < problem_.nodes; ++n) nodePenalty_[n] = nodePenalty(n, 0, 0);
}

/// Tables that are counted token by token.
void LayerSearch::reloadTokens() {
    const uint32_t nodes = problem_.nodes, units = problem_.units, k = problem_.perToken;
    const bool sends = goal_.sends > 0;
    onNode_.assign(sends ? size_t{problem_.tokens()} * nodes : 0, 0);
    leaves_.assign(size_t{views_} * units, 0);
    enters_.assign(sends ? size_t{views_} * units * nodes : 0, 0);
    // A unit would enter each node but home for every token of it, if none were there yet.
    for (size_t at = 0; sends && at < leaves_.size(); ++at) {
        int32_t* enters = &enters_[at * nodes];
        for (uint32_t h = 0; h < nodes; ++h) {
            if (views_ > 1 && h != at / units) continue;
            const int32_t uses = homeCount_[h * units + at % units];
            const int32_t* cost = &cost_[h * nodes];
            for (uint32_t n = 0; uses > 0 && n < nodes; ++n) enters[n] += uses * cost[n];
        }
    }
    postings_.resize(postingStart_.back());
    std::vector<uint32_t> next(postingStart_.begin(), postingStart_.end() - 1);
    std::vector<uint32_t> visited;
    for (uint32_t t = 0; t < problem_.tokens(); ++t) {
        const uint16_t* ids = &problem_.ids[size_t{t} * k];
        const uint32_t home = problem_.home[t], base = (views_ > 1 ? home : 0u) * units;
        const int32_t* cost = &cost_[home * nodes];
        uint8_t* on = sends ? &onNode_[size_t{t} * nodes] : nullptr;
        visited.clear();
        for (uint32_t i = 0; i < k; ++i) {
            if (ids[i] == LayerProblem::kNoUnit) continue;
            const uint32_t node = at_.route[base + ids[i]];
            postings_[next[base + ids[i]]++] = t;
            if (on && on[node]++ == 0 && node != home) visited.push_back(node);
        }
        for (uint32_t i = 0; on && i < k; ++i) {
            if (ids[i] == LayerProblem::kNoUnit) continue;
            const uint32_t node = at_.route[base + ids[i]];
            leaves_[base + ids[i]] += cost[node] * (on[node] == 1);
            int32_t* enters = &enters_[size_t{base + ids[i]} * nodes];
            for (uint32_t n : visited) enters[n] -= cost[n];
        }
    }
}

double LayerSearch::sendsPerToken() const {
    const uint32_t nodes = problem_.nodes;
    int64_t sends = 0;
    for (uint32_t t = 0; t < problem_.tokens() && !onNode_.empty(); ++t) {
        const uint8_t* on = &onNode_[size_t{t} * nodes];
        const int32_t* cost = &cost_[problem_.home[t] * nodes];
        for (uint32_t n = 0; n < nodes; ++n) sends += cost[n] * (on[n] > 0);  // no branch to guess
    }
    const int32_t one = problem_.sendCost.empty() ? 1 : LayerProblem::kSend;
    return static_cast<double>(sends) / one / std::max(problem_.tokens(), 1u);
}

double LayerSearch::copiesPerToken() const {
    const uint32_t units = problem_.units;
    int64_t remote = 0;
    for (uint32_t h = 0; h < problem_.nodes; ++h)
        for (uint32_t u = 0; u < units; ++u)
            if (at_.route[(views_ > 1 ? h : 0u) * units + u] != h)
                remote += homeCount_[h * units + u];
    return static_cast<double>(remote) / std::max(problem_.tokens(), 1u);
}

double LayerSearch::loadMaxOverMean() const {
    return meanLoad_ > 0 ? *std::max_element(nodeLoad_.begin(), nodeLoad_.end()) / meanLoad_ : 1;
}

double LayerSearch::penalty(double load, double cap) const {
    if (meanLoad_ <= 0) return 0;
    return price(std::max(load / meanLoad_ - cap, 0.0));
}

/// Load penalty of a node that gives unit `out` for unit `in` (equal: no change). Without replicas.
double LayerSearch::nodePenalty(uint32_t node, uint32_t out, uint32_t in) const {
    const double* full = &full_[size_t{node} * scenarios_];
    const double* gone = &part_[size_t{out} * scenarios_];
    const double* come = &part_[size_t{in} * scenarios_];
    double sum = 0;
    for (uint32_t s = 0; s < scenarios_; ++s)
        sum += price(std::max(full[s] - gone[s] + come[s] - goal_.loadCap, 0.0));
    return sum / scenarios_;
}

double LayerSearch::shiftDelta(uint32_t view, uint32_t unit, uint32_t to) const {
    const uint32_t nodes = problem_.nodes, at = view * problem_.units + unit;
    const uint32_t from = at_.route[at];
    double delta = 0;
    if (goal_.sends > 0) delta += sendWeight() * (enters_[size_t{at} * nodes + to] - leaves_[at]);
    if (goal_.copies > 0) {
        const auto count = [&](uint32_t home) { return homeCount_[home * problem_.units + unit]; };
        if (views_ == 1)
            delta += goal_.copies * (count(from) - count(to));
        else if (from == view || to == view)
            delta += goal_.copies * count(view) * (to == view ? -1 : 1);
    }
    return delta / problem_.tokens();
}

void LayerSearch::addShift(uint32_t view, uint32_t unit, uint32_t to) {
    const uint8_t from = at_.route[view * problem_.units + unit];
    if (from == to) return;
    shifts_.push_back({view, unit, from, static_cast<uint8_t>(to), shiftDelta(view, unit, to)});
}

/// Tokens that used the unit on `gone` go to the replica that costs least; `arriving` (or -1) is
/// where it has just got one.
void LayerSearch::leave(uint32_t view, uint32_t unit, uint32_t gone, int arriving) {
    uint32_t best = 0;
    double bestDelta = INFINITY;
    for (uint32_t n = 0; n < problem_.nodes; ++n) {
        if (n == gone || !(holds(unit, n) || static_cast<int>(n) == arriving)) continue;
        const double delta = replicas_ ? shiftDelta(view, unit, n) : 0;
        if (delta < bestDelta) {
            bestDelta = delta;
            best = n;
        }
    }
    addShift(view, unit, best);
}

void LayerSearch::arrive(uint32_t view, uint32_t unit, uint32_t node) {
    if (shiftDelta(view, unit, node) < 0) addShift(view, unit, node);
}

bool LayerSearch::proposeSwap(Random& random) {
    Change& c = change_;
    c.swaps = true;
    c.nodeA = random.below(problem_.nodes);
    c.nodeB = random.below(problem_.nodes);
    if (c.nodeA == c.nodeB) return false;
    c.slotA = random.below(at_.unitsOfNode[c.nodeA].size());
    c.slotB = random.below(at_.unitsOfNode[c.nodeB].size());
    c.unitA = at_.unitsOfNode[c.nodeA][c.slotA];
    c.unitB = at_.unitsOfNode[c.nodeB][c.slotB];
    if (holds(c.unitA, c.nodeB) || holds(c.unitB, c.nodeA)) return false;
    for (uint32_t view = 0; view < views_; ++view) {
        const uint8_t* route = &at_.route[view * problem_.units];
        if (copies_[c.unitA] == 1)
            addShift(view, c.unitA, c.nodeB);
        else if (route[c.unitA] == c.nodeA)
            leave(view, c.unitA, c.nodeA, static_cast<int>(c.nodeB));
        else
            arrive(view, c.unitA, c.nodeB);
        if (copies_[c.unitB] == 1)
            addShift(view, c.unitB, c.nodeA);
        else if (route[c.unitB] == c.nodeB)
            leave(view, c.unitB, c.nodeB, static_cast<int>(c.nodeA));
        else
            arrive(view, c.unitB, c.nodeA);
    }
    return true;
}

bool LayerSearch::proposeReplace(Random& random) {
    Change& c = change_;
    c.swaps = false;
    c.nodeA = random.below(problem_.nodes);
    c.slotA = random.below(at_.unitsOfNode[c.nodeA].size());
    c.unitA = at_.unitsOfNode[c.nodeA][c.slotA];
    c.unitB = random.below(problem_.units);
    if (copies_[c.unitA] < 2 || holds(c.unitB, c.nodeA)) return false;
    for (uint32_t view = 0; view < views_; ++view) {
        if (at_.route[view * problem_.units + c.unitA] == c.nodeA)
            leave(view, c.unitA, c.nodeA, -1);
        arrive(view, c.unitB, c.nodeA);
    }
    return true;
}

bool LayerSearch::proposeReroute(Random& random) {
    const uint32_t view = random.below(views_), unit = random.below(problem_.units);
    const uint32_t node = random.below(problem_.nodes);
    if (copies_[unit] < 2 || !holds(unit, node)) return false;
    addShift(view, unit, node);
    return !shifts_.empty();
}

double LayerSearch::loadDelta() const {
    if (!replicas_) {
        const Change& c = change_;
        return nodePenalty(c.nodeA, c.unitA, c.unitB) - nodePenalty_[c.nodeA] +
               nodePenalty(c.nodeB, c.unitB, c.unitA) - nodePenalty_[c.nodeB];
    }
    // A proposal touches few nodes; most of it is two of them.
    static thread_local std::vector<double> change;
    change.assign(problem_.nodes, 0);
    for (const Shift& s : shifts_) {
        const double load = viewLoad_[s.view * problem_.units + s.unit];
        change[s.from] -= load;
        change[s.to] += load;
    }
    double delta = 0;
    for (uint32_t n = 0; n < problem_.nodes; ++n)
        if (change[n] != 0)
            delta += penalty(nodeLoad_[n] + change[n], goal_.loadCap) -
                     penalty(nodeLoad_[n], goal_.loadCap);
    return delta;
}

/// Change by the proposal in the price of load that only one node can serve.
double LayerSearch::aloneDelta() {
    if (std::isinf(goal_.aloneCap) || !hasChange_) return 0;
    const Change& c = change_;
    aloneShift_.assign(problem_.nodes, 0);
    const auto changes = [&](uint32_t unit, uint32_t node, double sign) {
        aloneShift_[node] += sign * problem_.load[unit];
    };
    const auto onlyOtherNode = [&](uint32_t unit, uint32_t but) {
        uint32_t node = 0;
        while (node == but || !holds(unit, node)) ++node;
        return node;
    };
    if (c.swaps) {
        for (const auto& [unit, from, to] :
             {std::tuple(c.unitA, c.nodeA, c.nodeB), std::tuple(c.unitB, c.nodeB, c.nodeA)})
            if (copies_[unit] == 1) {
                changes(unit, from, -1);
                changes(unit, to, 1);
            }
    } else {
        if (copies_[c.unitA] == 2) changes(c.unitA, onlyOtherNode(c.unitA, c.nodeA), 1);
        if (copies_[c.unitB] == 1) changes(c.unitB, onlyOtherNode(c.unitB, problem_.nodes), -1);
    }
    double delta = 0;
    for (uint32_t n = 0; n < problem_.nodes; ++n)
        if (aloneShift_[n] != 0)
            delta += penalty(aloneLoad_[n] + aloneShift_[n], goal_.aloneCap) -
                     penalty(aloneLoad_[n], goal_.aloneCap);
    return delta;
}

double LayerSearch::moveDelta() const {
    if (goal_.move == 0 || !hasChange_) return 0;
    const uint32_t nodes = problem_.nodes;
    const auto was = [&](uint32_t unit, uint32_t node) -> int {
        return heldAtStart_[unit * nodes + node];
    };
    const Change& c = change_;
    int moved = was(c.unitA, c.nodeA) - was(c.unitB, c.nodeA);
    if (c.swaps) moved += was(c.unitB, c.nodeB) - was(c.unitA, c.nodeB);
    return goal_.move * moved;
}

/// Two units of one token moving at once do not cost what they would one by one.
double LayerSearch::pairCorrection(const Shift& a, const Shift& b) const {
    const uint32_t nodes = problem_.nodes, k = problem_.perToken, units = problem_.units;
    const uint32_t* first = &postings_[postingStart_[a.view * units + a.unit]];
    const uint32_t* last = &postings_[postingStart_[a.view * units + a.unit + 1]];
    uint32_t other = b.unit;
    if (const uint32_t* from = &postings_[postingStart_[b.view * units + b.unit]],
        *to = &postings_[postingStart_[b.view * units + b.unit + 1]];
        to - from < last - first) {
        first = from;
        last = to;
        other = a.unit;
    }
    const uint32_t touched[4] = {a.from, a.to, b.from, b.to};
    int64_t corrected = 0;
    for (; first != last; ++first) {
        const uint32_t t = *first;
        const uint16_t* ids = &problem_.ids[size_t{t} * k];
        bool both = false;
        for (uint32_t i = 0; i < k; ++i) both |= ids[i] == other;
        if (!both) continue;
        const uint8_t* on = &onNode_[size_t{t} * nodes];
        const int32_t* cost = &cost_[problem_.home[t] * nodes];
        const auto alone = [&](const Shift& s) {
            return (on[s.to] == 0 ? cost[s.to] : 0) - (on[s.from] == 1 ? cost[s.from] : 0);
        };
        int together = 0;
        for (int i = 0; i < 4; ++i) {
            const uint32_t n = touched[i];
            if (cost[n] == 0 || std::find(touched, touched + i, n) != touched + i) continue;
            const int after = on[n] + (a.to == n) + (b.to == n) - (a.from == n) - (b.from == n);
            together += cost[n] * ((after > 0) - (on[n] > 0));
        }
        corrected += together - alone(a) - alone(b);
    }
    return sendWeight() * static_cast<double>(corrected) / problem_.tokens();
}

double LayerSearch::correction() const {
    if (goal_.sends <= 0) return 0;
    double sum = 0;
    for (size_t i = 0; i + 1 < shifts_.size(); ++i)
        if (shifts_[i].view == shifts_[i + 1].view)
            sum += pairCorrection(shifts_[i], shifts_[i + 1]);
    return sum;
}

void LayerSearch::applyShift(const Shift& shift) {
    const uint32_t nodes = problem_.nodes, k = problem_.perToken, units = problem_.units;
    const uint32_t base = shift.view * units, at = base + shift.unit;
    const uint32_t from = shift.from, to = shift.to;
    nodeLoad_[from] -= viewLoad_[at];
    nodeLoad_[to] += viewLoad_[at];
    const uint16_t* allIds = problem_.ids.data();
    const uint16_t* homes = problem_.home.data();
    const int32_t* costs = cost_.data();
    const uint8_t* route = &at_.route[base];
    uint8_t* allOn = onNode_.data();
    int32_t* allEnters = &enters_[size_t{base} * nodes];
    int32_t* leaves = &leaves_[base];
    int32_t own = 0;
    for (uint32_t p = postingStart_[at]; goal_.sends > 0 && p < postingStart_[at + 1]; ++p) {
        const uint32_t t = postings_[p];
        const int32_t* cost = costs + homes[t] * nodes;
        const uint16_t* ids = allIds + size_t{t} * k;
        uint8_t* on = allOn + size_t{t} * nodes;
        const uint8_t left = on[from]--, found = on[to]++;
        const int32_t aloneThere = left == 1 ? cost[from] : 0,
                      firstThere = found == 0 ? cost[to] : 0;
        const int32_t lonelier = left == 2 ? cost[from] : 0, joined = found == 1 ? cost[to] : 0;
        own += firstThere - aloneThere;
        if (aloneThere | firstThere)
            for (uint32_t i = 0; i < k; ++i) {
                if (ids[i] == LayerProblem::kNoUnit) continue;
                int32_t* enters = allEnters + ids[i] * nodes;
                enters[from] += aloneThere;
                enters[to] -= firstThere;
            }
        if (lonelier | joined)
            for (uint32_t i = 0; i < k; ++i) {
                const uint16_t u = ids[i];
                if (u == LayerProblem::kNoUnit || u == shift.unit) continue;
                leaves[u] += (route[u] == from ? lonelier : 0) - (route[u] == to ? joined : 0);
            }
    }
    if (goal_.sends > 0) leaves[shift.unit] += own;
    at_.route[at] = shift.to;
}

void LayerSearch::apply() {
    for (const Shift& s : shifts_) applyShift(s);
    if (!hasChange_) return;
    const Change& c = change_;
    for (uint32_t s = 0; !replicas_ && s < scenarios_; ++s) {
        const double moved = part_[c.unitA * scenarios_ + s] - part_[c.unitB * scenarios_ + s];
        full_[c.nodeA * scenarios_ + s] -= moved;
        full_[c.nodeB * scenarios_ + s] += moved;
    }
    for (const uint32_t n : {c.nodeA, c.nodeB})
        if (!replicas_) nodePenalty_[n] = nodePenalty(n, 0, 0);
    const uint32_t nodes = problem_.nodes;
    for (uint32_t n = 0; !std::isinf(goal_.aloneCap) && n < nodes; ++n)
        aloneLoad_[n] += aloneShift_[n];
    at_.unitsOfNode[c.nodeA][c.slotA] = static_cast<uint16_t>(c.unitB);
    holds_[c.unitA * nodes + c.nodeA] = 0;
    holds_[c.unitB * nodes + c.nodeA] = 1;
    if (c.swaps) {
        at_.unitsOfNode[c.nodeB][c.slotB] = static_cast<uint16_t>(c.unitA);
        holds_[c.unitB * nodes + c.nodeB] = 0;
        holds_[c.unitA * nodes + c.nodeB] = 1;
    } else {
        --copies_[c.unitA];
        ++copies_[c.unitB];
    }
}

void LayerSearch::keepBest() {
    bestValue_ = value_;
    best_ = at_;
}

bool LayerSearch::propose(Random& random) {
    shifts_.clear();
    const uint32_t kind = replicas_ ? random.below(8) : 0;
    hasChange_ = kind < 6;
    return kind < 3   ? proposeSwap(random)
           : kind < 6 ? proposeReplace(random)
                      : proposeReroute(random);
}

void LayerSearch::anneal(uint64_t proposals, double hot, double cold, Random& random) {
    if (problem_.nodes < 2 || problem_.tokens() == 0) return;
    keepBest();
    if (cold <= 0) cold = hot * kRelativeCold;
    double temperature = hot;
    const uint64_t stages = 256;
    bool isBest = true;
    for (uint64_t i = 0; i < proposals; ++i) {
        if (hot > 0 && i % (proposals / stages + 1) == 0)
            temperature =
                hot * std::pow(cold / hot, static_cast<double>(i) / static_cast<double>(proposals));
        if (!propose(random)) continue;
        const double limit = hot > 0 ? -temperature * std::log(random.unit()) : -1e-12;
        double delta = moveDelta();
        for (const Shift& s : shifts_) delta += s.delta;
        // The nodes' penalties bound the gain from less load, which skips most scenario sums.
        if (!replicas_ && delta - nodePenalty_[change_.nodeA] - nodePenalty_[change_.nodeB] > limit)
            continue;
        delta += loadDelta() + aloneDelta();
        if (delta > limit) continue;
        delta += correction();
        if (delta > limit) continue;
        if (isBest && delta > -1e-12) keepBest();  // leaving the best state seen so far
        apply();
        value_ += delta;
        isBest = value_ < bestValue_ - 1e-12;
        if (isBest) bestValue_ = value_;
    }
    if (!isBest) at_ = best_;
    reload();
}

/// Swaps `unit`'s slot with the one that gains most, if any does.
bool LayerSearch::swapBest(uint32_t unit) {
    const uint32_t nodes = problem_.nodes, units = problem_.units, home = at_.route[unit];
    const double tokens = problem_.tokens(), weight = sendWeight();
    const auto was = [&](uint32_t u, uint32_t node) -> int {
        return heldAtStart_[u * nodes + node];
    };
    const auto gainOf = [&](uint32_t u, uint32_t from, uint32_t to) {
        double delta = goal_.copies * (homeCount_[from * units + u] - homeCount_[to * units + u]);
        if (goal_.sends > 0) delta += weight * (enters_[size_t{u} * nodes + to] - leaves_[u]);
        return delta / tokens + goal_.move * (was(u, from) - was(u, to));
    };
    double best = -1e-9;
    uint32_t bestNode = nodes, bestSlot = 0;
    for (uint32_t n = 0; n < nodes; ++n) {
        if (n == home) continue;
        const double there = gainOf(unit, home, n) - nodePenalty_[home] - nodePenalty_[n];
        for (uint32_t slot = 0; slot < at_.unitsOfNode[n].size(); ++slot) {
            const uint32_t other = at_.unitsOfNode[n][slot];
            double delta = there + gainOf(other, n, home);
            if (delta >= best) continue;
            delta += nodePenalty(home, unit, other) + nodePenalty(n, other, unit);
            if (delta >= best) continue;
            best = delta;
            bestNode = n;
            bestSlot = slot;
        }
    }
    if (bestNode == nodes) return false;
    const std::vector<uint16_t>& own = at_.unitsOfNode[home];
    shifts_.clear();
    hasChange_ = true;
    change_ = {
        home,     static_cast<uint32_t>(std::find(own.begin(), own.end(), unit) - own.begin()),
        unit,     bestNode,
        bestSlot, at_.unitsOfNode[bestNode][bestSlot],
        true};
    addShift(0, unit, bestNode);
    addShift(0, change_.unitB, home);
    const double delta = best + correction() + aloneDelta();
    if (delta > -1e-9) return false;
    apply();
    value_ += delta;
    return true;
}

void LayerSearch::descend(uint32_t sweeps, Random& random) {
    if (problem_.nodes < 2 || problem_.tokens() == 0 || replicas_) return;
    std::vector<uint32_t> order(problem_.units);
    std::iota(order.begin(), order.end(), 0);
    bool better = true;
    for (uint32_t sweep = 0; better && sweep < sweeps; ++sweep) {
        better = false;
        for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
        for (uint32_t unit : order) better |= swapBest(unit);
    }
    bestValue_ = value_;
}

}  // namespace bulkhead::planner
