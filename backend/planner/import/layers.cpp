// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/import/layers.h"

#include <algorithm>
#include <string>

#include "backend/model/names.h"
#include "backend/planner/import/refusal.h"

namespace bulkhead::planner {
namespace {

using model::concat;

}  // namespace

absl::StatusOr<LogicalOf> logicalOf(const Tensor& map, std::string_view file) {
    LogicalOf out;
    out.layers = static_cast<uint32_t>(map.shape()[0]);
    out.physical = static_cast<uint32_t>(map.shape()[1]);
    std::vector<int64_t> ids(map.size());
    map.integers(0, ids);
    for (size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] < 0 || ids[i] >= int64_t{out.physical})
            return refuse(file, concat("last_physical_to_logical_map: layer ", i / out.physical,
                                       ", slot ", i % out.physical, ": expert ", ids[i], " of ",
                                       out.physical, " slots"));
        out.experts = std::max(out.experts, static_cast<uint32_t>(ids[i]) + 1);
        out.map.push_back(static_cast<uint16_t>(ids[i]));
    }
    for (uint32_t layer = 0; layer < out.layers; ++layer) {
        std::vector<bool> has(out.experts);
        for (uint32_t slot = 0; slot < out.physical; ++slot) has[out.at(layer, slot)] = true;
        const auto missing = std::find(has.begin(), has.end(), false);
        if (missing != has.end())
            return refuse(file, concat("last_physical_to_logical_map: layer ", layer,
                                       " has no slot of expert ", missing - has.begin()));
    }
    return out;
}

absl::Status addPhysical(const Tensor& counts, const LogicalOf& logical, std::string_view where,
                         Counts& to) {
    if (counts.shape()[0] != logical.layers || counts.shape()[1] != logical.physical)
        return refuse(where, concat("counts ", counts.text(), " for a map of ", logical.layers,
                                    " layers x ", logical.physical, " slots"));
    std::vector<int64_t> row(logical.physical);
    for (uint32_t layer = 0; layer < logical.layers; ++layer) {
        counts.integers(uint64_t{layer} * logical.physical, row);
        for (uint32_t slot = 0; slot < logical.physical; ++slot) {
            if (!addTokens(row[slot], to.row(layer)[logical.at(layer, slot)]))
                return refuse(
                    where, concat("layer ", layer, ", slot ", slot, ": ", wrongTokens(row[slot])));
        }
    }
    return absl::OkStatus();
}

absl::Status numberLayers(uint32_t rows, const std::vector<uint32_t>& routed,
                          const ImportOptions& options, std::string_view file,
                          Recording& recording) {
    ModelShape& shape = recording.shape;
    shape.layers = static_cast<uint32_t>(routed.size());
    shape.layerNumbers = routed;
    const auto numbers = options.model ? options.model->layerNumbers : std::vector<uint32_t>();
    const bool allRows = options.decoderLayers == 0 || options.decoderLayers == rows;
    if (numbers.empty() || (routed == numbers && allRows)) {
        recording.notes.push_back(concat(
            "The engine counts all ", rows, " decoder layers; the ", routed.size(),
            " in which tokens were routed are taken as the MoE layers, under the engine's numbers ",
            routed.front(), "..", routed.back(), "."));
        return absl::OkStatus();
    }
    const std::string name = options.model->name.empty() ? "the model" : options.model->name;
    if (rows != numbers.size() || routed.size() != rows)
        return refuse(
            file,
            concat("it has ", rows, " layers of which ", routed.size(), " route, the first ",
                   routed.front(), "; ", name, " has ",
                   options.decoderLayers > 0 ? concat(options.decoderLayers, " of which ") : "",
                   numbers.size(), options.decoderLayers > 0 ? " route" : " that route",
                   ", the first ", numbers.front(), "; name the model it was recorded from"));
    shape.layerNumbers = numbers;
    recording.notes.push_back(concat(
        "The ", rows, " layers in it are as many as the MoE layers of ", name,
        " and are taken as those, under its numbers ", numbers.front(), "..", numbers.back(), "."));
    return absl::OkStatus();
}

absl::Status keepRoutedLayers(Recording& recording, std::string_view file,
                              const ImportOptions& options) {
    if (recording.windows.empty()) return refuse(file, "nothing was routed in it");
    const uint32_t all = recording.windows[0].counts.layers();
    const uint32_t experts = recording.windows[0].counts.experts();
    std::vector<uint32_t> kept;
    for (uint32_t layer = 0; layer < all; ++layer)
        if (std::any_of(recording.windows.begin(), recording.windows.end(),
                        [&](const CountsWindow& w) { return w.counts.total(layer) > 0; }))
            kept.push_back(layer);
    if (kept.empty()) return refuse(file, "nothing was routed in it");
    recording.shape.experts = experts;
    if (absl::Status ok = numberLayers(all, kept, options, file, recording); !ok.ok()) return ok;
    if (kept.size() == all) return absl::OkStatus();
    for (CountsWindow& window : recording.windows) {
        Counts less(recording.shape.layers, experts);
        for (uint32_t i = 0; i < kept.size(); ++i)
            std::copy_n(window.counts.row(kept[i]).begin(), experts, less.row(i).begin());
        window.counts = std::move(less);
    }
    return absl::OkStatus();
}

absl::Status agree(const ImportOptions& options, std::string_view file, ModelShape& shape) {
    if (!options.model) return absl::OkStatus();
    const ModelShape& given = *options.model;
    const auto settle = [&](const char* what, uint32_t said, uint32_t& found) {
        if (found == 0) found = said;
        return said == 0 || found == said
                   ? absl::OkStatus()
                   : refuse(file, concat("it has ", found, " ", what, ", the model ",
                                         given.name.empty() ? "" : concat(given.name, " "), "has ",
                                         said, "; name the model it was recorded from"));
    };
    if (absl::Status ok = settle("MoE layers", given.layers, shape.layers); !ok.ok()) return ok;
    if (absl::Status ok = settle("experts", given.experts, shape.experts); !ok.ok()) return ok;
    if (absl::Status ok = settle("experts a token", given.topK, shape.topK); !ok.ok()) return ok;
    for (size_t i = 0; i < given.layerNumbers.size() && i < shape.layerNumbers.size(); ++i)
        if (given.layerNumbers[i] != shape.layerNumbers[i])
            return refuse(file,
                          concat("its MoE layer ", i, " is layer ", shape.layerNumbers[i],
                                 ", that of the model ",
                                 given.name.empty() ? "" : concat(given.name, " "), "is layer ",
                                 given.layerNumbers[i], "; name the model it was recorded from"));
    if (!given.name.empty()) shape.name = given.name;
    if (shape.hidden == 0) shape.hidden = given.hidden;
    if (shape.expertBytes == 0) shape.expertBytes = given.expertBytes;
    if (shape.layerNumbers.empty()) shape.layerNumbers = given.layerNumbers;
    if (given.routerGroups > 1) {
        shape.routerGroups = given.routerGroups;
        shape.groupsPerToken = given.groupsPerToken;
    }
    return absl::OkStatus();
}

}  // namespace bulkhead::planner
