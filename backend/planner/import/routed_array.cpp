// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/import/routed_array.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "backend/model/names.h"
#include "backend/planner/import/npy.h"
#include "backend/planner/import/refusal.h"
#include "backend/planner/import/tensor.h"

namespace bulkhead::planner {
namespace {

using model::concat;

absl::StatusOr<RoutedArray> fromLists(const Json& json, std::string_view where) {
    RoutedArray out;
    out.tokens = json.size();
    for (size_t t = 0; t < json.size(); ++t) {
        const Json& token = json[t];
        if (!token.is_array() || token.empty() || (t > 0 && token.size() != out.layers))
            return refuse(where,
                          concat("[", t, "]: expected one list a layer, as for other tokens"));
        out.layers = token.size();
        for (size_t layer = 0; layer < token.size(); ++layer) {
            const Json& row = token[layer];
            if (!row.is_array() || row.empty() || (out.k != 0 && row.size() != out.k))
                return refuse(where, concat("[", t, "][", layer, "]: expected ",
                                            out.k == 0 ? "a list of" : concat(out.k), " experts"));
            out.k = row.size();
            for (size_t k = 0; k < row.size(); ++k) {
                if (!row[k].is_number_integer())
                    return refuse(
                        where, concat("[", t, "][", layer, "][", k, "]: expected a whole number"));
                const auto id = row[k].get<int64_t>();
                const bool wraps = row[k].is_number_unsigned() && id < 0;
                if (wraps || id > std::numeric_limits<int32_t>::max())
                    return refuse(where,
                                  concat("[", t, "][", layer, "][", k, "]: expert ",
                                         row[k].get<uint64_t>(), ", more than any model has"));
                out.ids.push_back(static_cast<int32_t>(std::max<int64_t>(id, -1)));
            }
        }
    }
    return out;
}

absl::StatusOr<RoutedArray> fromTensor(const Tensor& tensor, std::string_view where) {
    const auto& shape = tensor.shape();
    if (!isInteger(tensor.element()) || shape.size() != 3)
        return refuse(where,
                      concat("expected whole numbers [tokens, layers, k], found ", tensor.text()));
    RoutedArray out{shape[0], shape[1], shape[2], {}};
    std::vector<int64_t> ids(tensor.size());
    tensor.integers(0, ids);
    out.ids.reserve(ids.size());
    for (const int64_t id : ids) {
        if (id > std::numeric_limits<int32_t>::max())
            return refuse(where, concat("expert ", id, ", more than any model has"));
        out.ids.push_back(static_cast<int32_t>(std::max<int64_t>(id, -1)));
    }
    return out;
}

absl::StatusOr<std::string> decoded(const Json& json, std::string_view where) {
    std::string bytes;
    if (!json.is_string() || !absl::Base64Unescape(json.get_ref<const std::string&>(), &bytes))
        return refuse(where, "expected base64");
    return bytes;
}

absl::StatusOr<RoutedArray> fromFlat(std::string_view bytes, const FlatShape& flat,
                                     std::string_view where) {
    const uint64_t numbers = bytes.size() / sizeof(int32_t);
    if (flat.k == 0)
        return refuse(where,
                      "a flat array needs the model (experts a token): name it with --model");
    if (flat.tokens == 0 || bytes.size() % sizeof(int32_t) != 0 || numbers % flat.tokens != 0 ||
        numbers / flat.tokens % flat.k != 0)
        return refuse(where, concat(bytes.size(), " bytes are no int32 for ", flat.tokens,
                                    " tokens (prompt + completion - 1) of layers x ", flat.k));
    const uint64_t layers = numbers / flat.tokens / flat.k;
    auto tensor = Tensor::packed(Element::kI32, {flat.tokens, layers, flat.k},
                                 std::as_bytes(std::span(bytes)));
    if (!tensor.ok()) return refuse(where, std::string(tensor.status().message()));
    return fromTensor(*tensor, where);
}

absl::StatusOr<RoutedArray> fromObject(const Json& json, std::string_view where) {
    static const std::map<std::string_view, Element> kTypes = {
        {"int8", Element::kI8},    {"uint8", Element::kU8},  {"int16", Element::kI16},
        {"uint16", Element::kU16}, {"int32", Element::kI32}, {"int64", Element::kI64}};
    JsonFields fields(where);
    const std::string encoding = fields.text(json, "encoding", "");
    const std::string dtype = fields.text(json, "dtype", "");
    const Json& lengths = fields.array(json, "shape", "");
    if (!fields.ok()) return fields.status();
    const auto element = kTypes.find(dtype);
    if (encoding != "base64" || element == kTypes.end() || lengths.size() != 3)
        return refuse(where, "expected base64 of a whole number type with a shape of three");
    std::vector<uint64_t> shape;
    for (const Json& length : lengths)
        shape.push_back(fields.countOf(length, "shape", 0, uint64_t{1} << 40));
    if (!fields.ok()) return fields.status();
    if (!json.contains("data")) return refuse(where, "data: expected base64");
    const auto bytes = decoded(json["data"], concat(where, ": data"));
    if (!bytes.ok()) return bytes.status();
    const auto tensor = Tensor::packed(element->second, shape, std::as_bytes(std::span(*bytes)));
    if (!tensor.ok()) return refuse(where, std::string(tensor.status().message()));
    return fromTensor(*tensor, where);
}

}  // namespace

absl::StatusOr<RoutedArray> routedArray(const Json& json, const FlatShape& flat,
                                        std::string_view where) {
    if (json.is_array()) return fromLists(json, where);
    if (json.is_object()) return fromObject(json, where);
    const auto bytes = decoded(json, where);
    if (!bytes.ok()) return bytes.status();
    if (!bytes->starts_with("\x93NUMPY")) return fromFlat(*bytes, flat, where);
    const auto tensor = parseNpy(*bytes, where);
    if (!tensor.ok()) return tensor.status();
    return fromTensor(*tensor, where);
}

}  // namespace bulkhead::planner
