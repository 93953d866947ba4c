// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/evaluate/migration.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "backend/planner/evaluate/evaluate.h"

namespace bulkhead::planner {

namespace {

/// The nearest GPU that holds an expert already: same node, else whatever link is fastest.
const Link& nearest(const Topology& topology, const std::vector<uint32_t>& holders, uint32_t node,
                    bool& across) {
    const Link* best = nullptr;
    for (uint32_t gpu : holders) {
        const uint32_t at = gpu / topology.gpusPerNode();
        const Link& link = topology.linkBetween(at, node);
        if (best && link.bytesPerSecond <= best->bytesPerSecond) continue;
        best = &link;
        across = at != node;
    }
    return *best;
}

}  // namespace

absl::StatusOr<Migration> migrationBetween(const Plan& from, const Plan& to, double expertBytes) {
    if (from.shape.layers != to.shape.layers || from.shape.experts != to.shape.experts ||
        from.topology.gpus() != to.topology.gpus())
        return absl::InvalidArgumentError(
            absl::StrCat("the plans differ in size: ", from.shape.layers, " layers x ",
                         from.shape.experts, " experts on ", from.topology.gpus(), " GPUs, and ",
                         to.shape.layers, " x ", to.shape.experts, " on ", to.topology.gpus()));
    Migration made;
    const double known =
        static_cast<double>(std::max(from.shape.expertBytes, to.shape.expertBytes));
    made.bytesAssumed = expertBytes <= 0 && known <= 0;
    if (expertBytes <= 0)
        expertBytes = known > 0 ? known : 3 * copyBytes(to.shape).bytes * kAssumedInner;
    const std::vector<uint32_t> gpuBefore = gpuOfSlots(from.firstSlot);
    const std::vector<uint32_t> gpuAfter = gpuOfSlots(to.firstSlot);
    std::vector<double> seconds(to.topology.gpus(), 0);
    for (uint32_t layer = 0; layer < to.shape.layers; ++layer) {
        std::vector<std::vector<uint32_t>> holders(to.shape.experts);
        for (uint32_t s = 0; s < from.slots(); ++s)
            holders[from.layers[layer].expertOfSlot[s]].push_back(gpuBefore[s]);
        std::vector<uint8_t> moved(to.shape.experts, 0);
        for (uint32_t s = 0; s < to.slots(); ++s) {
            const uint32_t expert = to.layers[layer].expertOfSlot[s], gpu = gpuAfter[s];
            std::vector<uint32_t>& at = holders[expert];
            if (std::find(at.begin(), at.end(), gpu) != at.end()) continue;
            bool across = false;
            const Link& link = nearest(to.topology, at, gpu / to.topology.gpusPerNode(), across);
            ++made.slots;
            made.experts += !moved[expert];
            moved[expert] = 1;
            made.bytes += expertBytes;
            made.bytesAcross += across ? expertBytes : 0;
            seconds[gpu] += link.seconds + expertBytes / link.bytesPerSecond;
        }
    }
    made.seconds = *std::max_element(seconds.begin(), seconds.end());
    return made;
}

Plan alignedTo(const Plan& from, Plan to) {
    if (from.firstSlot != to.firstSlot || from.layers.size() != to.layers.size()) return to;
    for (size_t layer = 0; layer < to.layers.size(); ++layer) {
        LayerPlan& after = to.layers[layer];
        const std::vector<uint32_t>& before = from.layers[layer].expertOfSlot;
        std::vector<uint32_t> newSlot(to.slots());
        for (size_t g = 0; g + 1 < to.firstSlot.size(); ++g) {
            const uint32_t first = to.firstSlot[g], last = to.firstSlot[g + 1];
            std::vector<uint8_t> taken(last - first, 0), placed(last - first, 0);
            for (uint32_t s = first; s < last; ++s)
                for (uint32_t t = first; t < last && !placed[s - first]; ++t)
                    if (!taken[t - first] && before[t] == after.expertOfSlot[s]) {
                        newSlot[s] = t;
                        taken[t - first] = placed[s - first] = 1;
                    }
            for (uint32_t s = first, t = first; s < last; ++s) {
                if (placed[s - first]) continue;
                while (taken[t - first]) ++t;
                newSlot[s] = t;
                taken[t - first] = 1;
            }
        }
        std::vector<uint32_t> experts(to.slots());
        for (uint32_t s = 0; s < to.slots(); ++s) experts[newSlot[s]] = after.expertOfSlot[s];
        after.expertOfSlot = std::move(experts);
        for (Dispatch& d : after.dispatch) {
            const size_t count = d.slots.size();
            std::vector<std::pair<uint32_t, size_t>> order;
            for (size_t i = 0; i < count; ++i) order.push_back({newSlot[d.slots[i]], i});
            std::sort(order.begin(), order.end());
            std::vector<double> weights(d.weights.size());
            for (size_t row = 0; row < d.weights.size(); row += count)
                for (size_t i = 0; i < count; ++i)
                    weights[row + i] = d.weights[row + order[i].second];
            for (size_t i = 0; i < count; ++i) d.slots[i] = order[i].first;
            d.weights = std::move(weights);
        }
    }
    return to;
}

}  // namespace bulkhead::planner
