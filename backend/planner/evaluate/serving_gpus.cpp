// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/evaluate/serving_gpus.h"

namespace bulkhead::planner {

namespace {

uint64_t mixed(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

}  // namespace

ServingGpus::ServingGpus(const Plan& plan, uint32_t layer)
    : experts_(plan.shape.experts),
      layer_(layer),
      one_(size_t{plan.topology.nodes()} * experts_, kSeveral) {
    const std::vector<uint32_t> gpuOf = gpuOfSlots(plan.firstSlot);
    const LayerPlan& chosen = plan.layers[layer];
    std::vector<std::vector<uint32_t>> slots(experts_);
    for (uint32_t s = 0; s < chosen.expertOfSlot.size(); ++s)
        slots[chosen.expertOfSlot[s]].push_back(s);
    std::vector<const Dispatch*> dispatch(experts_, nullptr);
    for (const Dispatch& d : chosen.dispatch) dispatch[d.expert] = &d;
    several_.resize(one_.size());
    for (uint32_t home = 0; home < plan.topology.nodes(); ++home)
        for (uint32_t e = 0; e < experts_; ++e) {
            const size_t at = size_t{home} * experts_ + e, count = slots[e].size();
            double sum = 0;
            for (size_t i = 0; i < count; ++i) {
                const double weight = dispatch[e] ? dispatch[e]->weights[home * count + i]
                                                  : 1.0 / static_cast<double>(count);
                sum += weight;
                if (weight > 0) several_[at].push_back({sum, gpuOf[slots[e][i]]});
            }
            if (several_[at].size() == 1) one_[at] = several_[at][0].gpu;
        }
}

uint32_t ServingGpus::gpu(uint32_t home, uint32_t expert, uint64_t token) const {
    const size_t at = size_t{home} * experts_ + expert;
    if (one_[at] != kSeveral) return one_[at];
    const uint64_t hash = mixed(token * 0x9E3779B97F4A7C15ull + (uint64_t{layer_} << 32) + expert);
    const double draw = static_cast<double>(hash >> 11) * 0x1.0p-53;
    for (const Part& part : several_[at])
        if (draw < part.upTo) return part.gpu;
    return several_[at].back().gpu;
}

}  // namespace bulkhead::planner
