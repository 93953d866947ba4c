// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/solve/domain_plan.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/planner/evaluate/evaluate.h"
#include "backend/planner/solve/domain_rules.h"
#include "backend/planner/solve/numbering.h"
#include "backend/planner/solve/random.h"

namespace bulkhead::planner {
namespace {

constexpr int kDomainRounds = 6;     // of grouping and placing in turn; it settles in two or three
constexpr double kLeastGain = 1e-9;  // of all copies: below it lies rounding
constexpr double kLeastPart = 0.03;  // of a domain, or of a node's room: less is left together

double shareOf(const DomainPlan& plan, uint32_t domain, uint32_t node, uint32_t nodes) {
    return plan.share.empty() ? 1.0 / nodes : plan.share[size_t{domain} * nodes + node];
}

class DomainSolver {
  public:
    /// `start` keeps the rules; moves are counted from `current`.
    DomainSolver(const DomainCounts& counts, const DomainPlan& current, const DomainPlan& start,
                 const DomainPlanOptions& options)
        : counts_(counts),
          current_(current),
          start_(start),
          options_(options),
          mask_(counts, options.rules, options.nodes),
          weight_(counts.domains) {
        total_ = std::accumulate(counts.values.begin(), counts.values.end(), 0.0);
        for (uint32_t l = 0; l < counts.layers; ++l)
            for (uint32_t d = 0; d < counts.domains; ++d)
                for (uint32_t e = 0; e < counts.experts; ++e)
                    weight_[d] += counts.at(l, d, e) / total_;
    }

    DomainPlan best() const {
        DomainPlan best = start_;
        double value = priced(best);
        Random random(options_.seed);
        for (uint32_t start = 0; start < (options_.group ? options_.starts : 1); ++start) {
            DomainPlan plan = start_;
            if (options_.group && start > 0) plan.share = randomShare(random);
            for (int round = 0; round < kDomainRounds; ++round) {
                if (options_.goOn && !options_.goOn()) return best;
                const double before = priced(plan);
                // A grouping that was drawn places experts first, or they would undo it.
                if (options_.group && (start == 0 || round > 0)) plan.share = grouped(plan);
                for (uint32_t l = 0; l < counts_.layers; ++l) place(l, plan);
                rename(plan);
                if (before - priced(plan) < kLeastGain) break;
            }
            const double priceNow = priced(plan);
            if (options_.onStart) options_.onStart(priceNow);
            if (priceNow >= value - kLeastGain) continue;
            value = priceNow;
            best = std::move(plan);
        }
        return best;
    }

    uint64_t moves(const DomainPlan& plan) const {
        uint64_t n = 0;
        for (size_t i = 0; i < plan.nodeOf.size(); ++i) n += plan.nodeOf[i] != current_.nodeOf[i];
        return n;
    }

    double loadMaxOverMean(const DomainPlan& plan) const {
        double sum = 0;
        for (uint32_t l = 0; l < counts_.layers; ++l) sum += maxOverMean(loads(l, plan));
        return sum / counts_.layers;
    }

  private:
    /// Remote copies, with moves and load above the cap at their prices.
    double priced(const DomainPlan& plan) const {
        double price = remoteShare(counts_, plan, options_.nodes) +
                       static_cast<double>(moves(plan)) * options_.pricePerMove / counts_.layers;
        for (uint32_t l = 0; l < counts_.layers; ++l) {
            const std::vector<double> load = loads(l, plan);
            const double mean = std::accumulate(load.begin(), load.end(), 0.0) / options_.nodes;
            for (const double x : load)
                price += options_.loadPrice * std::max(0.0, x - options_.loadCap * mean) / total_;
        }
        return price;
    }

    std::vector<double> loads(uint32_t layer, const DomainPlan& plan) const {
        std::vector<double> load(options_.nodes);
        for (uint32_t e = 0; e < counts_.experts; ++e)
            load[plan.nodeOf[size_t{layer} * counts_.experts + e]] += loadOf(layer, e);
        return load;
    }

    double loadOf(uint32_t layer, uint32_t expert) const {
        double sum = 0;
        for (uint32_t d = 0; d < counts_.domains; ++d) sum += counts_.at(layer, d, expert);
        return sum;
    }

    /// Fills nodes with domains in turn: `order` of domains onto nodes in a drawn order.
    std::vector<double> poured(std::span<const uint32_t> domains,
                               std::span<const uint32_t> nodes) const {
        std::vector<double> part(size_t{counts_.domains} * options_.nodes);
        const double room = 1.0 / options_.nodes;
        size_t at = 0;
        double used = 0;
        for (const uint32_t d : domains)
            for (double left = weight_[d]; left > 0;) {
                const bool last = at + 1 == nodes.size();
                if (!last && room - used < kLeastPart * room) {
                    ++at;
                    used = 0;
                    continue;
                }
                const bool fits = left - (room - used) < kLeastPart * room;
                const double take = last || fits ? left : room - used;
                part[size_t{d} * options_.nodes + nodes[at]] += take;
                left -= take;
                used += take;
            }
        return part;
    }

    std::vector<double> randomShare(Random& random) const {
        std::vector<uint32_t> domains(counts_.domains), nodes(options_.nodes);
        const auto shuffled = [&](std::vector<uint32_t>& ids) {
            std::iota(ids.begin(), ids.end(), 0);
            for (size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[random.below(i)]);
        };
        shuffled(domains);
        shuffled(nodes);
        return asShares(poured(domains, nodes));
    }

    /// Normalises each domain's row to shares; parts below kLeastPart go to its other nodes.
    std::vector<double> asShares(std::vector<double> part) const {
        const uint32_t nodes = options_.nodes;
        for (uint32_t d = 0; d < counts_.domains; ++d) {
            const std::span<double> row(part.data() + size_t{d} * nodes, nodes);
            for (double& x : row)
                if (x < kLeastPart * weight_[d]) x = 0;
            const double sum = std::accumulate(row.begin(), row.end(), 0.0);
            for (double& x : row) x = sum > 0 ? x / sum : 1.0 / nodes;
        }
        return part;
    }

    /// Domains onto nodes of equal room, where their experts are: poured in, then parts exchanged
    /// between two nodes while that brings more copies home.
    std::vector<double> grouped(const DomainPlan& plan) const {
        const uint32_t nodes = options_.nodes;
        std::vector<double> home(size_t{counts_.domains} * nodes);  // copies at home, per token
        for (uint32_t l = 0; l < counts_.layers; ++l)
            for (uint32_t d = 0; d < counts_.domains; ++d)
                for (uint32_t e = 0; e < counts_.experts; ++e)
                    home[size_t{d} * nodes + plan.nodeOf[size_t{l} * counts_.experts + e]] +=
                        weight_[d] > 0 ? counts_.at(l, d, e) / weight_[d] / total_ : 0;
        std::vector<uint32_t> domains(counts_.domains), order(nodes);
        std::iota(domains.begin(), domains.end(), 0);
        std::iota(order.begin(), order.end(), 0);
        std::vector<double> part = poured(domains, order);
        bool better = true;
        for (int pass = 0; better && pass < 100; ++pass) {
            better = false;
            for (size_t a = 0; a < part.size(); ++a)
                for (size_t b = 0; b < a; ++b) better |= exchange(part, home, a, b);
        }
        return asShares(std::move(part));
    }

    /// Swaps the nodes of equal parts of two domains if more copies then stay on their home node.
    bool exchange(std::vector<double>& part, const std::vector<double>& home, size_t a,
                  size_t b) const {
        const uint32_t nodes = options_.nodes;
        const size_t da = a / nodes, na = a % nodes, db = b / nodes, nb = b % nodes;
        const double amount = std::min(part[a], part[b]);
        if (da == db || na == nb || amount <= 1e-12) return false;
        const double gain = home[da * nodes + nb] + home[db * nodes + na] - home[a] - home[b];
        if (gain <= kLeastGain) return false;
        part[a] -= amount;
        part[b] -= amount;
        part[da * nodes + nb] += amount;
        part[db * nodes + na] += amount;
        return true;
    }

    /// Gives the nodes of `plan` the names under which fewest experts move. All but the moves stays
    /// as it is, so only where samples go along, and a node takes the place of one that holds as
    /// many experts of every layer and may hold these.
    void rename(DomainPlan& plan) const {
        if (!options_.group && !plan.share.empty()) return;
        const uint32_t nodes = options_.nodes, experts = counts_.experts;
        const double never = static_cast<double>(plan.nodeOf.size()) + 1;
        std::vector<double> moved(size_t{nodes} * nodes);  // from plan's node to its new name
        for (uint32_t l = 0; l < counts_.layers; ++l) {
            std::vector<uint32_t> held(nodes), had(nodes);
            for (uint32_t e = 0; e < experts; ++e) {
                const uint32_t at = plan.nodeOf[size_t{l} * experts + e];
                const uint32_t was = current_.nodeOf[size_t{l} * experts + e];
                ++held[at];
                ++had[was];
                moved[at * nodes + was] -= 1;
                for (uint32_t n = 0; n < nodes; ++n)
                    if (!mask_.may(l, e, n)) moved[at * nodes + n] += never;
            }
            for (uint32_t a = 0; a < nodes; ++a)
                for (uint32_t b = 0; b < nodes; ++b)
                    if (held[a] != had[b]) moved[a * nodes + b] += never;
        }
        const std::vector<uint32_t> name = assignColumns(moved, nodes);
        for (uint32_t& node : plan.nodeOf) node = name[node];
        if (plan.share.empty()) return;
        std::vector<double> share(plan.share.size());
        for (size_t i = 0; i < share.size(); ++i)
            share[i / nodes * nodes + name[i % nodes]] = plan.share[i];
        plan.share = std::move(share);
    }

    /// Swaps experts of one layer between nodes while copies saved pay for the moves.
    void place(uint32_t layer, DomainPlan& plan) const {
        const uint32_t experts = counts_.experts, nodes = options_.nodes;
        const std::span<uint32_t> at(plan.nodeOf.data() + size_t{layer} * experts, experts);
        const uint32_t* was = current_.nodeOf.data() + size_t{layer} * experts;
        std::vector<double> local(size_t{experts} * nodes), load(nodes), own(experts);
        double sum = 0;
        for (uint32_t e = 0; e < experts; ++e) {
            own[e] = loadOf(layer, e);
            sum += own[e];
            for (uint32_t n = 0; n < nodes; ++n)
                for (uint32_t d = 0; d < counts_.domains; ++d)
                    local[size_t{e} * nodes + n] +=
                        counts_.at(layer, d, e) * shareOf(plan, d, n, nodes);
            load[at[e]] += own[e];
        }
        const double cap = options_.loadCap * sum / nodes;
        const double price = options_.pricePerMove * sum;
        const auto worth = [&](uint32_t e, uint32_t n) {
            return local[size_t{e} * nodes + n] - (n != was[e] ? price : 0);
        };
        const auto over = [&](double x) { return options_.loadPrice * std::max(0.0, x - cap); };
        bool better = true;
        for (int pass = 0; better && pass < 100; ++pass) {
            better = false;
            for (uint32_t a = 0; a < experts; ++a)
                for (uint32_t b = 0; b < a; ++b) {
                    const uint32_t na = at[a], nb = at[b];
                    if (na == nb || !mask_.may(layer, a, nb) || !mask_.may(layer, b, na)) continue;
                    const double more = own[b] - own[a];  // of node na
                    const double gain = worth(a, nb) + worth(b, na) - worth(a, na) - worth(b, nb) -
                                        over(load[na] + more) - over(load[nb] - more) +
                                        over(load[na]) + over(load[nb]);
                    if (gain <= kLeastGain * sum) continue;
                    load[na] += more;
                    load[nb] -= more;
                    std::swap(at[a], at[b]);
                    better = true;
                }
        }
    }

    const DomainCounts& counts_;
    const DomainPlan& current_;
    const DomainPlan& start_;
    const DomainPlanOptions& options_;
    NodeMask mask_;
    std::vector<double> weight_;  ///< [domain] part of all tokens
    double total_ = 0;
};

absl::Status check(const DomainCounts& counts, const DomainPlan& plan,
                   const DomainPlanOptions& options) {
    const size_t cells = size_t{counts.layers} * counts.domains * counts.experts;
    const size_t placed = size_t{counts.layers} * counts.experts;
    if (counts.values.size() != cells)
        return absl::InvalidArgumentError(
            absl::StrCat("expected ", cells, " counts, found ", counts.values.size()));
    if (std::none_of(counts.values.begin(), counts.values.end(), [](double x) { return x > 0; }))
        return absl::InvalidArgumentError("no token has been counted yet");
    if (plan.nodeOf.size() != placed)
        return absl::InvalidArgumentError(
            absl::StrCat("expected places for ", placed, " experts, found ", plan.nodeOf.size()));
    for (const uint32_t node : plan.nodeOf)
        if (node >= options.nodes)
            return absl::InvalidArgumentError(
                absl::StrCat("an expert is on node ", node, " of ", options.nodes));
    const size_t shares = size_t{counts.domains} * options.nodes;
    if (!plan.share.empty() && plan.share.size() != shares)
        return absl::InvalidArgumentError(
            absl::StrCat("expected ", shares, " shares, found ", plan.share.size()));
    return absl::OkStatus();
}

}  // namespace

double remoteShare(const DomainCounts& counts, const DomainPlan& plan, uint32_t nodes) {
    double all = 0, home = 0;
    for (uint32_t l = 0; l < counts.layers; ++l)
        for (uint32_t d = 0; d < counts.domains; ++d)
            for (uint32_t e = 0; e < counts.experts; ++e) {
                const double n = counts.at(l, d, e);
                all += n;
                home += n * shareOf(plan, d, plan.nodeOf[size_t{l} * counts.experts + e], nodes);
            }
    return all > 0 ? 1 - home / all : 0;
}

absl::StatusOr<DomainPlanResult> solveDomains(const DomainCounts& counts, const DomainPlan& current,
                                              const DomainPlanOptions& options) {
    if (absl::Status s = check(counts, current, options); !s.ok()) return s;
    DomainPlan start = current;
    if (!options.rules.empty()) {
        auto honoured = honouredNodes(counts, current.nodeOf, options.rules, options.nodes);
        if (!honoured.ok()) return honoured.status();
        start.nodeOf = *std::move(honoured);
    }
    const DomainSolver solver(counts, current, start, options);
    DomainPlanResult result;
    result.plan = solver.best();
    result.before = remoteShare(counts, current, options.nodes);
    result.after = remoteShare(counts, result.plan, options.nodes);
    result.expertsMoved = solver.moves(result.plan);
    result.nodeLoadMaxOverMean = solver.loadMaxOverMean(result.plan);
    return result;
}

}  // namespace bulkhead::planner
