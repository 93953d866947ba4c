// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/planner/data/routing_view.h"

/// Mixtures of domains that a plan is to be good for, beside the recorded one. Pure; any thread.
namespace bulkhead::planner {

/// [domain of the routing] its share of the tokens; not negative, summing to 1.
using Mixture = std::vector<double>;

/// That of `view`.
[[nodiscard]] Mixture recordedMixture(const RoutingView& view);

/// Each domain that `view` has, alone, and the recorded mixture: the load of no mixture of them is
/// further from even than that of the worst of these. None when there is only one domain.
[[nodiscard]] std::vector<Mixture> worstMixtures(const RoutingView& view);

/// The array of a JSON file, each mixture an object of domains and their parts, in any unit:
/// [{"code": 3, "chat": 1}]. InvalidArgument, naming `file`, the mixture and the domain, when it is
/// something else, when `view` has no token of a domain, or a part is negative or all are 0.
[[nodiscard]] absl::StatusOr<std::vector<Mixture>> parseMixtures(std::string_view text,
                                                                 std::string_view file,
                                                                 const RoutingView& view);

/// [range of view] what each of its tokens counts for in `mixture`, 1 on average; of a domain that
/// `view` lacks nothing counts. All 1 when nothing would.
[[nodiscard]] std::vector<double> weightsOf(const RoutingView& view, const Mixture& mixture);

}  // namespace bulkhead::planner
