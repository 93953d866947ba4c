// SPDX-License-Identifier: Apache-2.0
#include "backend/model/job_file.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>

#include "backend/model/names.h"
#include "backend/model/toml_reader.h"

namespace bulkhead::model {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<std::string> readText(const fs::path& file) {
    std::error_code error;
    const fs::file_status kind = fs::status(file, error);
    if (!fs::exists(kind))
        return absl::NotFoundError(concat(file.string(), ": no such file; name a job file (TOML)"));
    if (!fs::is_regular_file(kind))
        return absl::InvalidArgumentError(
            concat(file.string(), ": not a file; name a job file (TOML)"));
    std::ifstream in(file, std::ios::binary);
    if (!in)
        return absl::PermissionDeniedError(concat(
            file.string(), ": cannot be read (", std::strerror(errno), "); check its permissions"));
    constexpr std::streamsize kMost = (1 << 20) + 1;  // parseToml refuses what is longer
    std::string text(static_cast<size_t>(kMost), '\0');
    in.read(text.data(), kMost);
    if (in.bad()) return absl::UnavailableError(concat(file.string(), ": reading failed"));
    text.resize(static_cast<size_t>(in.gcount()));
    return text;
}

fs::path homeFolder() {
    const char* home = std::getenv("HOME");
    return home && *home ? fs::path(home) : fs::path("/");
}

std::string resolved(const std::string& path, const fs::path& folder) {
    if (path.substr(0, 2) == "~/") return (homeFolder() / path.substr(2)).lexically_normal();
    return fs::absolute(folder / path).lexically_normal().string();
}

/// The [model] table as text, after the keys of the file that its key `file` names.
absl::Status takeModel(const toml::table& root, const fs::path& folder, const MayReadModel& mayRead,
                       TomlReader& reader, JobSpec& spec) {
    const toml::node* node = root.get("model");
    if (!node) return absl::OkStatus();
    const toml::table* table = node->as_table();
    if (!table) {
        reader.failAt(node->source(), "model: expected a table [model]");
        return reader.status();
    }
    toml::table merged;
    if (const toml::node* file = table->get("file")) {
        if (!file->is_string()) {
            reader.failAt(file->source(), "model.file: expected the path of a TOML file");
            return reader.status();
        }
        const std::string path = resolved(file->as_string()->get(), folder);
        if (mayRead)
            if (absl::Status s = mayRead(path); !s.ok()) return s;
        const absl::StatusOr<std::string> text = readText(path);
        if (!text.ok()) {
            reader.failAt(file->source(),
                          concat("model.file: ", std::string(text.status().message())));
            return reader.status();
        }
        if (absl::Status s = parseToml(*text, path, merged); !s.ok()) return s;
    }
    for (const auto& [key, value] : *table)
        if (key.str() != "file") merged.insert_or_assign(key.str(), value);
    std::ostringstream out;
    out << toml::toml_formatter(merged) << '\n';
    spec.modelToml = out.str();
    return absl::OkStatus();
}

/// Defaults of a job with a command: nothing is known of its samples, imports take long, and so may
/// a batch, which one replica may finish long after the others that wait for it in the exchange.
void fillInCommand(const toml::table& root, JobSpec& spec, const fs::path& folder) {
    constexpr uint32_t kGraceMs = 60'000;
    spec.directory = resolved(spec.directory, folder);
    if (spec.domains.empty()) spec.domains.push_back({"data", {}});
    if (!root.contains("shards")) spec.shards = 1;
    if (!root.contains("sequence_length")) spec.sequenceLength = 1;
    if (!root.at_path("timeouts.join_ms")) spec.timeouts.joinMs = kGraceMs;
    if (!root.at_path("timeouts.progress_floor_ms")) spec.timeouts.progressFloorMs = kGraceMs;
    if (!root.at_path("timeouts.chunk_floor_ms")) spec.timeouts.chunkFloorMs = kGraceMs;
}

void fillIn(JobSpec& spec, std::string_view name, const fs::path& folder) {
    if (spec.name.empty()) spec.name = fs::path(name).stem().string();
    for (DomainSpec& domain : spec.domains)
        for (std::string& path : domain.paths) path = resolved(path, folder);
    if (!spec.checkpointDir.empty()) spec.checkpointDir = resolved(spec.checkpointDir, folder);
}

}  // namespace

absl::StatusOr<JobSpec> parseJob(std::string_view text, std::string_view name,
                                 const fs::path& folder, const MayReadModel& mayRead) {
    toml::table root;
    if (absl::Status s = parseToml(text, name, root); !s.ok()) return s;
    TomlReader reader{std::string(name)};
    JobSpec spec;
    if (absl::Status s = takeModel(root, folder, mayRead, reader, spec); !s.ok()) return s;
    if (const auto word = root["faults"].value<std::string>()) {
        if (*word != "on" && *word != "off") {
            reader.failAt(root.get("faults")->source(),
                          concat("faults: expected \"on\", \"off\" or a list of faults, found \"",
                                 *word, "\""));
            return reader.status();
        }
        root.erase("faults");
        root.insert_or_assign("allow_faults", *word == "on");
    }
    if (const toml::node* raw = root.get("model_toml")) {
        reader.failAt(raw->source(), "model_toml: unknown key; write a table [model] instead");
        return reader.status();
    }
    reader.readTable(root, spec, {"model"});
    if (reader.failed()) return reader.status();
    if (!spec.command.empty()) fillInCommand(root, spec, folder);
    fillIn(spec, name, folder);
    if (absl::Status s = checkJob(spec); !s.ok())
        return absl::InvalidArgumentError(reader.located(std::string(s.message())));
    return spec;
}

absl::StatusOr<JobSpec> readJobFile(const fs::path& file) {
    const absl::StatusOr<std::string> text = readText(file);
    if (!text.ok()) return text.status();
    return parseJob(*text, file.string(), fs::absolute(file).parent_path());
}

}  // namespace bulkhead::model
