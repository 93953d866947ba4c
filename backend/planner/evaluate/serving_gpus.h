// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "backend/planner/plan/plan.h"

namespace bulkhead::planner {

/// For every home and expert of one layer, which GPU serves: the one, or several by cumulated
/// dispatch weight and a hash of token, layer and expert. Thread: a value.
class ServingGpus {
  public:
    ServingGpus(const Plan& plan, uint32_t layer);

    uint32_t gpu(uint32_t home, uint32_t expert, uint64_t token) const;

  private:
    static constexpr uint32_t kSeveral = UINT32_MAX;
    struct Part {
        double upTo;
        uint32_t gpu;
    };
    uint32_t experts_;
    uint32_t layer_;
    std::vector<uint32_t> one_;  ///< nodes x experts
    std::vector<std::vector<Part>> several_;
};

}  // namespace bulkhead::planner
