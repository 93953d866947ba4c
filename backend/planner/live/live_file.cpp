// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/live/live_file.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace bulkhead::planner {

absl::StatusOr<Plan> fileOf(const LiveJob& job, const model::ModelInfo& model,
                            const std::vector<int32_t>& expertShard,
                            const std::vector<uint32_t>& domainShare) {
    Plan plan;
    plan.shape.name = model.name;
    plan.shape.layers = job.counts.layers;
    plan.shape.experts = job.counts.experts;
    plan.shape.topK = model.topK;
    plan.shape.expertBytes = job.expertBytes;
    plan.shape.layerNumbers = model.mixtureLayers;
    plan.topology = flatTopology(job.shards, 1);
    for (uint32_t l = 0; l < job.counts.layers; ++l) {
        std::vector<std::vector<uint32_t>> held(job.shards);
        for (uint32_t e = 0; e < job.counts.experts; ++e)
            held[static_cast<size_t>(expertShard[size_t{l} * job.counts.experts + e])].push_back(e);
        std::vector<uint32_t> first{0};
        LayerPlan layer;
        for (const std::vector<uint32_t>& experts : held) {
            layer.expertOfSlot.insert(layer.expertOfSlot.end(), experts.begin(), experts.end());
            first.push_back(static_cast<uint32_t>(layer.expertOfSlot.size()));
        }
        if (l == 0) plan.firstSlot = first;
        for (uint32_t s = 0; s < job.shards; ++s)
            if (first[s + 1] - first[s] != plan.firstSlot[s + 1] - plan.firstSlot[s])
                return absl::InvalidArgumentError(absl::StrCat(
                    "shard ", s, " holds ", first[s + 1] - first[s], " experts of mixture ", l,
                    " and ", plan.firstSlot[s + 1] - plan.firstSlot[s],
                    " of the first; a plan file gives a shard as many in every layer"));
        plan.layers.push_back(std::move(layer));
    }
    for (const DomainHomeRow& home : planWith(job, expertShard, domainShare).preview.homes)
        plan.homes.push_back({home.domain, home.share});
    plan.origin.algorithm = "live";
    plan.origin.objective = "copies";
    plan.origin.source = absl::StrCat("a running job, step ", job.step);
    for (const double n : job.counts.values)
        plan.origin.tokens += static_cast<uint64_t>(std::llround(n));
    if (const uint64_t copies = uint64_t{model.topK} * job.counts.layers; copies > 0)
        plan.origin.tokens /= copies;
    if (absl::Status s = checkPlan(plan); !s.ok()) return s;
    return plan;
}

}  // namespace bulkhead::planner
