// SPDX-License-Identifier: Apache-2.0
#include "backend/interchange/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <set>
#include <span>

#include "absl/strings/str_cat.h"
#include "backend/model/json.h"
#include "backend/model/names.h"
#include "backend/runtime/checkpoint/tensor_table.h"

namespace bulkhead::interchange {
namespace {

using model::Json;

static_assert(std::endian::native == std::endian::little, "files are as this machine stores");

constexpr size_t kLengthBytes = 8;
constexpr uint32_t kZipSignature = 0x04034b50;
constexpr const char* kMetadata = "__metadata__";
constexpr const char* kRemedy = "; take the file from where it came from once more";
constexpr size_t kMostDimensions = 64;

std::string shown(const std::string& name) {
    return model::printable(model::shortened(name, 80));
}

/// Takes the header as the parser meets it, and ends the parser at the first value that has no
/// place in one: neither depth nor size of other JSON costs memory.
class HeaderReader final : public nlohmann::json_sax<Json> {
  public:
    explicit HeaderReader(SafetensorsHeader* out) : out_(out) {}

    const std::string& wrong() const { return wrong_; }

    bool start_object(size_t) override {
        if (place_ == Place::kBegin) return enter(Place::kNames);
        if (place_ == Place::kTensor) return enter(Place::kFields);
        if (place_ == Place::kMetadata) return enter(Place::kTexts);
        return unexpected("an object");
    }
    bool key(string_t& name) override {
        if (place_ == Place::kNames) {
            name_ = name;
            if (!names_.insert(name).second) return refuse("it is there twice");
            fields_.clear();
            if (name == kMetadata) return enter(Place::kMetadata);
            out_->entries.emplace_back().name = name;
            return enter(Place::kTensor);
        }
        if (place_ == Place::kTexts) {
            text_ = name;
            return out_->metadata.emplace(name, "").second ||
                   refuse(absl::StrCat("\"", shown(name), "\" is there twice"));
        }
        if (!fields_.insert(name).second) return refuse(shown(name) + " is there twice");
        if (name == "dtype") return enter(Place::kDtype);
        if (name == "shape") return enter(Place::kShape);
        if (name == "data_offsets") return enter(Place::kOffsets);
        return refuse(absl::StrCat("unknown field \"", shown(name),
                                   "\", expected dtype, shape and data_offsets"));
    }
    bool end_object() override {
        if (place_ == Place::kTexts) return enter(Place::kNames);
        if (place_ == Place::kNames) return enter(Place::kEnd);
        for (const char* needed : {"dtype", "shape", "data_offsets"})
            if (!fields_.contains(needed)) return refuse(absl::StrCat("has no ", needed));
        return enter(Place::kNames);
    }
    bool start_array(size_t) override {
        if (place_ == Place::kShape) return enter(Place::kLengths);
        if (place_ == Place::kOffsets) return enter(Place::kBounds);
        return unexpected("a list");
    }
    bool end_array() override {
        if (place_ == Place::kBounds) {
            if (bounds_.size() != 2)
                return refuse(
                    absl::StrCat("data_offsets has ", bounds_.size(), " numbers, expected 2"));
            entry().begin = bounds_[0];
            entry().end = bounds_[1];
            bounds_.clear();
        }
        return enter(Place::kFields);
    }
    bool string(string_t& value) override {
        if (place_ == Place::kTexts) {
            out_->metadata[text_] = std::move(value);
            return true;
        }
        if (place_ != Place::kDtype) return unexpected("a text");
        entry().dtype = std::move(value);
        return enter(Place::kFields);
    }
    bool number_unsigned(number_unsigned_t value) override {
        if (place_ == Place::kBounds) {
            if (bounds_.size() == 2) return refuse("data_offsets has more than 2 numbers");
            bounds_.push_back(value);
            return true;
        }
        if (place_ != Place::kLengths) return unexpected("a number");
        if (entry().shape.size() == kMostDimensions)
            return refuse(absl::StrCat("shape has more than ", kMostDimensions, " dimensions"));
        entry().shape.push_back(value);
        return true;
    }
    bool number_integer(number_integer_t value) override {
        return unexpected(absl::StrCat("the number ", value));
    }
    bool number_float(number_float_t, const string_t& text) override {
        return unexpected("the number " + shown(text));
    }
    bool null() override { return unexpected("null"); }
    bool boolean(bool) override { return unexpected("a truth value"); }
    bool binary(binary_t&) override { return unexpected("bytes"); }
    bool parse_error(size_t at, const std::string&, const Json::exception&) override {
        wrong_ = absl::StrCat("header: not JSON: error at its byte ", at);
        return false;
    }

  private:
    enum class Place {
        kBegin,
        kNames,
        kMetadata,
        kTexts,
        kTensor,
        kFields,
        kDtype,
        kShape,
        kLengths,
        kOffsets,
        kBounds,
        kEnd
    };
    static const char* expectedAt(Place place) {
        switch (place) {
            case Place::kBegin:
                return "an object of tensors";
            case Place::kMetadata:
                return "an object of texts";
            case Place::kTexts:
            case Place::kDtype:
                return "a text";
            case Place::kTensor:
                return "an object of dtype, shape and data_offsets";
            case Place::kShape:
            case Place::kOffsets:
                return "a list";
            case Place::kLengths:
            case Place::kBounds:
                return "numbers of 0 or more";
            default:
                return "nothing else";
        }
    }

    bool enter(Place place) {
        place_ = place;
        return true;
    }
    bool refuse(const std::string& why) {
        wrong_ = name_.empty() && names_.empty()
                     ? "header: " + why
                     : absl::StrCat("tensor \"", shown(name_), "\": ", why);
        return false;
    }
    bool unexpected(const std::string& what) {
        return refuse(absl::StrCat("found ", what, ", expected ", expectedAt(place_)));
    }
    SafetensorsEntry& entry() { return out_->entries.back(); }

    SafetensorsHeader* out_;
    Place place_ = Place::kBegin;
    std::string name_, text_, wrong_;
    std::set<std::string> names_, fields_;
    std::vector<uint64_t> bounds_;
};

/// Says why the entry cannot be a tensor in so many bytes of data; else empty.
std::string problemOf(const SafetensorsEntry& entry, uint64_t dataBytes) {
    const auto bytes = runtime::tensorBytes(entry.dtype, entry.shape);
    if (runtime::elementBytes(entry.dtype) == 0 || entry.dtype == runtime::kNumberDtype)
        return absl::StrCat("dtype \"", shown(entry.dtype), "\" is not known here");
    if (!bytes) return "shape: more elements than any file can hold";
    if (entry.begin > entry.end || entry.end > dataBytes)
        return absl::StrCat("data_offsets [", entry.begin, ", ", entry.end,
                            "], expected a range within the ", dataBytes, " bytes of data");
    if (entry.end - entry.begin != *bytes)
        return absl::StrCat("data_offsets hold ", entry.end - entry.begin, " bytes, expected the ",
                            *bytes, " of its dtype and shape");
    return {};
}

}  // namespace

absl::StatusOr<std::string> safetensorsHeaderText(const SafetensorsHeader& header) {
    Json json = Json::object();
    if (!header.metadata.empty()) json[kMetadata] = header.metadata;
    for (const SafetensorsEntry& entry : header.entries)
        json[entry.name] = {{"dtype", entry.dtype},
                            {"shape", entry.shape},
                            {"data_offsets", {entry.begin, entry.end}}};
    std::string text = model::dumpJson(json);
    text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
    const uint64_t length = text.size();
    if (length > kLongestSafetensorsHeader)
        return absl::InvalidArgumentError(
            absl::StrCat("the names, shapes and metadata take ", length,
                         " bytes, and a safetensors file has at most ", kLongestSafetensorsHeader,
                         " for them; leave --optimizer out, or export --to torch"));
    return std::string(reinterpret_cast<const char*>(&length), kLengthBytes) + text;
}

absl::StatusOr<SafetensorsHeader> parseSafetensorsHeader(std::string_view text, uint64_t fileBytes,
                                                         const std::string& path) {
    const auto refuse = [&](const std::string& why) {
        return absl::InvalidArgumentError(absl::StrCat(path, ": ", why, kRemedy));
    };
    SafetensorsHeader header;
    header.dataBegin = kLengthBytes + text.size();
    if (fileBytes < header.dataBegin)
        return refuse(absl::StrCat("header: ", text.size(), " bytes in a file of ", fileBytes));
    HeaderReader reader(&header);
    if (!Json::sax_parse(text.begin(), text.end(), &reader))
        return refuse(reader.wrong().empty() ? "header: not JSON" : reader.wrong());
    const uint64_t dataBytes = fileBytes - header.dataBegin;
    for (const SafetensorsEntry& entry : header.entries)
        if (const std::string problem = problemOf(entry, dataBytes); !problem.empty())
            return refuse(absl::StrCat("tensor \"", shown(entry.name), "\": ", problem));
    std::sort(header.entries.begin(), header.entries.end(), [](const auto& a, const auto& b) {
        return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
    });
    uint64_t at = 0;
    for (const SafetensorsEntry& entry : header.entries) {
        if (entry.begin != at)
            return refuse(absl::StrCat("tensor \"", shown(entry.name), "\": data_offsets begin at ",
                                       entry.begin, ", expected ", at, ": tensors ",
                                       entry.begin < at ? "overlap" : "leave a gap"));
        at = entry.end;
    }
    if (at != dataBytes)
        return refuse(absl::StrCat("data: ", dataBytes - at, " bytes behind byte ", at,
                                   " belong to no tensor"));
    return header;
}

absl::StatusOr<SafetensorsHeader> readSafetensorsHeader(const FileSystem& files,
                                                        const std::string& path) {
    const absl::StatusOr<uint64_t> bytes = files.size(path);
    if (!bytes.ok()) return bytes.status();
    uint64_t length = 0;
    if (*bytes < kLengthBytes)
        return absl::InvalidArgumentError(absl::StrCat(path, ": header: a file of ", *bytes,
                                                       " bytes, expected its length in the first 8",
                                                       kRemedy));
    if (absl::Status s = files.read(path, 0, std::as_writable_bytes(std::span(&length, size_t{1})));
        !s.ok())
        return s;
    if (static_cast<uint32_t>(length) == kZipSignature)
        return absl::InvalidArgumentError(absl::StrCat(
            path,
            ": this is a zip, as torch.save writes it, expected safetensors; make one of it: "
            "python3 -m bulkhead safetensors ",
            path, " NEW"));
    if (length > kLongestSafetensorsHeader || length > *bytes - kLengthBytes)
        return absl::InvalidArgumentError(
            absl::StrCat(path, ": header: ", length, " bytes, expected at most ",
                         std::min(kLongestSafetensorsHeader, *bytes - kLengthBytes),
                         ": this is no safetensors file, or it is cut off", kRemedy));
    std::string text(length, '\0');
    if (absl::Status s = files.read(path, kLengthBytes, std::as_writable_bytes(std::span(text)));
        !s.ok())
        return s;
    return parseSafetensorsHeader(text, *bytes, path);
}

}  // namespace bulkhead::interchange
