// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/import/safetensors.h"

#include <algorithm>
#include <vector>

#include "backend/model/names.h"
#include "backend/planner/import/json_fields.h"
#include "backend/planner/import/little_endian.h"
#include "backend/planner/import/refusal.h"

namespace bulkhead::planner {
namespace {

using model::concat;

constexpr uint64_t kLongestJson = 100'000'000;

const std::map<std::string_view, Element>& elements() {
    static const std::map<std::string_view, Element> kElements = {
        {"BOOL", Element::kBool}, {"U8", Element::kU8},   {"I8", Element::kI8},
        {"U16", Element::kU16},   {"I16", Element::kI16}, {"U32", Element::kU32},
        {"I32", Element::kI32},   {"U64", Element::kU64}, {"I64", Element::kI64},
        {"F32", Element::kF32},   {"F64", Element::kF64},
    };
    return kElements;
}

struct Range {
    uint64_t begin = 0, end = 0;
};

/// One header member to a tensor; refusals go to `fields`.
Tensor tensorOf(const Json& entry, const std::string& path, std::string_view data,
                JsonFields& fields, Range& range) {
    const std::string dtype = fields.text(entry, "dtype", path);
    const Json& lengths = fields.array(entry, "shape", path);
    const Json& offsets = fields.array(entry, "data_offsets", path);
    if (!fields.ok()) return {};
    const auto element = elements().find(dtype);
    if (element == elements().end()) {
        fields.refuse(joined(path, "dtype"), "a number type that is read here", &entry["dtype"]);
        return {};
    }
    if (lengths.size() > kMostDimensions || offsets.size() != 2) {
        fields.refuse(path, "at most 8 dimensions and two data_offsets", &entry);
        return {};
    }
    std::vector<uint64_t> shape;
    for (size_t i = 0; i < lengths.size(); ++i)
        shape.push_back(
            fields.countOf(lengths[i], concat(path, ".shape[", i, "]"), 0, uint64_t{1} << 48));
    range.begin = fields.countOf(offsets[0], path + ".data_offsets[0]", 0, data.size());
    range.end = fields.countOf(offsets[1], path + ".data_offsets[1]", range.begin, data.size());
    if (!fields.ok()) return {};
    auto tensor =
        Tensor::packed(element->second, std::move(shape),
                       std::as_bytes(std::span(data.substr(range.begin, range.end - range.begin))));
    if (!tensor.ok())
        fields.refuse(path,
                      concat("a shape of its data (", std::string(tensor.status().message()), ")"),
                      &entry["shape"]);
    return tensor.ok() ? *std::move(tensor) : Tensor();
}

}  // namespace

absl::StatusOr<std::map<std::string, Tensor, std::less<>>> parseSafetensors(std::string_view bytes,
                                                                            std::string_view file) {
    const auto refuse = [&](const auto&... words) {
        return absl::InvalidArgumentError(concat(file, ": ", words...));
    };
    if (bytes.size() < 8) return refuse("byte ", bytes.size(), ": the header length is cut off");
    const auto length = numberAt<uint64_t>(bytes, 0);
    if (length > kLongestJson || length > bytes.size() - 8)
        return refuse("byte 0: a header of ", length, " bytes in a file of ", bytes.size());
    auto header = parseJsonFile(bytes.substr(8, length), concat(file, ": header"));
    if (!header.ok()) return header.status();
    if (!header->is_object()) return refuse("byte 8: the header is no JSON object");
    const std::string_view data = bytes.substr(8 + length);

    JsonFields fields(file);
    std::map<std::string, Tensor, std::less<>> out;
    std::vector<Range> ranges;
    for (const auto& item : header->items()) {
        if (item.key() == "__metadata__") continue;
        Range range;
        Tensor tensor =
            tensorOf(item.value(), model::shortened(item.key(), 80), data, fields, range);
        if (!fields.ok()) return fields.status();
        ranges.push_back(range);
        out.emplace(item.key(), std::move(tensor));
    }
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
        return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
    });
    uint64_t at = 0;
    for (const Range& range : ranges) {
        if (range.begin != at)
            return refuse("data byte ", std::min(at, range.begin),
                          ": tensors overlap or leave a gap");
        at = range.end;
    }
    if (at != data.size())
        return refuse("data byte ", at, ": ", data.size() - at, " bytes belong to no tensor");
    return out;
}

}  // namespace bulkhead::planner
