// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/planner/solve/random.h"

namespace bulkhead::planner {

/// One layer as a search sees it. A unit is what is placed whole: an expert, or a router group.
struct LayerProblem {
    uint32_t nodes = 0;
    uint32_t units = 0;
    uint32_t perToken = 0;       ///< ids of a token; kNoUnit fills up
    std::vector<uint16_t> ids;   ///< tokens x perToken
    std::vector<uint16_t> home;  ///< [token] node
    std::vector<double> load;    ///< [unit] tokens of the whole recording
    /// nodes x nodes, from home: what a send counts, in parts of kSend; empty: one send everywhere.
    std::vector<int32_t> sendCost = {};
    /// scenarios x units: loads for each of which the cap is to be kept, instead of `load`; each in
    /// nodes' means, so that it sums to `nodes`. Without replicas only; empty: `load` alone.
    std::vector<float> scenarios = {};
    static constexpr int32_t kSend = 16;
    static constexpr uint16_t kNoUnit = 0xFFFF;

    uint32_t tokens() const { return static_cast<uint32_t>(home.size()); }
};

/// Objective of the search: per token, sends (each as LayerProblem::sendCost says) x `sends` +
/// copies x `copies`, plus penalties for nodes whose load exceeds `loadCap` x mean (mean over
/// scenarios), plus `move` for each unit at a node where it was not.
struct LayerGoal {
    double sends = 1;
    double copies = 0;
    double loadCap = 1.15;
    double loadWeight = 1;  ///< price of a copy of load above the cap, in sends
    double move = 0;        ///< in sends of the whole layer per token
    /// Limit, x mean, on the load of units that a node alone holds, at the same price: the rest can
    /// be served elsewhere when new requests ask for other experts.
    double aloneCap = INFINITY;
};

/// Units of every node, and for each view (one, or one for each home when there are replicas) the
/// node that tokens of that home use for each unit.
struct NodePlacement {
    std::vector<std::vector<uint16_t>> unitsOfNode;
    std::vector<uint8_t> route;  ///< views x units
    bool operator==(const NodePlacement&) const = default;
};

/// Nodes from `unitsOfNode` alone: home where it has the unit, else the replica with the least
/// load.
[[nodiscard]] NodePlacement routed(std::vector<std::vector<uint16_t>> unitsOfNode,
                                   const LayerProblem& problem);

/// Annealing over swaps of units between nodes, replacement of replicas and re-routing. Every table
/// that a proposal reads is kept up to date move by move, so that a proposal that cannot be
/// accepted is turned down without looking at a token. At most 255 nodes. Thread: one.
class LayerSearch {
  public:
    /// `problem` must outlive the search. `start` has each unit at least once and no unit twice on
    /// one node. The homes of `problem` may change between calls; call reload() then.
    LayerSearch(const LayerProblem& problem, LayerGoal goal, NodePlacement start);

    void reload();
    void setGoal(const LayerGoal& goal) { goal_ = goal; }

    /// `proposals` moves while the temperature falls geometrically from `hot` to `cold` (sends per
    /// token); 0 and 0: only improvements. Leaves the best state seen.
    void anneal(uint64_t proposals, double hot, double cold, Random& random);

    /// Sweeps over all units, each swapped with whichever unit of another node gains most, until
    /// nothing improves or `sweeps` are done. Looks at a pair at a fraction of what a proposal
    /// costs: for searches too short to propose every pair. Without replicas only.
    void descend(uint32_t sweeps, Random& random);

    const NodePlacement& placement() const { return at_; }
    double sendsPerToken() const;  ///< each as sendCost says
    double copiesPerToken() const;
    double loadMaxOverMean() const;
    /// The minimised value, penalties included.
    double value() const { return value_; }
    /// The best value of the last anneal(), accumulated move by move.
    double lastCarriedValue() const { return bestValue_; }

  private:
    struct Shift {
        uint32_t view = 0, unit = 0;
        uint8_t from = 0, to = 0;
        double delta = 0;
    };
    struct Change {
        uint32_t nodeA = 0, slotA = 0, unitA = 0;
        uint32_t nodeB = 0, slotB = 0, unitB = 0;
        bool swaps = false;  ///< else unitA's replica on nodeA is replaced by unitB
    };

    void reloadTokens();
    double sendWeight() const {
        return problem_.sendCost.empty() ? goal_.sends : goal_.sends / LayerProblem::kSend;
    }
    bool holds(uint32_t unit, uint32_t node) const { return holds_[unit * problem_.nodes + node]; }
    double shiftDelta(uint32_t view, uint32_t unit, uint32_t to) const;
    void addShift(uint32_t view, uint32_t unit, uint32_t to);
    void leave(uint32_t view, uint32_t unit, uint32_t gone, int arriving);
    void arrive(uint32_t view, uint32_t unit, uint32_t node);
    bool proposeSwap(Random& random);
    bool proposeReplace(Random& random);
    bool proposeReroute(Random& random);
    /// Of load above a cap, in means: the more the further it is.
    double price(double over) const {
        constexpr double kSteeper = 5;
        return goal_.loadWeight * problem_.perToken / problem_.nodes *
               (over + kSteeper * over * over);
    }
    double penalty(double load, double cap) const;
    double nodePenalty(uint32_t node, uint32_t out, uint32_t in) const;
    void noteScenarios();
    double aloneDelta();
    double loadDelta() const;
    double moveDelta() const;
    double correction() const;
    double pairCorrection(const Shift& a, const Shift& b) const;
    void apply();
    void applyShift(const Shift& shift);
    void keepBest();
    bool propose(Random& random);
    bool swapBest(uint32_t unit);

    const LayerProblem& problem_;
    LayerGoal goal_;
    NodePlacement at_;
    NodePlacement best_;
    double value_ = 0;
    double bestValue_ = 0;
    uint32_t views_ = 1;
    bool replicas_ = false;
    double meanLoad_ = 0;
    std::vector<int32_t> cost_;           ///< nodes x nodes: of a send; 0 on the diagonal
    std::vector<uint8_t> holds_;          ///< units x nodes
    std::vector<uint8_t> heldAtStart_;    ///< units x nodes
    std::vector<uint32_t> copies_;        ///< [unit] replicas
    std::vector<uint8_t> onNode_;         ///< tokens x nodes: units of the token there
    std::vector<uint32_t> postingStart_;  ///< views x units + 1
    std::vector<uint32_t> postings_;
    std::vector<int32_t> leaves_;  ///< views x units: cost of the sends that only it asks for
    std::vector<int32_t> enters_;  ///< views x units x nodes: cost of the sends it would add there
    std::vector<int32_t> homeCount_;  ///< nodes x units: copies by home
    std::vector<double> viewLoad_;    ///< views x units
    std::vector<double> nodeLoad_;
    uint32_t scenarios_ = 1;           ///< of load; 1 with replicas
    std::vector<double> part_;         ///< units x scenarios, in nodes' means
    std::vector<double> full_;         ///< nodes x scenarios, the same of a node's units
    std::vector<double> nodePenalty_;  ///< [node] without replicas
    std::vector<double> aloneLoad_;    ///< [node] of units that no other node holds
    std::vector<double> aloneShift_;   ///< of the proposal
    std::vector<Shift> shifts_;        ///< of the proposal
    Change change_;
    bool hasChange_ = false;
};

}  // namespace bulkhead::planner
