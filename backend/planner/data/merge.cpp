// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/data/merge.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "backend/model/names.h"

namespace bulkhead::planner {
namespace {

using model::concat;

constexpr size_t kNamed = 4;  ///< sources that a joined recording names

absl::Status checkAlike(const Recording& first, const Recording& other) {
    const auto refuse = [&](const auto&... words) {
        return absl::InvalidArgumentError(
            concat(other.source, ": ", words..., " (", first.source, ")"));
    };
    const ModelShape &a = first.shape, &b = other.shape;
    if (a.layers != b.layers || a.experts != b.experts || a.topK != b.topK)
        return refuse(b.layers, " layers x ", b.experts, " experts, top ", b.topK,
                      ", which is another model than ", a.layers, " x ", a.experts, ", top ",
                      a.topK);
    if (first.routing.has_value() != other.routing.has_value())
        return refuse(other.routing ? "tokens, the first has counts only"
                                    : "counts only, the first has tokens");
    return absl::OkStatus();
}

absl::Status append(const Routing& from, RoutingBuilder& to) {
    std::vector<uint16_t> ids;
    for (const Request& request : from.requests())
        if (absl::Status ok = appendRequest(from, request, to, ids); !ok.ok()) return ok;
    return absl::OkStatus();
}

}  // namespace

absl::Status appendRequest(const Routing& from, const Request& request, RoutingBuilder& to,
                           std::vector<uint16_t>& ids) {
    to.beginRequest(request.id, from.domains()[request.domain]);
    ids.resize(request.tokens * from.shape().topK);
    for (uint32_t layer = 0; layer < from.shape().layers; ++layer) {
        from.readLayer(layer, request.firstToken, ids);
        if (absl::Status ok = to.addLayer(layer, ids); !ok.ok()) return ok;
    }
    if (request.prefillTokens) to.setPrefillTokens(*request.prefillTokens);
    return absl::OkStatus();
}

absl::StatusOr<Recording> merged(std::vector<Recording> recordings) {
    if (recordings.empty()) return absl::InvalidArgumentError("there is no recording");
    if (recordings.size() == 1) return std::move(recordings[0]);
    for (const Recording& other : recordings)
        if (absl::Status ok = checkAlike(recordings[0], other); !ok.ok()) return ok;
    Recording out;
    out.shape = recordings[0].shape;
    for (size_t i = 0; i < std::min(recordings.size(), kNamed); ++i)
        out.source += concat(i > 0 ? "; " : "", recordings[i].source);
    if (recordings.size() > kNamed)
        out.source += concat("; and ", recordings.size() - kNamed, " more");
    const bool byToken = recordings[0].routing.has_value();
    auto builder = RoutingBuilder::create(out.shape);
    if (byToken && !builder.ok()) return builder.status();
    for (Recording& one : recordings) {
        for (const std::string& note : one.notes)
            out.notes.push_back(concat(one.source, ": ", note));
        if (byToken)
            if (absl::Status ok = append(*one.routing, *builder); !ok.ok()) return ok;
        std::move(one.windows.begin(), one.windows.end(), std::back_inserter(out.windows));
        std::move(one.balance.begin(), one.balance.end(), std::back_inserter(out.balance));
        one.routing.reset();
    }
    if (byToken) {
        auto routing = builder->finish();
        if (!routing.ok()) return routing.status();
        out.routing = *std::move(routing);
    }
    return out;
}

}  // namespace bulkhead::planner
