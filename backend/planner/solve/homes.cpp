// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/solve/homes.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace bulkhead::planner {

namespace {

/// Beyond so many requests the pairs are too many; moves alone must do.
constexpr uint32_t kMostForSwaps = 1000;
/// Up to so many requests x nodes the problem without whole requests is solved exactly; prices on
/// full nodes stand in for that beyond.
constexpr size_t kMostForSplits = 20'000;
constexpr uint64_t kMostWays = 16;     ///< of giving divided requests one node each
constexpr uint32_t kFewToRound = 300;  ///< requests with which every way can be improved by swaps
constexpr int kPriceRounds = 600;
constexpr int kClusterRounds = 12;

/// An assignment in the making.
class Assignment {
  public:
    explicit Assignment(const HomeProblem& problem)
        : p_(problem), home_(problem.requests(), 0), load_(problem.nodes, 0) {
        const double total = std::accumulate(p_.tokens.begin(), p_.tokens.end(), 0.0);
        limit_ = p_.cap * total / p_.nodes * (1 + 1e-12);
        mean_ = total / p_.nodes;
    }

    std::vector<uint16_t> solve() {
        if (size_t{p_.requests()} * p_.nodes > kMostForSplits) {
            priced();
            repair();
            improve();
            return home_;
        }
        split();
        return bestRounding();
    }

  private:
    double gain(uint32_t r, uint32_t n) const { return p_.gain[size_t{r} * p_.nodes + n]; }

    /// Requests that may be divided over nodes, at the most gain under the cap: a transportation
    /// problem, exact by successive shortest paths. Every request starts where it gains most; load
    /// above the limit then leaves its node along the chain of nodes that loses least, each link of
    /// the chain the request that loses least by it.
    void split() {
        const uint32_t nodes = p_.nodes;
        part_.assign(size_t{p_.requests()} * nodes, 0);
        std::fill(load_.begin(), load_.end(), 0);
        for (uint32_t r = 0; r < p_.requests(); ++r) {
            const auto row = p_.gain.begin() + static_cast<ptrdiff_t>(size_t{r} * nodes);
            const auto best = static_cast<uint32_t>(std::max_element(row, row + nodes) - row);
            part_[size_t{r} * nodes + best] = p_.tokens[r];
            load_[best] += p_.tokens[r];
        }
        const double least = limit_ * 1e-9;
        for (uint32_t guard = 0; guard < 8 * p_.requests() * nodes + 16; ++guard)
            if (!relieve(least)) return;
    }

    struct Link {
        double loss = INFINITY;  ///< of a token
        uint32_t request = 0;
    };

    /// One chain from a node above the limit to one below it; false when there is none left.
    bool relieve(double least) {
        const uint32_t nodes = p_.nodes;
        std::vector<Link> links(size_t{nodes} * nodes);
        for (uint32_t r = 0; r < p_.requests(); ++r)
            for (uint32_t from = 0; from < nodes; ++from) {
                if (part_[size_t{r} * nodes + from] <= least) continue;
                for (uint32_t to = 0; to < nodes; ++to) {
                    const double loss = (gain(r, from) - gain(r, to)) / p_.tokens[r];
                    if (Link& link = links[from * nodes + to]; loss < link.loss) link = {loss, r};
                }
            }
        std::vector<double> far(nodes, INFINITY);
        std::vector<uint32_t> before(nodes, nodes);
        for (uint32_t n = 0; n < nodes; ++n)
            if (load_[n] > limit_ + least) far[n] = 0;
        bool shorter = true;
        for (uint32_t round = 0; shorter && round < nodes; ++round) {
            shorter = false;
            for (uint32_t from = 0; from < nodes; ++from)
                for (uint32_t to = 0; far[from] < INFINITY && to < nodes; ++to)
                    if (far[from] + links[from * nodes + to].loss < far[to] - 1e-12) {
                        far[to] = far[from] + links[from * nodes + to].loss;
                        before[to] = from;
                        shorter = true;
                    }
        }
        uint32_t end = nodes;
        for (uint32_t n = 0; n < nodes; ++n)
            if (load_[n] < limit_ - least && far[n] < (end < nodes ? far[end] : INFINITY)) end = n;
        if (end == nodes) return false;
        double amount = limit_ - load_[end];
        uint32_t start = end, steps = 0;
        for (; before[start] < nodes && steps <= nodes; start = before[start], ++steps)
            amount = std::min(amount,
                              part_[size_t{links[before[start] * nodes + start].request} * nodes +
                                    before[start]]);
        amount = std::min(amount, load_[start] - limit_);
        if (steps > nodes || !(amount > 0)) return false;
        for (uint32_t to = end; before[to] < nodes; to = before[to]) {
            const size_t row = size_t{links[before[to] * nodes + to].request} * nodes;
            part_[row + before[to]] -= amount;
            part_[row + to] += amount;
        }
        load_[start] -= amount;
        load_[end] += amount;
        return true;
    }

    /// The divided requests, fewer than there are nodes at an optimum, wholly to one of their nodes
    /// each: every way of it where those are few.
    std::vector<uint16_t> bestRounding() {
        const uint32_t nodes = p_.nodes;
        std::vector<uint32_t> divided;
        std::vector<std::vector<uint16_t>> choices;
        std::vector<uint16_t> whole(p_.requests(), 0);
        uint64_t ways = 1;
        for (uint32_t r = 0; r < p_.requests(); ++r) {
            const double* part = &part_[size_t{r} * nodes];
            whole[r] = static_cast<uint16_t>(std::max_element(part, part + nodes) - part);
            std::vector<uint16_t> at{whole[r]};
            for (uint16_t n = 0; n < nodes; ++n)
                if (n != whole[r] && part[n] > 1e-6 * p_.tokens[r]) at.push_back(n);
            if (at.size() == 1 || ways * at.size() > (p_.requests() > kFewToRound ? 1u : kMostWays))
                continue;
            ways *= at.size();
            divided.push_back(r);
            choices.push_back(std::move(at));
        }
        std::vector<uint16_t> best;
        double bestGain = -INFINITY, bestOver = INFINITY;
        for (uint64_t way = 0; way < ways; ++way) {
            home_ = whole;
            uint64_t left = way;
            for (size_t i = 0; i < divided.size(); ++i) {
                home_[divided[i]] = choices[i][left % choices[i].size()];
                left /= choices[i].size();
            }
            std::fill(load_.begin(), load_.end(), 0);
            for (uint32_t r = 0; r < p_.requests(); ++r) load_[home_[r]] += p_.tokens[r];
            repair();
            improve();
            double sum = 0, over = 0;
            for (uint32_t r = 0; r < p_.requests(); ++r) sum += gain(r, home_[r]);
            for (double load : load_) over += std::max(0.0, load - limit_);
            if (over > bestOver || (over == bestOver && sum <= bestGain)) continue;
            bestOver = over;
            bestGain = sum;
            best = home_;
        }
        return best;
    }

    void choose(const std::vector<double>& price) {
        std::fill(load_.begin(), load_.end(), 0);
        for (uint32_t r = 0; r < p_.requests(); ++r) {
            uint16_t best = 0;
            for (uint16_t n = 1; n < p_.nodes; ++n)
                if (gain(r, n) - price[n] * p_.tokens[r] >
                    gain(r, best) - price[best] * p_.tokens[r])
                    best = n;
            home_[r] = best;
            load_[best] += p_.tokens[r];
        }
    }

    /// Subgradient steps on the price of a token on each node; keeps the least overloaded choice.
    void priced() {
        double unit = 0;
        for (uint32_t r = 0; r < p_.requests(); ++r) {
            const auto row = p_.gain.begin() + static_cast<ptrdiff_t>(size_t{r} * p_.nodes);
            const auto [low, high] = std::minmax_element(row, row + p_.nodes);
            unit += *high - *low;
        }
        unit /= std::max(mean_ * p_.nodes, 1e-300);
        std::vector<double> price(p_.nodes, 0);
        std::vector<uint16_t> best;
        double bestOver = INFINITY;
        const int rounds = static_cast<int>(std::clamp(6e6 / (p_.requests() * p_.nodes + 1.0), 60.0,
                                                       static_cast<double>(kPriceRounds)));
        for (int round = 0; round < rounds; ++round) {
            choose(price);
            double over = 0;
            for (double load : load_) over += std::max(0.0, load - limit_);
            if (over < bestOver) {
                bestOver = over;
                best = home_;
            }
            if (over == 0) break;
            const double step = unit * 0.5 / (1 + 0.05 * round);
            for (uint32_t n = 0; n < p_.nodes; ++n)
                price[n] = std::max(0.0, price[n] + step * (load_[n] - limit_) / mean_);
        }
        home_ = best;
        std::fill(load_.begin(), load_.end(), 0);
        for (uint32_t r = 0; r < p_.requests(); ++r) load_[home_[r]] += p_.tokens[r];
    }

    void move(uint32_t r, uint16_t to) {
        load_[home_[r]] -= p_.tokens[r];
        load_[to] += p_.tokens[r];
        home_[r] = to;
    }

    /// From the fullest node, whatever loses least for a token, to where it fits or at least
    /// levels the two.
    void repair() {
        for (uint32_t guard = 0; guard < 4 * p_.requests() + 16; ++guard) {
            const auto full =
                static_cast<uint16_t>(std::max_element(load_.begin(), load_.end()) - load_.begin());
            if (load_[full] <= limit_) return;
            double least = INFINITY;
            uint32_t request = 0;
            uint16_t to = full;
            for (const bool fits : {true, false}) {
                for (uint32_t r = 0; r < p_.requests(); ++r)
                    for (uint16_t n = 0; home_[r] == full && n < p_.nodes; ++n) {
                        const double after = load_[n] + p_.tokens[r];
                        if (n == full || after > (fits ? limit_ : load_[full] * (1 - 1e-9)))
                            continue;
                        const double loss = (gain(r, full) - gain(r, n)) / p_.tokens[r];
                        if (loss < least) {
                            least = loss;
                            request = r;
                            to = n;
                        }
                    }
                if (to != full) break;
            }
            if (to == full) return;
            move(request, to);
        }
    }

    bool moveBetter(uint32_t r) {
        for (uint16_t n = 0; n < p_.nodes; ++n)
            if (n != home_[r] && gain(r, n) > gain(r, home_[r]) + 1e-9 &&
                load_[n] + p_.tokens[r] <= limit_) {
                move(r, n);
                return true;
            }
        return false;
    }

    bool swapBetter(uint32_t r, uint32_t q) {
        const uint16_t x = home_[r], y = home_[q];
        if (x == y || gain(r, y) + gain(q, x) <= gain(r, x) + gain(q, y) + 1e-9) return false;
        const double shift = p_.tokens[q] - p_.tokens[r];
        if (load_[x] + shift > std::max(limit_, load_[x]) ||
            load_[y] - shift > std::max(limit_, load_[y]))
            return false;
        move(r, y);
        move(q, x);
        return true;
    }

    void improve() {
        bool better = true;
        for (int round = 0; better && round < 50; ++round) {
            better = false;
            for (uint32_t r = 0; r < p_.requests(); ++r) better |= moveBetter(r);
            if (p_.requests() > kMostForSwaps) continue;
            for (uint32_t r = 0; r < p_.requests(); ++r)
                for (uint32_t q = r + 1; q < p_.requests(); ++q) better |= swapBetter(r, q);
        }
    }

    const HomeProblem& p_;
    std::vector<uint16_t> home_;
    std::vector<double> load_;
    std::vector<double> part_;  ///< requests x nodes: tokens of a request that may be divided
    double limit_ = 0, mean_ = 0;
};

void normalise(std::span<float> row) {
    double square = 0;
    for (float x : row) square += double{x} * x;
    const auto scale = static_cast<float>(square > 0 ? 1 / std::sqrt(square) : 0);
    for (float& x : row) x *= scale;
}

double dot(const float* a, const float* b, uint32_t width) {
    float sums[8] = {};
    uint32_t i = 0;
    for (; i + 8 <= width; i += 8)
        for (uint32_t j = 0; j < 8; ++j) sums[j] += a[i + j] * b[i + j];
    float rest = 0;
    for (; i < width; ++i) rest += a[i] * b[i];
    return double{rest} + std::accumulate(sums, sums + 8, 0.0f);
}

/// Centres far from one another: each next one likely where the nearest centre is far.
std::vector<float> seeded(std::span<const float> rows, uint32_t width, uint32_t nodes,
                          Random& random) {
    const auto requests = static_cast<uint32_t>(rows.size() / width);
    std::vector<float> centres;
    std::vector<double> distance(requests, 1);
    for (uint32_t n = 0; n < nodes; ++n) {
        const double sum = std::accumulate(distance.begin(), distance.end(), 0.0);
        double target = random.unit() * sum;
        uint32_t pick = 0;
        while (pick + 1 < requests && target > distance[pick]) target -= distance[pick++];
        const float* row = rows.data() + size_t{pick} * width;
        centres.insert(centres.end(), row, row + width);
        for (uint32_t r = 0; r < requests; ++r) {
            const double far = 1 - dot(rows.data() + size_t{r} * width, row, width);
            distance[r] = n == 0 ? std::max(far, 0.0) * std::max(far, 0.0)
                                 : std::min(distance[r], std::max(far, 0.0) * std::max(far, 0.0));
        }
    }
    return centres;
}

}  // namespace

std::vector<uint16_t> assignHomes(const HomeProblem& problem) {
    if (problem.requests() == 0) return {};
    return Assignment(problem).solve();
}

std::vector<uint16_t> groupRequests(std::span<const float> features, uint32_t width,
                                    std::span<const double> tokens, uint32_t nodes, double cap,
                                    uint32_t restarts, Random& random) {
    std::vector<float> rows(features.begin(), features.end());
    const auto requests = static_cast<uint32_t>(tokens.size());
    for (uint32_t r = 0; r < requests; ++r) normalise({rows.data() + size_t{r} * width, width});
    HomeProblem problem{nodes, {}, {tokens.begin(), tokens.end()}, cap};
    problem.gain.resize(size_t{requests} * nodes);
    std::vector<uint16_t> best;
    double bestValue = -INFINITY;
    for (uint32_t restart = 0; restart < std::max(restarts, 1u); ++restart) {
        std::vector<float> centres = seeded(rows, width, nodes, random);
        std::vector<uint16_t> homes;
        for (int round = 0; round < kClusterRounds; ++round) {
            for (uint32_t r = 0; r < requests; ++r)
                for (uint32_t n = 0; n < nodes; ++n)
                    problem.gain[size_t{r} * nodes + n] =
                        tokens[r] * dot(rows.data() + size_t{r} * width,
                                        centres.data() + size_t{n} * width, width);
            std::vector<uint16_t> now = assignHomes(problem);
            if (now == homes) break;
            homes = std::move(now);
            std::fill(centres.begin(), centres.end(), 0);
            for (uint32_t r = 0; r < requests; ++r) {
                float* centre = centres.data() + size_t{homes[r]} * width;
                for (uint32_t i = 0; i < width; ++i)
                    centre[i] += static_cast<float>(tokens[r]) * rows[size_t{r} * width + i];
            }
            for (uint32_t n = 0; n < nodes; ++n)
                normalise({centres.data() + size_t{n} * width, width});
        }
        double value = 0;
        for (uint32_t r = 0; r < requests; ++r) value += problem.gain[size_t{r} * nodes + homes[r]];
        if (value > bestValue) {
            bestValue = value;
            best = std::move(homes);
        }
    }
    return best;
}

HomeCosts homeCosts(const TokenSample& sample, const NodeRoutes& routes,
                    std::span<const double> linkCosts) {
    const uint32_t nodes = routes.nodes, k = sample.topK;
    HomeCosts costs;
    costs.sends.assign(sample.rangeTokens.size() * nodes, 0);
    costs.copies.assign(sample.rangeTokens.size() * nodes, 0);
    std::vector<uint32_t> seen(nodes, 0);
    uint32_t stamp = 0;
    std::vector<double> everywhere(sample.rangeTokens.size(), 0);  ///< sends were no node home
    std::vector<double> used(sample.rangeTokens.size(), 0);        ///< experts
    const bool weighed = !linkCosts.empty();
    const auto weigh = [&](double* sends, uint32_t home, uint32_t node) {
        sends[home] += linkCosts[size_t{home} * nodes + node];
    };
    for (uint32_t layer = 0; layer < sample.ids.size(); ++layer) {
        const std::vector<uint16_t>& route = routes.layers[layer];
        const bool byHome = route.size() > routes.experts;
        for (uint32_t t = 0; t < sample.tokens(); ++t) {
            const uint16_t* ids = &sample.ids[layer][size_t{t} * k];
            double* sends = &costs.sends[size_t{sample.range[t]} * nodes];
            double* copies = &costs.copies[size_t{sample.range[t]} * nodes];
            for (uint32_t h = 0; h < (byHome ? nodes : 1); ++h) {
                const uint16_t* at = &route[size_t{h} * (byHome ? routes.experts : 0)];
                double visited = 0;
                ++stamp;
                for (uint32_t i = 0; i < k; ++i) {
                    const uint32_t node = at[ids[i]];
                    const bool isNew = seen[node] != stamp;
                    seen[node] = stamp;
                    visited += isNew;
                    if (byHome) {
                        copies[h] += node != h;
                        if (weighed && isNew) weigh(sends, h, node);
                    } else {
                        copies[node] -= 1;
                        sends[node] -= isNew && !weighed;
                        for (uint32_t n = 0; weighed && isNew && n < nodes; ++n)
                            weigh(sends, n, node);
                    }
                }
                if (weighed) visited = 0;
                if (weighed && byHome) continue;
                if (byHome) {
                    sends[h] += visited - (seen[h] == stamp);
                } else {
                    everywhere[sample.range[t]] += visited;
                    used[sample.range[t]] += k;
                }
            }
        }
    }
    for (size_t i = 0; i < costs.sends.size(); ++i) {
        costs.sends[i] += everywhere[i / nodes];
        costs.copies[i] += used[i / nodes];
    }
    return costs;
}

std::vector<uint16_t> chooseHomes(const TokenSample& sample, const NodeRoutes& routes,
                                  std::span<const double> tokens, double sends, double copies,
                                  double cap, std::span<const double> linkCosts) {
    const HomeCosts costs = homeCosts(sample, routes, linkCosts);
    std::vector<double> sampled(tokens.size(), 0);
    for (uint32_t range : sample.range) sampled[range] += 1;
    HomeProblem problem{routes.nodes, {}, {tokens.begin(), tokens.end()}, cap};
    for (size_t i = 0; i < costs.sends.size(); ++i) {
        const size_t r = i / routes.nodes;
        problem.gain.push_back(-(sends * costs.sends[i] + copies * costs.copies[i]) * tokens[r] /
                               std::max(sampled[r], 1.0));
    }
    return assignHomes(problem);
}

std::vector<double> trafficOf(const TokenSample& sample, const NodeRoutes& routes,
                              std::span<const uint16_t> homes) {
    const uint32_t nodes = routes.nodes, k = sample.topK;
    std::vector<double> traffic(size_t{nodes} * nodes, 0);
    std::vector<uint64_t> seen(nodes, 0);
    uint64_t stamp = 0;
    for (size_t layer = 0; layer < sample.ids.size(); ++layer) {
        const std::vector<uint16_t>& route = routes.layers[layer];
        const bool byHome = route.size() > routes.experts;
        for (uint32_t t = 0; t < sample.tokens(); ++t) {
            const uint16_t home = homes[sample.range[t]];
            seen[home] = ++stamp;
            for (uint32_t i = 0; i < k; ++i) {
                const uint16_t id = sample.ids[layer][size_t{t} * k + i];
                const uint16_t node = route[(byHome ? size_t{home} * routes.experts : 0) + id];
                if (seen[node] == stamp) continue;
                seen[node] = stamp;
                traffic[size_t{home} * nodes + node] += 1;
            }
        }
    }
    return traffic;
}

std::vector<DomainHome> homesByDomain(const RoutingView& view, std::span<const uint16_t> homes,
                                      std::span<const double> tokens, uint32_t nodes) {
    const Routing& routing = *view.routing;
    std::vector<std::vector<double>> shares(routing.domains().size(),
                                            std::vector<double>(nodes, 0));
    for (size_t r = 0; r < view.ranges.size(); ++r)
        shares[routing.requests()[view.ranges[r].request].domain][homes[r]] += tokens[r];
    std::vector<DomainHome> made;
    for (size_t d = 0; d < shares.size(); ++d) {
        const double sum = std::accumulate(shares[d].begin(), shares[d].end(), 0.0);
        if (sum <= 0) continue;
        for (double& share : shares[d]) share /= sum;
        made.push_back({routing.domains()[d], std::move(shares[d])});
    }
    return made;
}

}  // namespace bulkhead::planner
