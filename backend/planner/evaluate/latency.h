// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/common/fields.h"
#include "backend/planner/evaluate/evaluate.h"

namespace bulkhead::planner {

/// Parameters of the cost model of a decode step. The model is ours:
/// exchange: alpha-beta. Every node sends to every other node it has something for at once, over
/// all its GPUs' links: latency of the slowest pair, plus bytes of each pair over that pair's
/// bandwidth, summed over the pairs of the busiest node (out or in). Twice: dispatch and combine.
/// padded: the same with every message as large as the largest.
/// experts: the slowest GPU, by tokens (compute bound) or by activated experts (weights read).
struct StepModel {
    double tokens = 4096;  ///< in flight on all GPUs together in one step
    double bytesPerCopy = 4096;
    double expertBytes = 0;               ///< weights of an expert; 0: 3 x bytesPerCopy x 1,408
    double readBytesPerSecond = 3.35e12;  ///< HBM of an H100
    double flopsPerSecond = 4.9e14;       ///< half of an H100's BF16 peak
    bool deduplicated = true;             ///< one message a node, not one an expert
};

/// Seconds of one step, all layers, and where they go.
struct StepTime {
    double exchangeSeconds = 0;
    double exchangePaddedSeconds = 0;
    double expertSecondsByTokens = 0;
    double expertSecondsByActivated = 0;
    /// Exchange plus the slower of the two expert times.
    double stepSeconds = 0;
    double stepPaddedSeconds = 0;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("exchange_seconds", self.exchangeSeconds);
        visit("exchange_padded_seconds", self.exchangePaddedSeconds);
        visit("expert_seconds_by_tokens", self.expertSecondsByTokens);
        visit("expert_seconds_by_activated", self.expertSecondsByActivated);
        visit("step_seconds", self.stepSeconds);
        visit("step_padded_seconds", self.stepPaddedSeconds);
    }
};

/// One exchange (dispatch or combine, they are alike): `load`: nodes x nodes, activations from node
/// to node. Seconds plain and padded. Pure; any thread.
struct ExchangeTime {
    double plain = 0;
    double padded = 0;
};
[[nodiscard]] ExchangeTime exchangeTime(std::span<const double> load, const Topology& topology,
                                        double bytes);

/// Predicted time of a decode step whose tokens behave like those of `layers`. Activated experts
/// are those expected on a GPU when `tokens` are drawn from its measured load.
[[nodiscard]] StepTime predictStep(const std::vector<LayerOutcome>& layers, const Plan& plan,
                                   const StepModel& model);

}  // namespace bulkhead::planner
