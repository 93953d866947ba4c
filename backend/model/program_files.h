// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

/// Files that the processes of a job run, by the names that a job gives them. Thread: any.
namespace bulkhead::model {

/// The path as the system would find it, without links.
std::string withoutLinks(const std::filesystem::path& path);

/// The file that posix_spawnp would run in `directory`, resolved; empty: none.
std::string programFile(const std::string& program, const std::string& directory);

/// A plugin by its path, or by its name in the first of `folders` that has it:
/// bulkhead_KIND_NAME.so or NAME.so. Empty: none.
std::string pluginFile(std::string_view kind, const std::string& name,
                       const std::vector<std::string>& folders);

/// Folders in which `program`, a path, looks for plugins: those of BULKHEAD_PLUGIN_PATH, then those
/// about its own.
std::vector<std::string> pluginFolders(const std::filesystem::path& program);

}  // namespace bulkhead::model
