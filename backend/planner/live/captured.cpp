// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/live/captured.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"

namespace bulkhead::planner {

absl::StatusOr<Recording> captured(const model::RunState& job,
                                   const std::vector<RoutedSample>& samples) {
    Recording out;
    out.shape.name = job.model.name;
    out.shape.layers = job.model.moeLayers;
    out.shape.experts = job.model.experts;
    out.shape.topK = job.model.topK;
    out.shape.layerNumbers = job.model.mixtureLayers;
    out.source = absl::StrCat("live job ", job.spec.name);
    auto builder = RoutingBuilder::create(out.shape);
    if (!builder.ok()) return builder.status();
    const size_t choices = size_t{out.shape.layers} * out.shape.topK;
    std::vector<uint16_t> ids;
    for (const RoutedSample& sample : samples) {
        const std::string name =
            absl::StrCat("sample ", sample.sample, " of domain ", sample.domain);
        if (sample.domain >= job.spec.domains.size() || sample.experts.size() % choices != 0)
            return absl::InvalidArgumentError(absl::StrCat(
                name, " has ", sample.experts.size(), " choices; expected a multiple of ", choices,
                " and a domain below ", job.spec.domains.size()));
        ids.clear();
        // Ids above 16 bits become the largest id, which is refused like every id out of range.
        for (const uint32_t expert : sample.experts)
            ids.push_back(static_cast<uint16_t>(
                std::min<uint32_t>(expert, std::numeric_limits<uint16_t>::max())));
        builder->beginRequest(absl::StrCat(sample.sample), job.spec.domains[sample.domain].name);
        if (absl::Status s = builder->addTokens(ids); !s.ok())
            return absl::InvalidArgumentError(absl::StrCat(name, ": ", std::string(s.message())));
    }
    auto routing = builder->finish();
    if (!routing.ok()) return routing.status();
    out.routing = *std::move(routing);
    return out;
}

}  // namespace bulkhead::planner
