// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/checkpoint/tensor_table.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace bulkhead::runtime {
namespace {

using nlohmann::json;

constexpr int kTableVersion = 1;
constexpr uint64_t kMostTableBytes = 1 << 30;
constexpr size_t kMostWords = 400;  // of a message: names may be long
constexpr size_t kMostDimensions = 64;
constexpr int kDeepest = 64;  // of JSON, and of a path

const std::map<TensorKind, std::string>& kindNames() {
    static const std::map<TensorKind, std::string> kNames = {
        {TensorKind::kParameter, "parameter"}, {TensorKind::kBuffer, "buffer"},
        {TensorKind::kOptimizer, "optimizer"}, {TensorKind::kNumber, "number"},
        {TensorKind::kPresence, "presence"},
    };
    return kNames;
}

TensorKind kindOf(const std::string& name) {
    for (const auto& [kind, known] : kindNames())
        if (known == name) return kind;
    throw std::runtime_error(absl::StrCat(
        "kind \"", name, "\", expected parameter, buffer, optimizer, number or presence"));
}

json pathJson(const std::vector<PathWord>& path) {
    json words = json::array();
    for (const PathWord& word : path)
        std::visit([&](const auto& value) { words.push_back(value); }, word);
    return words;
}

std::vector<PathWord> pathOf(const json& words) {
    std::vector<PathWord> path;
    if (!words.is_array() || words.empty() || words.size() > size_t{kDeepest})
        throw std::runtime_error(absl::StrCat("path: expected 1 to ", kDeepest, " words"));
    for (const json& word : words) {
        if (word.is_string())
            path.emplace_back(word.get<std::string>());
        else if (word.is_number_unsigned())
            path.emplace_back(word.get<uint64_t>());
        else
            throw std::runtime_error("path: expected names and indices");
    }
    return path;
}

std::vector<uint64_t> countsOf(const json& part, const char* key) {
    std::vector<uint64_t> counts;
    const json& all = part.at(key);
    if (!all.is_array() || all.size() > kMostDimensions)
        throw std::runtime_error(
            absl::StrCat(key, ": expected a list of at most ", kMostDimensions, " counts"));
    for (const json& count : all) {
        if (!count.is_number_unsigned())
            throw std::runtime_error(absl::StrCat(key, ": expected counts of 0 or more"));
        counts.push_back(count.get<uint64_t>());
    }
    return counts;
}

json partJson(const TensorPart& part) {
    json out = {{"name", part.name},
                {"kind", kindNames().at(part.kind)},
                {"dtype", part.dtype},
                {"shape", part.shape},
                {"offset", part.offset}};
    if (!part.path.empty()) out["path"] = pathJson(part.path);
    if (part.box) {
        out["begin"] = part.box->begin;
        out["extent"] = part.box->extent;
        if (part.box->flat) out["flat"] = true;
    }
    if (!part.unknownLayout.empty()) out["unknown_layout"] = part.unknownLayout;
    return out;
}

uint64_t boxBytes(const TensorPart& part) {
    const auto bytes = tensorBytes(part.dtype, part.box ? part.box->extent : part.shape);
    if (!bytes) throw std::runtime_error("shape: more bytes than a state can have");
    return *bytes;
}

void checkBox(const TensorPart& part) {
    if (!tensorBytes(part.dtype, part.shape))
        throw std::runtime_error("shape: more bytes than a tensor can have");
    if (!part.box) return;
    std::vector<uint64_t> whole = part.shape;
    if (part.box->flat) whole = {*tensorBytes(part.dtype, part.shape) / elementBytes(part.dtype)};
    const auto& [flat, begin, extent] = *part.box;
    if (begin.size() != whole.size() || extent.size() != whole.size())
        throw std::runtime_error(
            absl::StrCat("begin and extent: expected ", whole.size(), " dimensions"));
    for (size_t i = 0; i < whole.size(); ++i)
        if (begin[i] > whole[i] || extent[i] > whole[i] - begin[i])
            throw std::runtime_error(absl::StrCat("begin and extent: outside of dimension ", i,
                                                  ", which has ", whole[i], " elements"));
}

TensorPart partOf(const json& in) {
    TensorPart part;
    part.kind = kindOf(in.at("kind"));
    part.dtype = in.at("dtype");
    if (elementBytes(part.dtype) == 0)
        throw std::runtime_error(absl::StrCat("dtype \"", part.dtype, "\" is not known here"));
    part.shape = countsOf(in, "shape");
    if (!in.at("offset").is_number_unsigned())
        throw std::runtime_error("offset: expected a count of 0 or more");
    part.offset = in.at("offset");
    if (in.contains("path")) part.path = pathOf(in.at("path"));
    if (in.contains("begin"))
        part.box = {in.value("flat", false), countsOf(in, "begin"), countsOf(in, "extent")};
    part.unknownLayout = in.value("unknown_layout", "");
    const bool number = part.kind == TensorKind::kNumber || part.kind == TensorKind::kPresence;
    if (number != (part.dtype == kNumberDtype) || (number && (!part.shape.empty() || part.box)))
        throw std::runtime_error(
            absl::StrCat("a number has dtype ", kNumberDtype, " and no shape, a tensor has not"));
    checkBox(part);
    return part;
}

/// Every byte of the state is one tensor's at most, or an import would depend on their order.
void checkApart(const TensorTable& table) {
    std::vector<std::tuple<uint64_t, uint64_t, const TensorPart*>> places;
    for (const TensorPart& part : table.tensors) {
        const uint64_t bytes = boxBytes(part);
        if (part.offset > table.stateBytes || bytes > table.stateBytes - part.offset)
            throw std::runtime_error(absl::StrCat(part.name, ": offset ", part.offset, " and ",
                                                  bytes, " bytes, expected to end within the ",
                                                  table.stateBytes, " bytes of the state"));
        if (bytes > 0) places.emplace_back(part.offset, part.offset + bytes, &part);
    }
    std::sort(places.begin(), places.end());
    for (size_t i = 1; i < places.size(); ++i)
        if (std::get<0>(places[i]) < std::get<1>(places[i - 1]))
            throw std::runtime_error(absl::StrCat(std::get<2>(places[i])->name, ": lies over ",
                                                  std::get<2>(places[i - 1])->name));
}

TensorTable tableOf(const json& in) {
    if (in.at("version") != kTableVersion)
        throw std::runtime_error(absl::StrCat("its version is ", in.at("version").dump(),
                                              ", this program reads ", kTableVersion));
    TensorTable table;
    table.model = in.value("model", "");
    if (!in.at("state_bytes").is_number_unsigned())
        throw std::runtime_error("state_bytes: expected a count of 0 or more");
    table.stateBytes = in.at("state_bytes");
    std::set<std::string> names;
    for (const json& one : in.at("tensors")) {
        const std::string name = one.at("name");
        try {
            table.tensors.push_back(partOf(one));
        } catch (const std::exception& e) {
            throw std::runtime_error(absl::StrCat(name, ": ", e.what()));
        }
        table.tensors.back().name = name;
        if (!names.insert(name).second)
            throw std::runtime_error(absl::StrCat(name, ": it is there twice"));
    }
    const std::set<std::string> tensors = names;
    for (const json& alias : in.value("aliases", json::array())) {
        table.aliases.emplace_back(alias.at("name"), alias.at("of"));
        const auto& [name, of] = table.aliases.back();
        if (!names.insert(name).second)
            throw std::runtime_error(absl::StrCat(name, ": it is there twice"));
        if (!tensors.contains(of))
            throw std::runtime_error(absl::StrCat(name, ": there is no tensor ", of));
    }
    for (const json& constant : in.value("constants", json::array()))
        table.constants.push_back({pathOf(constant.at("path")), constant.at("value").dump()});
    checkApart(table);
    return table;
}

}  // namespace

uint64_t elementBytes(const std::string& dtype) {
    static const std::map<std::string, uint64_t> kBytes = {
        {"BOOL", 1},    {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1},
        {"F8_E5M2", 1}, {"U16", 2}, {"I16", 2}, {"F16", 2},
        {"BF16", 2},    {"U32", 4}, {"I32", 4}, {"F32", 4},
        {"U64", 8},     {"I64", 8}, {"F64", 8}, {kNumberDtype, kNumberBytes},
    };
    const auto found = kBytes.find(dtype);
    return found == kBytes.end() ? 0 : found->second;
}

std::optional<uint64_t> tensorBytes(const std::string& dtype, const std::vector<uint64_t>& shape) {
    constexpr uint64_t kMost = (uint64_t{1} << 63) - 1;
    uint64_t bytes = elementBytes(dtype);
    if (bytes == 0) return std::nullopt;
    // A dimension of 0 makes the product 0, whatever the others are; they must be sane all the
    // same.
    bool empty = false;
    for (const uint64_t count : shape) {
        empty = empty || count == 0;
        if (count > 0 && bytes > kMost / count) return std::nullopt;
        if (count > 0) bytes *= count;
    }
    return empty ? 0 : bytes;
}

std::string tensorTableText(const TensorTable& table) {
    json tensors = json::array(), aliases = json::array(), constants = json::array();
    for (const TensorPart& part : table.tensors) tensors.push_back(partJson(part));
    for (const auto& [name, of] : table.aliases) aliases.push_back({{"name", name}, {"of", of}});
    for (const TensorConstant& constant : table.constants)
        constants.push_back(
            {{"path", pathJson(constant.path)}, {"value", json::parse(constant.json)}});
    return json{{"version", kTableVersion},
                {"model", table.model},
                {"state_bytes", table.stateBytes},
                {"tensors", tensors},
                {"aliases", aliases},
                {"constants", constants}}
               .dump() +
           "\n";
}

absl::StatusOr<TensorTable> parseTensorTable(const std::string& path, const std::string& text) {
    const auto wrong = [&](const std::string& what) {
        return absl::DataLossError(absl::StrCat(path, " is no tensor table: ", what,
                                                "; put back the file that was there"));
    };
    try {
        return tableOf(json::parse(text, [](int depth, json::parse_event_t, json&) {
            if (depth > kDeepest) throw std::runtime_error("nested too deep");
            return true;
        }));
    } catch (const json::parse_error& e) {
        return wrong(absl::StrCat("not JSON: error at byte ", e.byte));
    } catch (const std::exception& e) {
        // The JSON library's name of the error stands in front of its words.
        const std::string what = std::string(e.what()).substr(0, kMostWords);
        return wrong(what.starts_with("[json.") ? what.substr(what.find("] ") + 2) : what);
    }
}

std::string tensorTablePath(const std::string& shardFile) {
    return absl::StrCat(absl::StripSuffix(shardFile, ".state"), ".tensors.json");
}

absl::StatusOr<TensorTable> readTensorTable(const FileSystem& files, const std::string& shardFile) {
    const std::string path = tensorTablePath(shardFile);
    const absl::StatusOr<uint64_t> bytes = files.size(path);
    if (absl::IsNotFound(bytes.status()))
        return absl::FailedPreconditionError(absl::StrCat(
            path,
            " is not there: this checkpoint does not say which tensors it holds, because an older "
            "version or a workload that does not name them wrote it; go on from it for one step "
            "(bulkheadctl up --resume) and take the checkpoint that this writes"));
    if (!bytes.ok()) return bytes.status();
    if (*bytes > kMostTableBytes)
        return absl::ResourceExhaustedError(
            absl::StrCat(path, " has ", *bytes, " bytes; a table has at most ", kMostTableBytes));
    const absl::StatusOr<std::string> text = files.read(path);
    if (!text.ok()) return text.status();
    return parseTensorTable(path, *text);
}

}  // namespace bulkhead::runtime
