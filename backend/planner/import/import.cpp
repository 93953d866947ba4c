// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/import/import.h"

#include <algorithm>
#include <functional>
#include <new>
#include <vector>

#include "backend/model/names.h"
#include "backend/planner/import/balance_log.h"
#include "backend/planner/import/json_fields.h"
#include "backend/planner/import/json_lines.h"
#include "backend/planner/import/layers.h"
#include "backend/planner/import/meta_json.h"
#include "backend/planner/import/plain_npy.h"
#include "backend/planner/import/refusal.h"
#include "backend/planner/import/returned_routing.h"
#include "backend/planner/import/sglang_recorder.h"
#include "backend/planner/import/trtllm.h"

namespace bulkhead::planner {
namespace {

using model::concat;

/// JSON becomes some ten times its size in memory.
constexpr size_t kMostJson = size_t{512} << 20;

absl::Status unknown(std::string_view name) {
    return absl::InvalidArgumentError(
        concat(name,
               ": no recording of routing in a form that is known here; "
               "docs/planner-formats.md lists the forms"));
}

absl::StatusOr<Recording> readJson(std::string_view name, std::string_view bytes,
                                   const Files& files, const ImportOptions& options) {
    if (bytes.size() > kMostJson)
        return absl::ResourceExhaustedError(concat(name, ": ", bytes.size(),
                                                   " bytes of JSON, at most ", kMostJson,
                                                   " are read; use JSON Lines or npy"));
    auto json = parseJsonFile(bytes, name);
    // Several values, one a line, are no JSON text as a whole.
    if (!json.ok()) {
        const std::string_view firstLine = bytes.substr(0, bytes.find('\n'));
        if (firstLine.size() < bytes.size() && parseJsonFile(firstLine, name).ok())
            return readJsonLines(bytes, name, options);
        return json.status();
    }
    if (looksLikeMeta(*json)) return readMeta(*json, name, files, options);
    if (looksLikeTrtllm(*json)) return readTrtllm(*json, name, files, options);
    if (looksLikeResponse(*json)) {
        std::vector<Response> responses;
        if (json->is_object()) responses.push_back({&*json, ""});
        for (size_t i = 0; json->is_array() && i < json->size(); ++i)
            responses.push_back({&(*json)[i], concat("[", i, "]")});
        return readResponses(responses, name, options);
    }
    if (json->is_object()) return readJsonLines(bytes, name, options);
    return unknown(name);
}

absl::Status checkJsonLines(std::string_view name, uint64_t bytes) {
    if (bytes <= kMostJsonLines) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        concat(name, ": ", bytes, " bytes of JSON Lines, at most ", kMostJsonLines,
               " are read; record a shorter stretch, or name parts with --routing each"));
}

/// A file that a text editor or another system has saved in an encoding JSON does not know.
absl::Status checkEncoding(std::string_view name, std::string_view bytes) {
    if (bytes.starts_with("\xEF\xBB\xBF"))
        return refuse(name, "it begins with a byte order mark (BOM); save it as UTF-8 without one");
    if (bytes.starts_with("\xFF\xFE") || bytes.starts_with("\xFE\xFF"))
        return refuse(name, "it begins with the byte order mark (BOM) of UTF-16; save it as UTF-8");
    return absl::OkStatus();
}

/// `read()`, or a refusal where it needs more memory than there is.
absl::StatusOr<Recording> withinMemory(std::string_view name,
                                       const std::function<absl::StatusOr<Recording>()>& read) {
    try {
        return read();
    } catch (const std::bad_alloc&) {
        return absl::ResourceExhaustedError(
            concat(name, ": reading it takes more memory than there is; record a shorter stretch"));
    }
}

absl::StatusOr<Recording> readAny(std::string_view name, const Files& files,
                                  const ImportOptions& options) {
    if (files.size && name.ends_with(".jsonl"))
        if (absl::Status ok = checkJsonLines(name, files.size(name)); !ok.ok()) return ok;
    auto bytes = files.read(name);
    if (!bytes.ok()) return bytes.status();
    if (looksLikeTorch(*bytes)) return readSglang({std::string(name)}, files, options);
    if (bytes->starts_with("\x93NUMPY")) return readPlainNpy(*bytes, name, options);
    if (looksLikeBalanceLog(*bytes)) return readBalanceLog(*bytes, name);
    if (name.ends_with(".safetensors"))
        return absl::InvalidArgumentError(
            concat(name, ": one rank's statistics; name the meta_info.json beside it"));
    if (absl::Status ok = checkEncoding(name, *bytes); !ok.ok()) return ok;
    const size_t first = bytes->find_first_not_of(" \t\r\n");
    if (first == std::string::npos)
        return absl::InvalidArgumentError(concat(name, ": it is empty"));
    if ((*bytes)[first] != '{' && (*bytes)[first] != '[') return unknown(name);
    return name.ends_with(".jsonl") ? readJsonLines(*bytes, name, options)
                                    : readJson(name, *bytes, files, options);
}

/// Counts must be of a model that can be, add up without wrapping, and not be nothing.
absl::Status checkCounts(const Recording& recording, std::string_view name) {
    ModelShape shape = recording.shape;
    shape.topK = std::max(shape.topK, 1u);  // counts need not say it
    if (absl::Status ok = checkShape(shape); !ok.ok())
        return refuse(name, std::string(ok.message()));
    uint64_t sum = 0;
    for (const CountsWindow& window : recording.windows)
        for (const uint64_t tokens : window.counts.values())
            if (tokens > kMostCount || !addTokens(static_cast<int64_t>(tokens), sum))
                return refuse(name, concat("more than ", kMostCount, " tokens in all"));
    if (sum == 0) return refuse(name, "nothing was routed: every count in it is 0");
    return absl::OkStatus();
}

/// Adds to a recording the model properties that the options give, and checks that they agree.
absl::StatusOr<Recording> described(absl::StatusOr<Recording> recording, std::string_view name,
                                    const ImportOptions& options) {
    if (!recording.ok() || recording->shape.experts == 0) return recording;
    if (absl::Status ok = agree(options, name, recording->shape); !ok.ok()) return ok;
    if (!recording->routing)
        if (absl::Status ok = checkCounts(*recording, name); !ok.ok()) return ok;
    if (recording->routing)
        if (absl::Status ok = recording->routing->describe(recording->shape); !ok.ok()) return ok;
    return recording;
}

absl::StatusOr<Recording> importFolder(const std::filesystem::path& folder,
                                       const ImportOptions& options) {
    const Files files = filesOf(folder, options.mostBytes);
    const auto has = [&](std::string_view name) {
        return std::find(files.names.begin(), files.names.end(), name) != files.names.end();
    };
    for (const char* name : {"meta.json", "meta_info.json"})
        if (has(name)) return importFile(name, files, options);
    std::vector<std::string> dumps;
    for (const std::string& name : files.names)
        if (name.ends_with(".pt")) dumps.push_back(name);
    if (!dumps.empty()) return importRanks(dumps, files, options);
    return absl::InvalidArgumentError(
        concat(folder.string(),
               ": a folder with none of meta.json, meta_info.json and .pt dumps; "
               "name a file in it"));
}

}  // namespace

absl::StatusOr<Recording> importFile(std::string_view name, const Files& files,
                                     const ImportOptions& options) {
    return withinMemory(name,
                        [&] { return described(readAny(name, files, options), name, options); });
}

absl::StatusOr<Recording> importRanks(const std::vector<std::string>& names, const Files& files,
                                      const ImportOptions& options) {
    return withinMemory(
        names[0], [&] { return described(readSglang(names, files, options), names[0], options); });
}

absl::StatusOr<Recording> importRecording(const std::filesystem::path& path,
                                          const ImportOptions& options) {
    std::error_code error;
    const bool folder = std::filesystem::is_directory(path, error);
    const std::filesystem::path parent = folder ? path : path.parent_path();
    auto recording =
        folder ? importFolder(path, options)
               : importFile(path.filename().string(),
                            filesOf(parent.empty() ? "." : parent, options.mostBytes), options);
    if (recording.ok()) recording->source = (parent / recording->source).string();
    return recording;
}

}  // namespace bulkhead::planner
