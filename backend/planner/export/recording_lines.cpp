// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/export/recording_lines.h"

#include <string>
#include <vector>

#include "backend/model/json.h"
#include "backend/model/names.h"

namespace bulkhead::planner {
namespace {

using model::concat;
using Json = nlohmann::json;

/// "[[[0,1],[3,2]],...]" of one request; JSON values would take ten times the memory.
std::string idsOf(const Routing& routing, const Request& request) {
    const ModelShape& shape = routing.shape();
    std::vector<std::vector<uint16_t>> layers(shape.layers);
    for (uint32_t layer = 0; layer < shape.layers; ++layer) {
        layers[layer].resize(request.tokens * shape.topK);
        routing.readLayer(layer, request.firstToken, layers[layer]);
    }
    std::string out = "[";
    for (uint64_t t = 0; t < request.tokens; ++t) {
        out += t > 0 ? ",[" : "[";
        for (uint32_t layer = 0; layer < shape.layers; ++layer) {
            out += layer > 0 ? ",[" : "[";
            for (uint32_t k = 0; k < shape.topK; ++k)
                out += concat(k > 0 ? "," : "", layers[layer][t * shape.topK + k]);
            out += ']';
        }
        out += ']';
    }
    return out + "]";
}

/// The model in a first line; what is not known is left out.
Json headOf(const ModelShape& shape) {
    Json head = {{"layers", shape.layers}, {"experts", shape.experts}};
    if (shape.topK > 0) head["top_k"] = shape.topK;
    if (!shape.name.empty()) head["model"] = shape.name;
    if (!shape.layerNumbers.empty()) head["layer_numbers"] = shape.layerNumbers;
    if (shape.hidden > 0) head["hidden"] = shape.hidden;
    if (shape.expertBytes > 0) head["expert_bytes"] = shape.expertBytes;
    if (shape.routerGroups > 1) {
        head["router_groups"] = shape.routerGroups;
        head["groups_per_token"] = shape.groupsPerToken;
    }
    return head;
}

void writeRouting(const Routing& routing, std::ostream& out) {
    out << model::dumpJson({{"routing", headOf(routing.shape())}}) << '\n';
    for (const Request& request : routing.requests()) {
        Json line = Json::object();
        if (!request.id.empty()) line["id"] = request.id;
        const std::string& domain = routing.domains()[request.domain];
        if (!domain.empty()) line["domain"] = domain;
        if (request.prefillTokens) line["prefill"] = *request.prefillTokens;
        std::string text = model::dumpJson(line);
        text.pop_back();
        out << text << (line.empty() ? "" : ",") << "\"experts\":" << idsOf(routing, request)
            << "}\n";
    }
}

void writeWindows(const Recording& recording, std::ostream& out) {
    out << model::dumpJson({{"counts_of", headOf(recording.shape)}}) << '\n';
    for (const CountsWindow& window : recording.windows) {
        Json line = {{"label", window.label}};
        if (!window.domain.empty()) line["domain"] = window.domain;
        if (window.phase != Phase::kUnknown)
            line["phase"] = window.phase == Phase::kPrefill ? "prefill" : "decode";
        Json& rows = line["counts"] = Json::array();
        for (uint32_t layer = 0; layer < window.counts.layers(); ++layer) {
            const auto row = window.counts.row(layer);
            rows.push_back(std::vector<uint64_t>(row.begin(), row.end()));
        }
        out << model::dumpJson(line) << '\n';
    }
}

}  // namespace

absl::Status writeLines(const Recording& recording, std::ostream& out) {
    if (recording.routing)
        writeRouting(*recording.routing, out);
    else if (!recording.windows.empty())
        writeWindows(recording, out);
    else
        return absl::FailedPreconditionError(
            concat(recording.source,
                   ": it has neither tokens nor counts to write; import a "
                   "recording of routing"));
    return absl::OkStatus();
}

}  // namespace bulkhead::planner
