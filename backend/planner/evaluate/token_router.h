// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/planner/plan/plan.h"

namespace bulkhead::planner {

/// Weights of a router that prefers replicas on nodes which a token visits anyway.
struct RouterPolicy {
    double sends = 1;
    double copies = 0.02;
    double loadAim = 1.03;  ///< a node's load x mean above which it costs something
    double price = 5;       ///< of load above the aim, for each x mean, in sends and copies
};

/// Chooses replicas token by token, in one layer: a node that the token visits anyway (its home, or
/// that of an expert without choice) before a new one, and of equals the one with less load so far;
/// a node that is fuller than wished for costs the more the fuller it is. It knows the past only.
/// An expert's slots on one node take turns by their GPUs' load. Thread: one.
class TokenRouter {
  public:
    TokenRouter(const Plan& plan, uint32_t layer, RouterPolicy policy);

    /// GPU for each of the token's experts; `home` is a node.
    void choose(uint32_t home, std::span<const uint16_t> experts, std::span<uint32_t> gpus);

  private:
    double cost(uint32_t gpu, uint32_t home) const;
    void take(uint32_t gpu);

    RouterPolicy policy_;
    uint32_t gpusPerNode_, nodes_;
    std::vector<std::vector<uint32_t>> gpusOf_;  ///< [expert]
    std::vector<double> nodeLoad_, gpuLoad_;
    double load_ = 0;
    std::vector<uint64_t> visited_;  ///< [node] number of the last token there
    uint64_t token_ = 0;
};

}  // namespace bulkhead::planner
