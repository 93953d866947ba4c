// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/file_system.h"
#include "backend/runtime/agent/agent_messages.h"

namespace bulkhead::runtime {

/// The record on disk of one running rank.
struct RegisteredRank {
    RankProcess process;
    int32_t pid = 0;         ///< 0: it is about to be started
    uint64_t startTime = 0;  ///< ticks after boot, see processStartTime()
    GpuPlace gpu = {};
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("process", self.process);
        visit("pid", self.pid);
        visit("start_time", self.startTime);
        visit("gpu", self.gpu);
    }
};

/// The agent's memory across its own death: a folder with one small file per rank process, and
/// beside it whatever else is kept of the process. Owns the folder (a lock file keeps a second
/// agent out). Nothing is synced: no process outlives a power cut. Thread: one.
class RankRegistry {
  public:
    /// Makes `dir` and locks it. FailedPrecondition when another agent holds it. `files` outlives
    /// the registry.
    static absl::StatusOr<RankRegistry> open(FileSystem& files, const std::string& dir);

    /// All ranks noted, alive or not; unreadable files are skipped and removed.
    std::vector<RegisteredRank> load() const;

    /// In place of the note that there is of the rank; that stays when there is no room.
    absl::Status add(const RegisteredRank& rank);
    /// Forgets the rank and removes its pipes.
    void remove(const RankProcess& process);

    /// Files kept of the rank have this path and a suffix.
    std::string path(const RankProcess& process) const;

  private:
    RankRegistry(FileSystem& files, std::string dir, std::unique_ptr<FileLock> lock)
        : files_(&files), dir_(std::move(dir)), lock_(std::move(lock)) {}

    FileSystem* files_;
    std::string dir_;
    std::unique_ptr<FileLock> lock_;
};

}  // namespace bulkhead::runtime
