// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/common/fields.h"
#include "backend/planner/data/routing_view.h"
#include "backend/planner/evaluate/latency.h"
#include "backend/planner/plan/plan.h"

namespace bulkhead::planner {

/// A server that replays recorded requests. A request arrives; the router looks at its prefix (its
/// prefill) and picks the node where it costs least among those whose queue and work are at most
/// `homeCap` x mean; there it waits for a place, is prefilled in its first step, and then gives one
/// token a step. All nodes step together (one exchange for a layer spans them all).
struct ServingOptions {
    double requestsPerSecond = 50;  ///< Poisson, in recorded order
    uint32_t placesPerNode = 64;    ///< requests a node serves at once
    double prefix = 0.3;
    double homeCap = 1.15;
    double sends = 1, copies = 0.02;  ///< weights of the router
    StepModel step;                   ///< `tokens` is not used: a step has the tokens it has
    double overheadSeconds = 1e-3;    ///< of a step besides the experts and their exchanges
    uint64_t seed = 1;
};

struct ServingOutcome {
    uint64_t requests = 0;
    uint64_t outputTokens = 0;
    uint64_t steps = 0;
    double seconds = 0;
    double bytesPerOutputToken = 0;    ///< between nodes, dispatch and combine, prefill included
    double secondsPerOutputToken = 0;  ///< mean time of a step in which a token was given
    double secondsPerOutputTokenP95 = 0;
    double paddedSecondsPerOutputToken = 0;  ///< were every message as large as the largest
    double queueSeconds = 0;                 ///< mean wait of a request for its place
    double queueSecondsP95 = 0;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("requests", self.requests);
        visit("output_tokens", self.outputTokens);
        visit("steps", self.steps);
        visit("seconds", self.seconds);
        visit("bytes_per_output_token", self.bytesPerOutputToken);
        visit("seconds_per_output_token", self.secondsPerOutputToken);
        visit("seconds_per_output_token_p95", self.secondsPerOutputTokenP95);
        visit("padded_seconds_per_output_token", self.paddedSecondsPerOutputToken);
        visit("queue_seconds", self.queueSeconds);
        visit("queue_seconds_p95", self.queueSecondsP95);
    }
};

/// InvalidArgument when the recording does not fit the plan, has no request of two tokens, or an
/// option is not positive. Deterministic for a seed. Thread: any.
[[nodiscard]] absl::StatusOr<ServingOutcome> simulateServing(const RoutingView& view,
                                                             const Plan& plan,
                                                             const ServingOptions& options);

}  // namespace bulkhead::planner
