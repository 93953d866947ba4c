// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/import/meta_json.h"

#include <utility>

#include "backend/model/names.h"
#include "backend/planner/import/axes.h"
#include "backend/planner/import/npy.h"
#include "backend/planner/import/refusal.h"

namespace bulkhead::planner {
namespace {

using model::concat;

constexpr uint64_t kMostTokens = uint64_t{1} << 40;

/// One npy file, its tensor, and how its axes lie.
struct Array {
    std::string name, bytes;
    Tensor ids;
    Axes axes = Axes::kLayerTokenK;
    uint64_t tokens = 0;
};

class MetaReader {
  public:
    MetaReader(const Json& json, std::string_view file, const Files& files, std::string domain)
        : json_(json), file_(file), files_(files), fields_(file), domain_(std::move(domain)) {}

    absl::StatusOr<Recording> read() {
        ModelShape shape;
        if (has(json_, "model")) shape.name = fields_.text(json_, "model", "");
        shape.layers = static_cast<uint32_t>(fields_.count(
            json_, has(json_, "moe_layers") ? "moe_layers" : "layers", "", 1, kMostLayers));
        shape.experts = static_cast<uint32_t>(fields_.count(json_, "experts", "", 1, kMostExperts));
        shape.topK = static_cast<uint32_t>(fields_.count(json_, "top_k", "", 1, kMostExperts));
        if (has(json_, "layout")) layout_ = fields_.text(json_, "layout", "");
        if (!fields_.ok()) return fields_.status();
        auto builder = RoutingBuilder::create(shape);
        if (!builder.ok()) return refuse(file_, std::string(builder.status().message()));
        absl::Status done =
            json_.contains("domains") ? readDomains(*builder) : readRequests(*builder);
        if (!done.ok()) return done;
        auto routing = builder->finish();
        if (!routing.ok()) return refuse(file_, std::string(routing.status().message()));
        Recording out;
        out.shape = shape;
        out.source = concat(file_, ", arrays described by JSON");
        out.notes.push_back("Expert ids are taken as logical and layers as MoE layers.");
        if (!phasesKnown_)
            out.notes.push_back("Which tokens are prompt and which are generated is not recorded.");
        out.routing = *std::move(routing);
        return out;
    }

  private:
    absl::StatusOr<Array> open(const std::string& name) {
        if (absl::Status inside = checkInside(name, file_); !inside.ok()) return inside;
        Array array;
        array.name = name;
        auto bytes = files_.read(name);
        if (!bytes.ok()) return bytes.status();
        array.bytes = *std::move(bytes);
        return array;
    }
    /// After `array` has come to rest: its tensor points into its bytes.
    absl::Status parse(Array& array, const ModelShape& shape) {
        auto ids = parseNpy(array.bytes, array.name);
        if (!ids.ok()) return ids.status();
        array.ids = *std::move(ids);
        auto axes =
            layout_.empty() ? axesFitting(array.ids, shape, array.name) : axesNamed(layout_, file_);
        if (!axes.ok()) return axes.status();
        array.axes = *axes;
        auto tokens = tokensOf(array.ids, array.axes, shape, array.name);
        if (!tokens.ok()) return tokens.status();
        array.tokens = *tokens;
        return absl::OkStatus();
    }

    absl::Status readDomains(RoutingBuilder& builder) {
        const Json& domains = fields_.object(json_, "domains", "");
        if (!fields_.ok()) return fields_.status();
        for (const auto& item : domains.items())
            if (absl::Status ok = readDomain(builder, item.key(), item.value()); !ok.ok())
                return ok;
        return absl::OkStatus();
    }

    absl::Status readDomain(RoutingBuilder& builder, const std::string& name, const Json& domain) {
        const std::string path = concat("domains.", model::shortened(name, 60));
        const std::string file = fields_.text(domain, "file", path);
        const Json& lengths = fields_.array(domain, "sequence_lengths", path);
        if (!fields_.ok()) return fields_.status();
        auto array = open(file);
        if (!array.ok()) return array.status();
        const ModelShape& shape = builder.shape();
        if (absl::Status ok = parse(*array, shape); !ok.ok()) return ok;
        uint64_t first = 0;
        for (size_t i = 0; i < lengths.size(); ++i) {
            const std::string place = concat(path, ".sequence_lengths[", i, "]");
            const uint64_t tokens = fields_.countOf(lengths[i], place, 0, kMostTokens);
            if (!fields_.ok()) return fields_.status();
            if (tokens > array->tokens - first)
                return refuse(file_, concat(place, ": ends at token ", first + tokens, ", ", file,
                                            " has ", array->tokens));
            builder.beginRequest("", name);
            if (absl::Status ok =
                    addTokensOf(array->ids, array->axes, first, tokens, shape, file, builder);
                !ok.ok())
                return ok;
            first += tokens;
        }
        if (first != array->tokens)
            return refuse(file_, concat(path, ".sequence_lengths: add up to ", first, " tokens, ",
                                        file, " has ", array->tokens));
        return absl::OkStatus();
    }

    absl::StatusOr<std::string> onlyArray() const {
        std::string found;
        for (const std::string& name : files_.names) {
            if (!name.ends_with(".npy")) continue;
            if (!found.empty())
                return refuse(file_, concat("several npy files lie beside it (", found, ", ", name,
                                            "); name one with \"file\""));
            found = name;
        }
        if (found.empty()) return refuse(file_, "no npy file lies beside it");
        return found;
    }

    absl::Status readRequests(RoutingBuilder& builder) {
        const Json& requests = fields_.array(json_, "requests", "");
        absl::StatusOr<std::string> file =
            has(json_, "file") ? fields_.text(json_, "file", "") : onlyArray();
        if (!fields_.ok()) return fields_.status();
        if (!file.ok()) return file.status();
        auto array = open(*file);
        if (!array.ok()) return array.status();
        if (absl::Status ok = parse(*array, builder.shape()); !ok.ok()) return ok;
        const bool decodeOnly = layout_.find("decode only") != std::string::npos;
        uint64_t next = 0;
        for (size_t i = 0; i < requests.size(); ++i) {
            const Json& request = requests[i];
            const std::string path = concat("requests[", i, "]");
            const uint64_t tokens = fields_.count(request, "tokens", path, 0, kMostTokens);
            const uint64_t first = has(request, "offset")
                                       ? fields_.count(request, "offset", path, 0, kMostTokens)
                                       : next;
            beginRequest(builder, request, path);
            if (has(request, "prefill"))
                builder.setPrefillTokens(fields_.count(request, "prefill", path, 0, tokens));
            else if (decodeOnly)
                builder.setPrefillTokens(0);
            if (!fields_.ok()) return fields_.status();
            if (first > array->tokens || tokens > array->tokens - first)
                return refuse(file_, concat(path, ": ends at token ", first + tokens, ", ", *file,
                                            " has ", array->tokens));
            if (absl::Status ok = addTokensOf(array->ids, array->axes, first, tokens,
                                              builder.shape(), *file, builder);
                !ok.ok())
                return ok;
            phasesKnown_ = phasesKnown_ || decodeOnly || has(request, "prefill");
            next = first + tokens;
        }
        return absl::OkStatus();
    }

    void beginRequest(RoutingBuilder& builder, const Json& request, const std::string& path) {
        std::string id, domain;
        for (const char* key : {"id", "category"})
            if (id.empty() && has(request, key)) id = fields_.text(request, key, path);
        for (const char* key : {"domain", "dataset"})
            if (domain.empty() && has(request, key)) domain = fields_.text(request, key, path);
        builder.beginRequest(id, domain.empty() ? domain_ : domain);
    }

    const Json& json_;
    std::string file_;
    const Files& files_;
    JsonFields fields_;
    std::string domain_;  ///< of requests that have none
    std::string layout_;
    bool phasesKnown_ = false;
};

/// counts[MODEL][DOMAIN][layer][expert].
absl::StatusOr<Recording> readCounts(const Json& json, std::string_view file,
                                     std::string_view wanted) {
    JsonFields fields(file);
    const Json& models = fields.object(json, "counts", "");
    const Json& numbers = fields.array(json, "layers", "");
    if (!fields.ok()) return fields.status();
    auto found = wanted.empty() ? models.begin() : models.find(wanted);
    if (found == models.end()) {
        std::string known;
        for (const auto& item : models.items())
            known += concat(known.empty() ? "" : ", ", item.key());
        return refuse(file, concat("counts: no model \"", model::shortened(wanted, 60),
                                   "\"; there are ", known.empty() ? "none" : known));
    }
    Recording out;
    out.shape.name = found.key();
    for (size_t i = 0; i < numbers.size(); ++i)
        out.shape.layerNumbers.push_back(static_cast<uint32_t>(
            fields.countOf(numbers[i], concat("layers[", i, "]"), 0, kMostLayers - 1)));
    out.shape.layers = static_cast<uint32_t>(numbers.size());
    const std::string modelPath = concat("counts.", found.key());
    const Json& domains = fields.object(models, found.key(), "counts");
    for (const auto& domain : domains.items()) {
        const std::string path = joined(modelPath, domain.key());
        const Json& rows = fields.array(domains, domain.key(), modelPath);
        if (rows.size() != out.shape.layers) fields.refuse(path, "one row a layer", &rows);
        if (!fields.ok()) return fields.status();
        for (size_t layer = 0; layer < rows.size(); ++layer) {
            const std::string rowPath = concat(path, "[", layer, "]");
            if (!rows[layer].is_array() || rows[layer].empty() ||
                rows[layer].size() > kMostExperts ||
                (out.shape.experts != 0 && rows[layer].size() != out.shape.experts)) {
                fields.refuse(rowPath, "as many counts as in every other layer", &rows[layer]);
                return fields.status();
            }
            if (out.shape.experts == 0) out.shape.experts = static_cast<uint32_t>(rows[0].size());
            if (layer == 0)
                out.windows.push_back({concat("domain ", domain.key()), domain.key(),
                                       Phase::kUnknown,
                                       Counts(out.shape.layers, out.shape.experts)});
            const auto cells = out.windows.back().counts.row(static_cast<uint32_t>(layer));
            for (size_t e = 0; e < cells.size() && fields.ok(); ++e)
                cells[e] =
                    fields.countOf(rows[layer][e], concat(rowPath, "[", e, "]"), 0, kMostTokens);
        }
    }
    if (!fields.ok()) return fields.status();
    if (out.windows.empty() || out.shape.experts == 0)
        return refuse(file, concat(modelPath, ": there are no counts in it"));
    out.source = concat(file, ", counts by domain");
    out.notes.push_back(concat("Counts of the layers that were recorded (", out.shape.layers,
                               "), under the model's own numbers; top-k is not recorded."));
    return out;
}

}  // namespace

bool looksLikeMeta(const Json& json) {
    if (!json.is_object()) return false;
    if (json.contains("counts") && json.contains("layers")) return true;
    return json.contains("experts") && json.contains("top_k") &&
           (json.contains("domains") || json.contains("requests"));
}

absl::StatusOr<Recording> readMeta(const Json& json, std::string_view file, const Files& files,
                                   const ImportOptions& options) {
    if (json.contains("counts")) return readCounts(json, file, options.modelName);
    return MetaReader(json, file, files, options.domain).read();
}

}  // namespace bulkhead::planner
