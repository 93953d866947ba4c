// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/import/trtllm.h"

#include <map>
#include <utility>
#include <vector>

#include "backend/model/names.h"
#include "backend/model/parse_number.h"
#include "backend/planner/import/layers.h"
#include "backend/planner/import/refusal.h"
#include "backend/planner/import/safetensors.h"

namespace bulkhead::planner {
namespace {

using model::concat;

/// Sums by iteration and layer, over ranks.
using Sums = std::map<uint64_t, std::map<uint32_t, std::vector<uint64_t>>>;

/// "rank12.safetensors", but not "rank12_raw.safetensors".
bool isRank(std::string_view name) {
    constexpr std::string_view kHead = "rank", kTail = ".safetensors";
    if (!name.starts_with(kHead) || !name.ends_with(kTail)) return false;
    if (name.size() <= kHead.size() + kTail.size()) return false;
    name.remove_prefix(kHead.size());
    name.remove_suffix(kTail.size());
    return model::parseNumber<uint32_t>(name).has_value();
}

/// "100_3": iteration and layer.
std::optional<std::pair<uint64_t, uint32_t>> keyOf(std::string_view name) {
    const size_t bar = name.find('_');
    if (bar == std::string_view::npos) return std::nullopt;
    const auto iteration = model::parseNumber<uint64_t>(name.substr(0, bar));
    const auto layer = model::parseNumber<uint32_t>(name.substr(bar + 1));
    if (!iteration || !layer || *layer >= kMostLayers) return std::nullopt;
    return std::pair(*iteration, *layer);
}

absl::Status addRank(std::string_view bytes, const std::string& name, uint32_t experts,
                     Sums& sums) {
    const auto tensors = parseSafetensors(bytes, name);
    if (!tensors.ok()) return tensors.status();
    std::vector<int64_t> row(experts);
    for (const auto& [key, tensor] : *tensors) {
        const std::string where = concat(name, ": ", model::shortened(key, 40));
        const auto place = keyOf(key);
        if (!place) return refuse(where, "expected a name ITERATION_LAYER");
        if (!isInteger(tensor.element()) || tensor.shape() != std::vector<uint64_t>{experts})
            return refuse(where,
                          concat("expected whole numbers [", experts, "], found ", tensor.text()));
        tensor.integers(0, row);
        auto& cells = sums[place->first][place->second];
        cells.resize(experts);
        for (uint32_t e = 0; e < experts; ++e)
            if (!addTokens(row[e], cells[e]))
                return refuse(where, concat("expert ", e, ": ", wrongTokens(row[e])));
    }
    return absl::OkStatus();
}

}  // namespace

bool looksLikeTrtllm(const Json& meta) {
    return meta.is_object() && meta.contains("num_experts") &&
           meta.contains("num_experts_per_token");
}

absl::StatusOr<Recording> readTrtllm(const Json& json, std::string_view file, const Files& files,
                                     const ImportOptions& options) {
    JsonFields fields(file);
    Recording out;
    out.shape.experts =
        static_cast<uint32_t>(fields.count(json, "num_experts", "", 1, kMostExperts));
    out.shape.topK = static_cast<uint32_t>(
        fields.count(json, "num_experts_per_token", "", 1, out.shape.experts));
    if (!fields.ok()) return fields.status();
    Sums sums;
    size_t ranks = 0, passedOver = 0;
    for (const std::string& name : files.names) {
        if (!isRank(name)) {
            passedOver += name.ends_with(".safetensors") ? 1 : 0;
            continue;
        }
        auto bytes = files.read(name);
        if (!bytes.ok()) return bytes.status();
        if (absl::Status ok = addRank(*bytes, name, out.shape.experts, sums); !ok.ok()) return ok;
        ++ranks;
    }
    if (sums.empty()) return refuse(file, "no rankR.safetensors with counts lies beside it");
    std::map<uint32_t, uint32_t> row;  // layer number -> row
    for (const auto& [iteration, layers] : sums)
        for (const auto& [layer, cells] : layers) row.emplace(layer, 0);
    for (auto& [layer, at] : row) {
        at = out.shape.layers++;
        out.shape.layerNumbers.push_back(layer);
    }
    // Every window has every layer, so a file of scattered layers would grow; no engine writes one.
    for (const auto& [iteration, layers] : sums) {
        if (layers.size() != row.size())
            return refuse(file, concat("iteration ", iteration, " has ", layers.size(),
                                       " layers, others have ", row.size()));
        CountsWindow window{concat("iteration ", iteration), options.domain, Phase::kUnknown,
                            Counts(out.shape.layers, out.shape.experts)};
        for (const auto& [layer, cells] : layers)
            std::copy(cells.begin(), cells.end(), window.counts.row(row.at(layer)).begin());
        out.windows.push_back(std::move(window));
    }
    out.source = concat(file, " and ", ranks, " ranks, TensorRT-LLM expert statistics");
    out.notes.push_back("Ids are logical; layers are the model's own numbers; ranks are summed.");
    if (passedOver > 0)
        out.notes.push_back(concat(passedOver, " other safetensors files were passed over."));
    return out;
}

}  // namespace bulkhead::planner
