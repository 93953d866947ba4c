// SPDX-License-Identifier: Apache-2.0
#include "backend/model/allow_list.h"

#include <algorithm>
#include <filesystem>

#include "backend/common/file_system.h"
#include "backend/model/names.h"
#include "backend/model/program_files.h"
#include "backend/model/toml_reader.h"

namespace bulkhead::model {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMostBytes = 1 << 20;

bool isBelow(const std::string& path, const std::string& root) {
    const fs::path inner(path), outer(root);
    return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first ==
           outer.end();
}

bool isBelowAny(const std::string& path, const std::vector<std::string>& roots) {
    const std::string found = withoutLinks(path);
    return std::any_of(roots.begin(), roots.end(),
                       [&](const std::string& root) { return isBelow(found, withoutLinks(root)); });
}

absl::Status refused(std::string_view key, const std::string& value, std::string_view list,
                     const std::vector<std::string>& allowed, const std::string& file) {
    return absl::PermissionDeniedError(concat(
        key, ": ", shortened(value, 200), " is not allowed here; add it to ", list, " in ", file,
        ", which has ", allowed.empty() ? "nothing" : joined(allowed, ", "), " there"));
}

}  // namespace

bool matchesName(std::string_view name, std::string_view pattern) {
    return pattern.ends_with('*') ? name.starts_with(pattern.substr(0, pattern.size() - 1))
                                  : name == pattern;
}

absl::StatusOr<std::optional<AllowList>> readAllowList(const std::string& file) {
    const auto text = readTrusted(file, kMostBytes);
    if (absl::IsNotFound(text.status())) return std::nullopt;
    if (!text.ok()) return text.status();
    toml::table table;
    if (absl::Status status = parseToml(*text, file, table); !status.ok()) return status;
    TomlReader reader(file);
    AllowList list;
    reader.readTable(table, list);
    if (reader.failed()) return reader.status();
    for (const auto& [key, roots] : {std::pair{"plugins", &list.plugins},
                                     {"data", &list.data},
                                     {"models", &list.models},
                                     {"checkpoints", &list.checkpoints}})
        for (size_t i = 0; i < roots->size(); ++i)
            if (!(*roots)[i].starts_with('/'))
                return absl::InvalidArgumentError(reader.located(concat(
                    key, "[", i, "]: expected an absolute path, found \"", (*roots)[i], "\"")));
    return list;
}

absl::Status checkAllowed(const AllowList& list, const std::string& program,
                          const std::string& directory, const std::vector<std::string>& environment,
                          const std::string& file) {
    const std::string found = programFile(program, directory);
    const bool known = !found.empty() && std::any_of(list.commands.begin(), list.commands.end(),
                                                     [&](const std::string& allowed) {
                                                         return programFile(allowed, "") == found;
                                                     });
    if (!known) return refused("command", program, "commands", list.commands, file);
    for (const std::string& variable : environment) {
        const std::string name = variable.substr(0, variable.find('='));
        if (std::none_of(list.environment.begin(), list.environment.end(),
                         [&](const std::string& pattern) { return matchesName(name, pattern); }))
            return refused("env", name, "environment", list.environment, file);
    }
    return absl::OkStatus();
}

absl::Status checkAllowed(const AllowList& list, const JobSpec& spec, const std::string& file) {
    if (!spec.command.empty())
        if (absl::Status s =
                checkAllowed(list, spec.command.front(), spec.directory, spec.env, file);
            !s.ok())
            return s;
    for (const auto& [key, plugin] :
         {std::pair{"workload", &spec.workload}, {"device", &spec.device}})
        if (plugin->find('/') != std::string::npos && !isBelowAny(*plugin, list.plugins))
            return refused(key, *plugin, "plugins", list.plugins, file);
    for (const DomainSpec& domain : spec.domains)
        for (const std::string& path : domain.paths)
            if (!isBelowAny(path, list.data))
                return refused(concat("domains.", domain.name), path, "data", list.data, file);
    if (!spec.checkpointDir.empty() && !isBelowAny(spec.checkpointDir, list.checkpoints))
        return refused("checkpoint_dir", spec.checkpointDir, "checkpoints", list.checkpoints, file);
    return absl::OkStatus();
}

absl::Status checkModelFile(const AllowList& list, const std::string& path,
                            const std::string& file) {
    if (isBelowAny(path, list.models)) return absl::OkStatus();
    return refused("model.file", path, "models", list.models, file);
}

absl::Status checkResume(const AllowList& list, const std::string& manifest,
                         const std::string& stateDir, const std::string& file) {
    if (isBelow(withoutLinks(manifest), withoutLinks(stateDir)) ||
        isBelowAny(manifest, list.checkpoints))
        return absl::OkStatus();
    return refused("resume", manifest, "checkpoints", list.checkpoints, file);
}

}  // namespace bulkhead::model
