// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/planner/data/counts.h"

namespace bulkhead::planner {

/// Constraints of a balanced placement. GPUs may differ in their number of slots (`slotsOfGpu`).
struct BalanceShape {
    uint32_t experts = 0;
    uint32_t nodes = 1;
    std::vector<uint32_t> slotsOfGpu;  ///< GPU by GPU, node by node; nodes divide their number
    /// Router groups that must stay whole on a node (hierarchical); 1: experts go anywhere. A
    /// multiple of `nodes` when more than 1, and then every node has as many slots as the others.
    uint32_t groups = 1;
};

/// InvalidArgument naming what does not divide or fit.
[[nodiscard]] absl::Status checkBalanceShape(const BalanceShape& shape);

/// Evens out the load of GPUs, one layer at a time: replicas go to whoever has most load for each
/// of its replicas, they are packed heaviest first, and then swaps relieve the fullest GPU while
/// any does. Load of an expert is taken to split evenly over its replicas. Keeps its scratch memory
/// between layers. Thread: one.
class Balancer {
  public:
    /// `shape` has been checked.
    /// Without `relieve` this is what EPLB does.
    explicit Balancer(BalanceShape shape, bool relieve = true);

    /// Expert of each slot, GPU by GPU. `load`: [expert], 0 or more.
    void balance(std::span<const double> load, std::span<uint32_t> expertOfSlot);

  private:
    void packGroups(std::span<const double> load);
    void replicate(std::span<const uint32_t> experts, uint32_t slots);
    void packItems(uint32_t firstGpu, uint32_t gpus);
    void relieve(uint32_t firstGpu, uint32_t gpus);
    bool relieveOnce(uint32_t firstGpu, uint32_t gpus);

    struct Item {
        float load;
        uint32_t expert;
    };
    BalanceShape shape_;
    bool relieves_;
    std::vector<uint32_t> firstSlot_;
    std::vector<uint32_t> expertsByNode_;  ///< all experts, node by node
    std::vector<float> load_;
    std::vector<uint32_t> replicas_;
    std::vector<Item> items_;
    std::vector<Item> slots_;
    std::vector<float> gpuLoad_;
    std::vector<uint32_t> heap_;
    std::vector<uint32_t> used_;
};

/// Packs items with loads into bins of given capacities (sum of capacities = items), as even as
/// heaviest-first and then swaps make it; bin of each item. For a node's experts over its GPUs.
[[nodiscard]] std::vector<uint32_t> packEvenly(std::span<const double> load,
                                               std::span<const uint32_t> capacity,
                                               bool relieve = true);

/// mean / max of the GPUs' load under an even split over replicas: 1 is perfect.
[[nodiscard]] double balancednessOf(std::span<const double> load,
                                    std::span<const uint32_t> expertOfSlot,
                                    std::span<const uint32_t> slotsOfGpu);

/// Upper bound on balancedness over all placements: the LP relaxation, in which a node's load
/// spreads freely over its GPUs, but no GPU carries less than the least that the heaviest replica
/// can (for whole groups: of each group with all of a node's replicas to itself). Hierarchical:
/// over the best packing of groups into nodes, found exactly when there are at most 3 million
/// packings to look at, else bounded by the mean and the largest group.
[[nodiscard]] double balanceBound(std::span<const double> load, const BalanceShape& shape);

}  // namespace bulkhead::planner
