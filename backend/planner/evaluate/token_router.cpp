// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/evaluate/token_router.h"

#include <algorithm>

namespace bulkhead::planner {

namespace {
/// Of choices that cost the same, the emptier node, then the emptier GPU.
constexpr double kNodeTie = 1e-3, kGpuTie = 1e-6;
}  // namespace

TokenRouter::TokenRouter(const Plan& plan, uint32_t layer, RouterPolicy policy)
    : policy_(policy),
      gpusPerNode_(plan.topology.gpusPerNode()),
      nodes_(plan.topology.nodes()),
      gpusOf_(plan.shape.experts),
      nodeLoad_(nodes_, 0),
      gpuLoad_(plan.topology.gpus(), 0),
      visited_(nodes_, 0) {
    const std::vector<uint32_t> gpuOf = gpuOfSlots(plan.firstSlot);
    const std::vector<uint32_t>& expertOfSlot = plan.layers[layer].expertOfSlot;
    for (uint32_t s = 0; s < expertOfSlot.size(); ++s) gpusOf_[expertOfSlot[s]].push_back(gpuOf[s]);
}

double TokenRouter::cost(uint32_t gpu, uint32_t home) const {
    const uint32_t node = gpu / gpusPerNode_;
    const double mean = load_ / nodes_;
    const double full = mean > 0 ? nodeLoad_[node] / mean : 0;
    return (visited_[node] != token_ ? policy_.sends : 0) + (node != home ? policy_.copies : 0) +
           policy_.price * (policy_.sends + policy_.copies) *
               std::max(0.0, full - policy_.loadAim) +
           kNodeTie * full + kGpuTie * gpuLoad_[gpu] / (mean + 1);
}

void TokenRouter::take(uint32_t gpu) {
    visited_[gpu / gpusPerNode_] = token_;
    nodeLoad_[gpu / gpusPerNode_] += 1;
    gpuLoad_[gpu] += 1;
    load_ += 1;
}

void TokenRouter::choose(uint32_t home, std::span<const uint16_t> experts,
                         std::span<uint32_t> gpus) {
    visited_[home] = ++token_;
    for (size_t k = 0; k < experts.size(); ++k)
        if (gpusOf_[experts[k]].size() == 1) take(gpus[k] = gpusOf_[experts[k]][0]);
    for (size_t k = 0; k < experts.size(); ++k) {
        const std::vector<uint32_t>& choices = gpusOf_[experts[k]];
        if (choices.size() == 1) continue;
        gpus[k] = choices[0];
        for (uint32_t gpu : choices)
            if (cost(gpu, home) < cost(gpus[k], home)) gpus[k] = gpu;
        take(gpus[k]);
    }
}

}  // namespace bulkhead::planner
