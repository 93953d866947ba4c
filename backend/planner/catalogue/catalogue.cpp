// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/catalogue/catalogue.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "backend/model/names.h"
#include "backend/model/toml_reader.h"
#include "backend/planner/catalogue/parameters.h"

namespace bulkhead::planner {
namespace {

using model::concat;

struct Catalogue {
    std::vector<ModelSpec> models;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("models", self.models);
    }
};

/// Empty when the model can be.
std::string problemOf(const ModelSpec& model) {
    constexpr uint32_t kMost = 10'000'000;  // keeps products of three within 64 bits
    const MoeSpec& moe = model.moe;
    if (model.name.empty()) return "name: expected one";
    if (model.layers == 0 || model.layers > 10'000) return "layers: expected 1 to 10000";
    if (model.hidden == 0 || model.hidden > kMost) return "hidden: expected 1 or more";
    if (model.attention.heads == 0) return "attention.heads: expected 1 or more";
    if (moe.experts == 0) return "";
    if (moe.experts > 65'536) return "moe.experts: at most 65536";
    if (moe.topK == 0 || moe.topK > moe.experts) return "moe.top_k: expected 1 to the experts";
    if (moe.every == 0 || moe.firstLayer >= model.layers)
        return "moe: expected first_layer below layers and every of 1 or more";
    if (moe.routerGroups == 0 || moe.experts % moe.routerGroups != 0)
        return "moe.router_groups: expected a divisor of the experts";
    return "";
}

}  // namespace

absl::StatusOr<std::vector<ModelSpec>> parseCatalogue(std::string_view text,
                                                      std::string_view file) {
    toml::table root;
    if (absl::Status ok = model::parseToml(text, file, root); !ok.ok()) return ok;
    model::TomlReader reader{std::string(file)};
    Catalogue out;
    reader.readTable(root, out);
    if (reader.failed()) return reader.status();
    for (size_t i = 0; i < out.models.size(); ++i) {
        std::string problem = problemOf(out.models[i]);
        for (size_t j = 0; j < i; ++j)
            if (out.models[i].name == out.models[j].name) problem = "name: there is one already";
        if (!problem.empty())
            return absl::InvalidArgumentError(
                concat(file, ": models[", i, "] ", out.models[i].name, ": ", problem));
    }
    return out.models;
}

absl::StatusOr<ModelSpec> modelNamed(const std::vector<ModelSpec>& models, std::string_view name) {
    std::string known;
    for (const ModelSpec& model : models) {
        if (absl::EqualsIgnoreCase(model.name, std::string(name))) return model;
        known += concat(known.empty() ? "" : ", ", model.name);
    }
    return absl::NotFoundError(concat("no model \"", model::shortened(name, 60),
                                      "\" in the catalogue; there are ", known));
}

absl::StatusOr<ModelShape> shapeOf(const ModelSpec& model) {
    if (model.moe.experts == 0)
        return absl::InvalidArgumentError(
            concat(model.name, " is dense; it has no experts to place; choose another model"));
    ModelShape out;
    out.name = model.name;
    out.layers = moeLayers(model);
    out.experts = model.moe.experts;
    out.topK = model.moe.topK;
    out.hidden = model.hidden;
    out.routerGroups = model.moe.routerGroups;
    out.groupsPerToken = model.moe.groupsPerToken;
    out.expertBytes = static_cast<uint64_t>(
        std::llround(static_cast<double>(expertParameters(model)) * model.moe.weightBytes));
    for (uint32_t i = 0; i < out.layers; ++i)
        out.layerNumbers.push_back(model.moe.firstLayer + i * model.moe.every);
    return out;
}

double bytesPerCopy(const ModelSpec& model) {
    return model.hidden * (model.dispatchBytes + model.combineBytes);
}

}  // namespace bulkhead::planner
