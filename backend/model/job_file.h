// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/model/job_spec.h"

/// A job's TOML file into a JobSpec. Keys are the field names of JobSpec, Policies, Timeouts and
/// OptimizerSpec, the last three as tables; [[domains]] and [[placement]] are arrays of tables.
/// `[model]` is handed to the workload as TOML text; its key `file` names another TOML file whose
/// keys come first and may be overridden beside it, so that the spec needs no file afterwards.
/// resources/jobs/demo.toml shows all of it.
/// A job with a `command` runs in `directory` (default: the file's folder), has one domain "data"
/// where none is named, one shard, samples of one token, and a minute (join_ms,
/// progress_floor_ms, chunk_floor_ms) for all replicas to join, for a batch, and for the slowest.
/// Errors are InvalidArgument (NotFound for a file that is not there) and read
/// "jobs/a.toml:12: policies.lr: expected one of none, linear, sqrt, found \"square\"".
/// Thread: any; nothing is kept.
namespace bulkhead::model {

/// Reads and validates (checkJob). Relative paths are taken from the file's folder, "~/" is the
/// home folder. Without `name` the job is called as the file; without `checkpoint_dir` it stays
/// empty, and whoever runs the job gives it a folder of its own.
[[nodiscard]] absl::StatusOr<JobSpec> readJobFile(const std::filesystem::path& file);

/// Says why the `file` of a [model] table may not be read, if so. Empty: every file may be.
using MayReadModel = std::function<absl::Status(const std::string& path)>;

/// The same from text; `name` stands for the file in messages, `folder` for where it would lie.
[[nodiscard]] absl::StatusOr<JobSpec> parseJob(std::string_view toml, std::string_view name,
                                               const std::filesystem::path& folder,
                                               const MayReadModel& mayRead = {});

/// Checks that need no file: counts of at least one, samples that divide over
/// shards and micro-batches, every replica placed exactly once, min_replicas within replicas,
/// domains named once, faults that parse and name replicas and nodes there are.
/// InvalidArgument naming the key. `readJobFile` has called it; call it after changing a spec.
[[nodiscard]] absl::Status checkJob(const JobSpec& spec);

/// The part of that check that concerns replicas, spares and shards: an earlier version may have
/// let in a run that is recovered now.
[[nodiscard]] absl::Status checkSize(const JobSpec& spec);

/// Touches the disk: every path of every domain is a readable text file or a folder with at least
/// one below it, and a domain has text for one sample or more. A job with a command reads its data
/// itself. NotFound, PermissionDenied or InvalidArgument, naming domain, path and what to do. Reads
/// only the head of each file.
[[nodiscard]] absl::Status checkData(const JobSpec& spec);

/// Bytes of all domains' text on disk, as checkData counts them; errors as there.
[[nodiscard]] absl::StatusOr<uint64_t> dataBytes(const JobSpec& spec);

/// `--data DIR`: each text file or folder directly inside DIR becomes a domain named after it
/// (without extension), in name order; hidden ones are passed over. NotFound, or InvalidArgument
/// when there is nothing in it.
[[nodiscard]] absl::StatusOr<std::vector<DomainSpec>> domainsOfFolder(
    const std::filesystem::path& folder);

}  // namespace bulkhead::model
