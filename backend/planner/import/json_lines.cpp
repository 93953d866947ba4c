// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/import/json_lines.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "backend/model/names.h"
#include "backend/planner/import/json_fields.h"
#include "backend/planner/import/layers.h"
#include "backend/planner/import/refusal.h"
#include "backend/planner/import/returned_routing.h"
#include "backend/planner/import/routed_array.h"

namespace bulkhead::planner {
namespace {

using model::concat;

struct Line {
    size_t number = 0;
    Json json;
};

absl::StatusOr<std::deque<Line>> linesOf(std::string_view bytes, std::string_view file) {
    std::deque<Line> out;
    size_t number = 0;
    for (size_t at = 0; at < bytes.size();) {
        const size_t end = std::min(bytes.find('\n', at), bytes.size());
        const std::string_view text = bytes.substr(at, end - at);
        at = end + 1;
        ++number;
        if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
        auto json = parseJsonFile(text, concat(file, ":", number));
        if (!json.ok()) return json.status();
        if (!json->is_object()) return refuse(concat(file, ":", number), "expected a JSON object");
        out.push_back({number, *std::move(json)});
    }
    if (out.empty()) return refuse(file, "there is no line in it");
    return out;
}

/// Reads the model's shape from a file's first line. Counts need not say top_k.
ModelShape shapeOf(const Json& head, const std::string& path, JsonFields& fields) {
    const auto number = [&](const char* key, uint64_t least, uint64_t most) {
        return static_cast<uint32_t>(fields.count(head, key, path, least, most));
    };
    ModelShape shape;
    if (has(head, "model")) shape.name = fields.text(head, "model", path);
    shape.layers = number("layers", 1, kMostLayers);
    shape.experts = number("experts", 1, kMostExperts);
    if (has(head, "top_k")) shape.topK = number("top_k", 1, kMostExperts);
    if (has(head, "hidden")) shape.hidden = number("hidden", 1, UINT32_MAX);
    if (has(head, "expert_bytes"))
        shape.expertBytes = fields.count(head, "expert_bytes", path, 1, kMostCount);
    if (has(head, "router_groups")) {
        shape.routerGroups = number("router_groups", 1, kMostExperts);
        shape.groupsPerToken = number("groups_per_token", 1, kMostExperts);
    }
    if (!has(head, "layer_numbers")) return shape;
    const Json& numbers = fields.array(head, "layer_numbers", path);
    for (size_t i = 0; i < numbers.size(); ++i)
        shape.layerNumbers.push_back(static_cast<uint32_t>(fields.countOf(
            numbers[i], concat(path, ".layer_numbers[", i, "]"), 0, kMostLayers - 1)));
    return shape;
}

/// Our own form, line by line.
absl::StatusOr<Recording> readRequests(const std::deque<Line>& lines, std::string_view file,
                                       const ImportOptions& options) {
    JsonFields fields(concat(file, ":", lines[0].number));
    const Json& head = fields.object(lines[0].json, "routing", "");
    const ModelShape shape = shapeOf(head, "routing", fields);
    fields.count(head, "top_k", "routing", 1, kMostExperts);
    if (!fields.ok()) return fields.status();
    auto builder = RoutingBuilder::create(shape);
    if (!builder.ok())
        return refuse(concat(file, ":", lines[0].number), std::string(builder.status().message()));
    std::vector<uint16_t> ids;
    for (size_t i = 1; i < lines.size(); ++i) {
        const Json& line = lines[i].json;
        const std::string where = concat(file, ":", lines[i].number);
        JsonFields row(where);
        const Json& experts = row.array(line, "experts", "");
        const std::string id = has(line, "id") ? row.text(line, "id", "") : "";
        const std::string domain =
            has(line, "domain") ? row.text(line, "domain", "") : options.domain;
        if (!row.ok()) return row.status();
        builder->beginRequest(id, domain);
        if (has(line, "prefill"))
            builder->setPrefillTokens(row.count(line, "prefill", "", 0, experts.size()));
        if (!row.ok()) return row.status();
        const auto array = routedArray(experts, {}, concat(where, ": experts"));
        if (!array.ok()) return array.status();
        if (array->tokens > 0 && (array->layers != shape.layers || array->k != shape.topK))
            return refuse(where, concat("experts: ", array->layers, " layers x ", array->k,
                                        ", the first line says ", shape.layers, " x ", shape.topK));
        const std::vector<int64_t> wide(array->ids.begin(), array->ids.end());
        const uint64_t perToken = uint64_t{shape.layers} * shape.topK;
        absl::Status ok = narrowIds(wide, shape.experts, ids, [&](size_t n) {
            return concat(where, ": experts[", n / perToken, "][", n % perToken / shape.topK, "][",
                          n % shape.topK, "]");
        });
        if (!ok.ok()) return ok;
        ok = builder->addTokens(ids);
        if (!ok.ok()) return refuse(where, std::string(ok.message()));
    }
    auto routing = builder->finish();
    if (!routing.ok()) return refuse(file, std::string(routing.status().message()));
    Recording out;
    out.shape = shape;
    out.source = concat(file, ", requests as JSON Lines");
    out.notes.push_back("Expert ids are taken as logical and layers as MoE layers.");
    out.routing = *std::move(routing);
    return out;
}

absl::StatusOr<Recording> readCounts(const std::deque<Line>& lines, std::string_view file,
                                     const ImportOptions& options) {
    Recording out;
    const bool headed = lines[0].json.contains("counts_of");
    if (headed) {
        JsonFields fields(concat(file, ":", lines[0].number));
        out.shape = shapeOf(fields.object(lines[0].json, "counts_of", ""), "counts_of", fields);
        if (!fields.ok()) return fields.status();
        if (lines.size() == 1) return refuse(file, "there are no counts after the first line");
    }
    for (size_t i = headed ? 1 : 0; i < lines.size(); ++i) {
        const Line& line = lines[i];
        JsonFields fields(concat(file, ":", line.number));
        const Json& rows = fields.array(line.json, "counts", "");
        if (!fields.ok()) return fields.status();
        CountsWindow window;
        window.label = has(line.json, "label") ? fields.text(line.json, "label", "")
                                               : concat("line ", line.number);
        window.domain =
            has(line.json, "domain") ? fields.text(line.json, "domain", "") : options.domain;
        const std::string phase =
            has(line.json, "phase") ? fields.text(line.json, "phase", "") : "";
        if (phase == "prefill")
            window.phase = Phase::kPrefill;
        else if (phase == "decode")
            window.phase = Phase::kDecode;
        else if (!phase.empty())
            fields.refuse("phase", "prefill or decode", &line.json["phase"]);
        if (out.windows.empty() && !headed) {
            out.shape.layers = static_cast<uint32_t>(std::min<size_t>(rows.size(), kMostLayers));
            out.shape.experts =
                rows.empty() || !rows[0].is_array()
                    ? 0
                    : static_cast<uint32_t>(std::min<size_t>(rows[0].size(), kMostExperts));
        }
        if (rows.size() != out.shape.layers || out.shape.layers == 0 || out.shape.experts == 0)
            fields.refuse("counts", "[layer][expert], as many as in the first line", &rows);
        if (!fields.ok()) return fields.status();
        window.counts = Counts(out.shape.layers, out.shape.experts);
        for (uint32_t layer = 0; layer < out.shape.layers; ++layer) {
            const std::string place = concat("counts[", layer, "]");
            if (!rows[layer].is_array() || rows[layer].size() != out.shape.experts)
                fields.refuse(place, concat(out.shape.experts, " counts"), &rows[layer]);
            if (!fields.ok()) return fields.status();
            for (uint32_t e = 0; e < out.shape.experts; ++e)
                window.counts.row(layer)[e] =
                    fields.countOf(rows[layer][e], concat(place, "[", e, "]"), 0, kMostCount);
        }
        if (!fields.ok()) return fields.status();
        out.windows.push_back(std::move(window));
    }
    out.source = concat(file, ", counts as JSON Lines");
    out.notes.push_back("Expert ids are taken as logical and layers as MoE layers.");
    return out;
}

/// One request of a tracer: ids by (token, layer).
struct Traced {
    std::map<std::pair<uint64_t, uint32_t>, std::vector<uint32_t>> rows;
};

absl::StatusOr<Recording> writeTraced(const std::vector<std::pair<std::string, Traced>>& requests,
                                      std::string_view file, const ImportOptions& options) {
    std::map<uint32_t, uint32_t> layers;
    uint32_t topK = 0, largest = 0;
    for (const auto& [id, traced] : requests)
        for (const auto& [place, ids] : traced.rows) {
            layers.emplace(place.second, 0);
            if (topK == 0) topK = static_cast<uint32_t>(ids.size());
            for (const uint32_t e : ids) largest = std::max(largest, e);
        }
    Recording out;
    for (auto& [number, row] : layers) {
        row = out.shape.layers++;
        out.shape.layerNumbers.push_back(number);
    }
    out.shape.topK = topK;
    out.shape.experts =
        options.model && options.model->experts > largest ? options.model->experts : largest + 1;
    auto builder = RoutingBuilder::create(out.shape);
    if (!builder.ok()) return refuse(file, std::string(builder.status().message()));
    std::vector<uint16_t> ids;
    for (const auto& [id, traced] : requests) {
        const std::string where = concat(file, ": request ", model::shortened(id, 40));
        if (traced.rows.size() % out.shape.layers != 0)
            return refuse(where, "not every token has every layer");
        builder->beginRequest(id, options.domain);
        uint32_t row = 0;
        uint64_t token = 0;
        for (const auto& [place, experts] : traced.rows) {
            if (row == 0) token = place.first;
            if (place.first != token || layers.at(place.second) != row || experts.size() != topK)
                return refuse(where,
                              concat("token ", place.first, ", layer ", place.second,
                                     ": not every token has every layer and ", topK, " experts"));
            ids.assign(experts.begin(), experts.end());
            if (absl::Status ok = builder->addLayer(row, ids); !ok.ok())
                return refuse(where, std::string(ok.message()));
            row = (row + 1) % out.shape.layers;
        }
    }
    auto routing = builder->finish();
    if (!routing.ok()) return refuse(file, std::string(routing.status().message()));
    out.source = concat(file, ", a token and layer a line");
    out.notes.push_back(concat("Layers are numbered as the tracer did (",
                               out.shape.layerNumbers.front(), "..", out.shape.layerNumbers.back(),
                               "); ids are taken as logical; ", out.shape.experts, " experts",
                               options.model ? "." : " is one more than the largest id."));
    out.routing = *std::move(routing);
    return out;
}

absl::StatusOr<Recording> readTraced(const std::deque<Line>& lines, std::string_view file,
                                     const ImportOptions& options) {
    std::vector<std::pair<std::string, Traced>> requests;
    std::map<std::string, size_t> at;
    for (const Line& line : lines) {
        const std::string where = concat(file, ":", line.number);
        const auto type = line.json.find("type");
        if (type == line.json.end() || !type->is_string() || *type != "route") continue;
        JsonFields fields(where);
        const Json& id = line.json.contains("req_id") ? line.json["req_id"] : line.json["type"];
        const std::string name = id.is_string()           ? id.get<std::string>()
                                 : id.is_number_integer() ? concat(id.get<int64_t>())
                                                          : "";
        const uint64_t token = fields.count(line.json, "token_idx", "", 0, kMostCount);
        const auto layer =
            static_cast<uint32_t>(fields.count(line.json, "layer", "", 0, kMostLayers - 1));
        const Json& experts = fields.array(line.json, "topk_ids", "");
        std::vector<uint32_t> ids;
        for (size_t k = 0; k < experts.size() && fields.ok(); ++k)
            ids.push_back(static_cast<uint32_t>(
                fields.countOf(experts[k], concat("topk_ids[", k, "]"), 0, kMostExperts - 1)));
        if (!fields.ok()) return fields.status();
        const auto [found, isNew] = at.emplace(name, requests.size());
        if (isNew) requests.push_back({name, {}});
        if (ids.empty() ||
            !requests[found->second].second.rows.emplace(std::pair(token, layer), ids).second)
            return refuse(where, ids.empty() ? "topk_ids: nothing" : "this token and layer again");
    }
    if (requests.empty()) return refuse(file, "no line of type route in it");
    return writeTraced(requests, file, options);
}

}  // namespace

absl::StatusOr<Recording> readJsonLines(std::string_view bytes, std::string_view file,
                                        const ImportOptions& options) {
    auto lines = linesOf(bytes, file);
    if (!lines.ok()) return lines.status();
    const Json& first = (*lines)[0].json;
    if (first.contains("routing")) return readRequests(*lines, file, options);
    if (first.contains("counts_of") || first.contains("counts"))
        return readCounts(*lines, file, options);
    if (looksLikeResponse(first)) {
        std::vector<Response> responses;
        for (const Line& line : *lines)
            responses.push_back({&line.json, concat("line ", line.number)});
        return readResponses(responses, file, options);
    }
    if (first.contains("type")) return readTraced(*lines, file, options);
    return refuse(
        file,
        "JSON Lines, but the first line has none of routing, counts_of, counts, type, choices, "
        "meta_info; docs/planner-formats.md lists the forms");
}

}  // namespace bulkhead::planner
