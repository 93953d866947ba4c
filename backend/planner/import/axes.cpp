// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/import/axes.h"

#include <algorithm>
#include <vector>

#include "backend/model/names.h"
#include "backend/planner/import/input.h"
#include "backend/planner/import/refusal.h"

namespace bulkhead::planner {
namespace {

using model::concat;

/// Tokens copied at a time.
constexpr uint64_t kIdsAtOnce = 1024;

}  // namespace

absl::StatusOr<Axes> axesNamed(std::string_view layout, std::string_view file) {
    std::string tight;
    for (const char c : layout)
        if (c != ' ') tight += c;
    if (tight.find("[layer,token,k]") != std::string::npos) return Axes::kLayerTokenK;
    if (tight.find("[token,layer,k]") != std::string::npos) return Axes::kTokenLayerK;
    return refuse(file, concat("layout: expected \"... [layer, token, k]\" or \"... [token, layer, "
                               "k]\", found \"",
                               model::shortened(layout, 60), "\""));
}

absl::StatusOr<Axes> axesFitting(const Tensor& ids, const ModelShape& shape,
                                 std::string_view file) {
    const auto& s = ids.shape();
    const bool byLayer = s.size() == 3 && s[0] == shape.layers;
    const bool byToken = s.size() == 3 && s[1] == shape.layers;
    if (byLayer == byToken)
        return refuse(file, concat(ids.text(),
                                   byLayer ? " could be read by layer or by token" : " has no axis",
                                   byLayer ? "" : concat(" of ", shape.layers, " layers"),
                                   "; say which in \"layout\""));
    return byLayer ? Axes::kLayerTokenK : Axes::kTokenLayerK;
}

absl::StatusOr<uint64_t> tokensOf(const Tensor& ids, Axes axes, const ModelShape& shape,
                                  std::string_view file) {
    const auto& s = ids.shape();
    const size_t layerAxis = axes == Axes::kLayerTokenK ? 0 : 1;
    if (!isInteger(ids.element()) || s.size() != 3 || s[layerAxis] != shape.layers ||
        s[2] != shape.topK)
        return refuse(file, concat("expected whole numbers ",
                                   layerAxis == 0 ? concat("[", shape.layers, ", tokens, ")
                                                  : concat("[tokens, ", shape.layers, ", "),
                                   shape.topK, "], found ", ids.text()));
    return s[1 - layerAxis];
}

absl::Status addTokensOf(const Tensor& ids, Axes axes, uint64_t first, uint64_t count,
                         const ModelShape& shape, std::string_view file, RoutingBuilder& builder) {
    const uint64_t k = shape.topK;
    std::vector<int64_t> read;
    std::vector<uint16_t> narrow;
    const auto take = [&](const Tensor& from, uint64_t at, uint64_t size, auto&& where) {
        read.resize(size);
        from.integers(at, read);
        return narrowIds(read, shape.experts, narrow, where);
    };
    const bool byLayer = axes == Axes::kLayerTokenK;
    const uint64_t row = byLayer ? k : k * shape.layers;  // numbers of one token in one pass
    for (uint32_t layer = 0; layer < (byLayer ? shape.layers : 1); ++layer) {
        const Tensor plane = byLayer ? ids[layer] : ids;
        for (uint64_t done = 0; done < count; done += kIdsAtOnce) {
            const uint64_t tokens = std::min(kIdsAtOnce, count - done);
            const auto where = [&](size_t i) {
                return concat(file, ": token ", first + done + i / row, ", layer ",
                              byLayer ? layer : i % row / k, ", k ", i % k);
            };
            absl::Status ok = take(plane, (first + done) * row, tokens * row, where);
            if (ok.ok()) ok = byLayer ? builder.addLayer(layer, narrow) : builder.addTokens(narrow);
            if (!ok.ok())
                return std::string(ok.message()).starts_with(file)
                           ? ok
                           : refuse(file, std::string(ok.message()));
        }
    }
    return absl::OkStatus();
}

}  // namespace bulkhead::planner
