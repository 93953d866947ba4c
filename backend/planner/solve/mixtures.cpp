// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/solve/mixtures.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/model/json.h"
#include "backend/model/names.h"

namespace bulkhead::planner {

namespace {

constexpr size_t kMostMixtures = 64;

uint32_t domainOfRange(const RoutingView& view, size_t range) {
    return view.routing->requests()[view.ranges[range].request].domain;
}

}  // namespace

Mixture recordedMixture(const RoutingView& view) {
    Mixture made(view.routing->domains().size(), 0);
    for (size_t r = 0; r < view.ranges.size(); ++r)
        made[domainOfRange(view, r)] += static_cast<double>(view.ranges[r].tokens);
    const double sum = std::accumulate(made.begin(), made.end(), 0.0);
    for (double& share : made) share /= std::max(sum, 1.0);
    return made;
}

std::vector<Mixture> worstMixtures(const RoutingView& view) {
    const Mixture all = recordedMixture(view);
    if (std::count(all.begin(), all.end(), 0.0) + 1 >= static_cast<ptrdiff_t>(all.size()))
        return {};
    std::vector<Mixture> made{all};
    for (size_t d = 0; d < all.size(); ++d) {
        if (all[d] == 0) continue;
        made.emplace_back(all.size(), 0.0)[d] = 1;
    }
    return made;
}

absl::StatusOr<std::vector<Mixture>> parseMixtures(std::string_view text, std::string_view file,
                                                   const RoutingView& view) {
    const auto refused = [&](auto&&... why) {
        return absl::InvalidArgumentError(model::concat(file, ": ", why...));
    };
    const std::string expected = model::concat("expected 1 to ", kMostMixtures,
                                               " mixtures as JSON, [{\"DOMAIN\": PART, ...}, ...]");
    const absl::StatusOr<model::Json> read = model::parseJson(text);
    if (!read.ok()) return refused(std::string(read.status().message()), "; ", expected);
    const model::Json& json = *read;
    if (!json.is_array() || json.empty() || json.size() > kMostMixtures) return refused(expected);
    const std::vector<std::string>& domains = view.routing->domains();
    const Mixture all = recordedMixture(view);
    std::vector<Mixture> made;
    for (const model::Json& object : json) {
        const size_t number = made.size();
        if (!object.is_object())
            return refused("mixture ", number, " is not an object of domains and their parts");
        Mixture& mixture = made.emplace_back(domains.size(), 0.0);
        for (const auto& [name, part] : object.items()) {
            const auto at = std::find(domains.begin(), domains.end(), name);
            if (at == domains.end() || all[static_cast<size_t>(at - domains.begin())] == 0)
                return refused("mixture ", number, ": the recording has no domain \"", name, "\"");
            const double value = part.is_number() ? part.get<double>() : -1;
            if (!(value >= 0 && std::isfinite(value)))
                return refused("mixture ", number, ": the part of \"", name,
                               "\" must be a number of 0 or more");
            mixture[static_cast<size_t>(at - domains.begin())] = value;
        }
        const double sum = std::accumulate(mixture.begin(), mixture.end(), 0.0);
        if (!(sum > 0 && std::isfinite(sum)))
            return refused("mixture ", number,
                           ": the parts must sum to more than 0, and to a number");
        for (double& share : mixture) share /= sum;
    }
    return made;
}

std::vector<double> weightsOf(const RoutingView& view, const Mixture& mixture) {
    const Mixture has = recordedMixture(view);
    double reached = 0;
    for (size_t d = 0; d < has.size(); ++d) reached += has[d] > 0 ? mixture[d] : 0;
    std::vector<double> weights(view.ranges.size(), 1.0);
    if (reached <= 0) return weights;
    for (size_t r = 0; r < weights.size(); ++r) {
        const uint32_t d = domainOfRange(view, r);
        weights[r] = mixture[d] / (has[d] * reached);
    }
    return weights;
}

}  // namespace bulkhead::planner
