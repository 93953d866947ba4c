// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/import/plain_npy.h"

#include <vector>

#include "backend/model/names.h"
#include "backend/planner/import/axes.h"
#include "backend/planner/import/layers.h"
#include "backend/planner/import/npy.h"
#include "backend/planner/import/refusal.h"

namespace bulkhead::planner {
namespace {

using model::concat;

absl::StatusOr<Recording> countsOf(const Tensor& table, std::string_view file,
                                   const ImportOptions& options) {
    const auto& shape = table.shape();
    if (table.size() == 0 || shape[0] > kMostLayers || shape[1] > kMostExperts)
        return refuse(file, concat("expected counts [layers, experts], found ", table.text()));
    Recording out;
    out.shape.layers = static_cast<uint32_t>(shape[0]);
    out.shape.experts = static_cast<uint32_t>(shape[1]);
    Counts counts(out.shape.layers, out.shape.experts);
    std::vector<int64_t> row(out.shape.experts);
    for (uint32_t layer = 0; layer < out.shape.layers; ++layer) {
        table.integers(uint64_t{layer} * out.shape.experts, row);
        for (uint32_t e = 0; e < out.shape.experts; ++e)
            if (!addTokens(row[e], counts.row(layer)[e]))
                return refuse(file,
                              concat("layer ", layer, ", expert ", e, ": ", wrongTokens(row[e])));
    }
    out.windows.push_back({"all", options.domain, Phase::kUnknown, std::move(counts)});
    out.source = concat(file, ", counts as npy");
    return out;
}

}  // namespace

absl::StatusOr<Recording> readPlainNpy(std::string_view bytes, std::string_view file,
                                       const ImportOptions& options) {
    const auto tensor = parseNpy(bytes, file);
    if (!tensor.ok()) return tensor.status();
    if (isInteger(tensor->element()) && tensor->shape().size() == 2)
        return countsOf(*tensor, file, options);
    if (!isInteger(tensor->element()) || tensor->shape().size() != 3)
        return refuse(file, concat("expected counts [layers, experts] or ids of three axes, found ",
                                   tensor->text()));
    if (!options.model || options.model->layers == 0 || options.model->experts == 0 ||
        options.model->topK == 0)
        return refuse(file, concat("ids ", tensor->text(),
                                   " need the model: name it with --model, or write a meta.json "
                                   "beside the file"));
    const auto axes = axesFitting(*tensor, *options.model, file);
    if (!axes.ok()) return axes.status();
    const auto tokens = tokensOf(*tensor, *axes, *options.model, file);
    if (!tokens.ok()) return tokens.status();
    auto builder = RoutingBuilder::create(*options.model);
    if (!builder.ok()) return refuse(file, std::string(builder.status().message()));
    builder->beginRequest("", options.domain);
    if (absl::Status ok = addTokensOf(*tensor, *axes, 0, *tokens, *options.model, file, *builder);
        !ok.ok())
        return ok;
    auto routing = builder->finish();
    if (!routing.ok()) return refuse(file, std::string(routing.status().message()));
    Recording out;
    out.shape = *options.model;
    out.source = concat(file, ", ids as npy");
    out.notes.push_back(
        "Without a meta.json all tokens are one request; ids are taken as logical, layers as MoE "
        "layers.");
    out.routing = *std::move(routing);
    return out;
}

}  // namespace bulkhead::planner
