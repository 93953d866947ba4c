// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/solve/numbering.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace bulkhead::planner {

namespace {

constexpr double kLeastSaving = 1e-9;  ///< relative; below it lies rounding

/// [node of `like`] the node of `plan` that takes its number.
std::vector<uint32_t> matched(const Plan& like, const Plan& plan) {
    const uint32_t nodes = plan.topology.nodes(), perNode = plan.slots() / nodes;
    std::vector<double> moved(size_t{nodes} * nodes);
    for (size_t l = 0; l < plan.layers.size(); ++l) {
        const auto holds = [&](const Plan& p, uint32_t node) {
            std::vector<uint8_t> held(p.shape.experts);
            for (uint32_t s = node * perNode; s < (node + 1) * perNode; ++s)
                held[p.layers[l].expertOfSlot[s]] = 1;
            return held;
        };
        std::vector<std::vector<uint8_t>> a, b;
        for (uint32_t n = 0; n < nodes; ++n) {
            a.push_back(holds(like, n));
            b.push_back(holds(plan, n));
        }
        for (uint32_t x = 0; x < nodes; ++x)
            for (uint32_t y = 0; y < nodes; ++y)
                moved[size_t{x} * nodes + y] -=
                    std::inner_product(a[x].begin(), a[x].end(), b[y].begin(), 0);
    }
    return assignColumns(moved, nodes);
}

template <class T>
std::vector<T> rowsIn(const std::vector<T>& rows, const std::vector<uint32_t>& order) {
    const size_t width = rows.size() / order.size();
    std::vector<T> out;
    for (const uint32_t row : order)
        out.insert(out.end(), rows.begin() + static_cast<std::ptrdiff_t>(row * width),
                   rows.begin() + static_cast<std::ptrdiff_t>((row + 1) * width));
    return out;
}

/// Slots ascend in a Dispatch; its columns go with them.
Dispatch renumbered(const Dispatch& old, const std::vector<uint32_t>& slotNow,
                    const std::vector<uint32_t>& order) {
    std::vector<size_t> by(old.slots.size());
    std::iota(by.begin(), by.end(), 0);
    std::sort(by.begin(), by.end(),
              [&](size_t i, size_t j) { return slotNow[old.slots[i]] < slotNow[old.slots[j]]; });
    Dispatch made{old.expert, {}, {}};
    for (const size_t i : by) made.slots.push_back(slotNow[old.slots[i]]);
    for (const uint32_t row : order)
        for (const size_t i : by) made.weights.push_back(old.weights[row * by.size() + i]);
    return made;
}

/// Increase of the traffic cost when groups a and b exchange places.
double exchangeDelta(std::span<const double> traffic, std::span<const double> costs,
                     const std::vector<uint32_t>& place, size_t a, size_t b) {
    const size_t nodes = place.size();
    const auto flow = [&](size_t from, size_t to) { return traffic[from * nodes + to]; };
    const auto cost = [&](size_t from, size_t to) { return costs[from * nodes + to]; };
    const size_t atA = place[a], atB = place[b];
    double delta = (flow(a, b) - flow(b, a)) * (cost(atB, atA) - cost(atA, atB));
    for (size_t c = 0; c < nodes; ++c) {
        const size_t at = place[c];
        if (c != a && c != b)
            delta += (flow(a, c) - flow(b, c)) * (cost(atB, at) - cost(atA, at)) +
                     (flow(c, a) - flow(c, b)) * (cost(at, atB) - cost(at, atA));
    }
    return delta;
}

}  // namespace

std::vector<uint32_t> assignColumns(std::span<const double> costs, uint32_t size) {
    constexpr double kFar = std::numeric_limits<double>::infinity();
    // Row and column 0 stand for "none yet".
    std::vector<double> rowPrice(size + 1, 0), columnPrice(size + 1, 0);
    std::vector<uint32_t> rowOf(size + 1, 0), before(size + 1, 0);
    for (uint32_t row = 1; row <= size; ++row) {
        std::vector<double> least(size + 1, kFar);
        std::vector<uint8_t> done(size + 1, 0);
        uint32_t column = 0;
        rowOf[0] = row;
        do {
            done[column] = 1;
            const uint32_t at = rowOf[column];
            double step = kFar;
            uint32_t next = 0;
            for (uint32_t c = 1; c <= size; ++c) {
                if (done[c]) continue;
                const double cost =
                    costs[size_t{at - 1} * size + c - 1] - rowPrice[at] - columnPrice[c];
                if (cost < least[c]) {
                    least[c] = cost;
                    before[c] = column;
                }
                if (least[c] < step) {
                    step = least[c];
                    next = c;
                }
            }
            for (uint32_t c = 0; c <= size; ++c)
                if (done[c]) {
                    rowPrice[rowOf[c]] += step;
                    columnPrice[c] -= step;
                } else {
                    least[c] -= step;
                }
            column = next;
        } while (rowOf[column] != 0);
        for (; column != 0; column = before[column]) rowOf[column] = rowOf[before[column]];
    }
    std::vector<uint32_t> columnOf(size);
    for (uint32_t c = 1; c <= size; ++c) columnOf[rowOf[c] - 1] = c - 1;
    return columnOf;
}

std::vector<uint32_t> nearPlaces(std::span<const double> traffic, std::span<const double> costs,
                                 uint32_t nodes) {
    std::vector<uint32_t> place(nodes);
    std::iota(place.begin(), place.end(), 0);
    const double scale = std::accumulate(traffic.begin(), traffic.end(), 0.0) *
                         *std::max_element(costs.begin(), costs.end());
    for (;;) {
        double best = -kLeastSaving * scale;
        uint32_t bestA = 0, bestB = 0;
        for (uint32_t a = 0; a < nodes; ++a)
            for (uint32_t b = 0; b < a; ++b) {
                const double delta = exchangeDelta(traffic, costs, place, a, b);
                if (delta >= best) continue;
                best = delta;
                bestA = a;
                bestB = b;
            }
        if (bestA == bestB) return place;
        std::swap(place[bestA], place[bestB]);
    }
}

Plan numberedLike(const Plan& like, const Plan& plan) {
    const std::vector<uint32_t> order = matched(like, plan);
    const uint32_t perNode = plan.slots() / plan.topology.nodes();
    std::vector<uint32_t> slotNow(plan.slots());
    for (uint32_t now = 0; now < order.size(); ++now)
        for (uint32_t i = 0; i < perNode; ++i)
            slotNow[order[now] * perNode + i] = now * perNode + i;
    Plan made = plan;
    for (LayerPlan& layer : made.layers) {
        layer.expertOfSlot = rowsIn(layer.expertOfSlot, order);
        for (Dispatch& dispatch : layer.dispatch) dispatch = renumbered(dispatch, slotNow, order);
    }
    for (DomainHome& home : made.homes) home.share = rowsIn(home.share, order);
    return made;
}

}  // namespace bulkhead::planner
