// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/model/job_spec.h"

/// An allow-list says what the jobs of others may run, load, read and write as this user. Links are
/// followed before a path is compared. Thread: any; a value.
namespace bulkhead::model {

struct AllowList {
    std::vector<std::string> commands;     ///< programs: paths, or names that PATH has
    std::vector<std::string> plugins;      ///< folders of workloads and devices named by a path
    std::vector<std::string> data;         ///< folders and files of training text
    std::vector<std::string> models;       ///< folders and files for `file` of a [model] table
    std::vector<std::string> checkpoints;  ///< folders for `checkpoint_dir`
    std::vector<std::string> environment;  ///< variables of a command: NAME, or PREFIX*
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("commands", self.commands);
        visit("plugins", self.plugins);
        visit("data", self.data);
        visit("models", self.models);
        visit("checkpoints", self.checkpoints);
        visit("environment", self.environment);
    }
};

/// `pattern`: NAME, or PREFIX*.
bool matchesName(std::string_view name, std::string_view pattern);

/// nullopt when there is no such file: everything is allowed. Errors name file, line and key;
/// PermissionDenied when others can write it.
absl::StatusOr<std::optional<AllowList>> readAllowList(const std::string& file);

/// PermissionDenied naming key, value, what is allowed, and `file`, where the list was read.
absl::Status checkAllowed(const AllowList& list, const JobSpec& spec, const std::string& file);
/// The same for the `file` of a job's [model] table.
absl::Status checkModelFile(const AllowList& list, const std::string& path,
                            const std::string& file);
/// The same for a checkpoint's manifest that a job goes on from: allowed below `stateDir` too.
absl::Status checkResume(const AllowList& list, const std::string& manifest,
                         const std::string& stateDir, const std::string& file);
/// The same for a program that runs in `directory`, with variables NAME=value of the job.
absl::Status checkAllowed(const AllowList& list, const std::string& program,
                          const std::string& directory, const std::vector<std::string>& environment,
                          const std::string& file);

}  // namespace bulkhead::model
