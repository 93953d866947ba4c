// SPDX-License-Identifier: Apache-2.0
#include "backend/model/program_files.h"

#include <algorithm>
#include <cstdlib>

#include "backend/model/names.h"

namespace bulkhead::model {
namespace {

namespace fs = std::filesystem;

/// Those between the colons of an environment variable.
std::vector<std::string> foldersOf(const char* variable) {
    const char* text = std::getenv(variable);
    std::vector<std::string> folders;
    for (std::string_view rest = text != nullptr ? text : ""; !rest.empty();) {
        const size_t end = std::min(rest.find(':'), rest.size());
        if (end > 0) folders.emplace_back(rest.substr(0, end));
        rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    return folders;
}

}  // namespace

std::string withoutLinks(const fs::path& path) {
    std::error_code error;
    const fs::path there = fs::weakly_canonical(path, error);
    return (error ? path.lexically_normal() : there).string();
}

std::string programFile(const std::string& program, const std::string& directory) {
    if (program.find('/') != std::string::npos)
        return withoutLinks(directory.empty() ? fs::path(program) : fs::path(directory) / program);
    for (const std::string& folder : foldersOf("PATH")) {
        std::error_code ignored;
        const fs::path candidate = fs::path(folder) / program;
        if (fs::is_regular_file(candidate, ignored)) return withoutLinks(candidate);
    }
    return {};
}

std::string pluginFile(std::string_view kind, const std::string& name,
                       const std::vector<std::string>& folders) {
    std::error_code ignored;
    if (name.find('/') != std::string::npos || name.ends_with(".so"))
        return fs::exists(name, ignored) ? fs::absolute(name).string() : "";
    for (const std::string& folder : folders)
        for (const std::string& file : {concat("bulkhead_", kind, "_", name, ".so"), name + ".so"})
            if (const fs::path path = fs::path(folder) / file; fs::exists(path, ignored))
                return path.string();
    return {};
}

std::vector<std::string> pluginFolders(const fs::path& program) {
    std::vector<std::string> folders = foldersOf("BULKHEAD_PLUGIN_PATH");
    for (const char* relative : {"../lib/bulkhead", "../plugins", "."})
        folders.push_back((program.parent_path() / relative).lexically_normal().string());
    return folders;
}

}  // namespace bulkhead::model
