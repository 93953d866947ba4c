// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/runtime/agent/agent_messages.h"
#include "backend/runtime/agent/process.h"

namespace bulkhead::runtime {

/// What is on disk of one running rank.
struct RegisteredRank {
    RankProcess process;
    int32_t pid = 0;
    uint64_t startTime = 0;  ///< ticks after boot, see processStartTime()
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("process", self.process);
        visit("pid", self.pid);
        visit("start_time", self.startTime);
    }
};

/// The agent's memory across its own death: a folder with one small file per rank process and its
/// two output pipes. Owns the folder (a lock file keeps a second agent out). Thread: one.
class RankRegistry {
  public:
    /// Creates `dir` (mode 0700) and locks it. FailedPrecondition when another agent holds it.
    static absl::StatusOr<RankRegistry> open(const std::string& dir);

    /// All ranks noted, alive or not; unreadable files are skipped and removed.
    std::vector<RegisteredRank> load() const;

    absl::Status add(const RegisteredRank& rank);
    /// Forgets the rank and removes its pipes.
    void remove(const RankProcess& process);

    /// Path of the rank's output pipe; the pipe is made when absent.
    absl::StatusOr<std::string> pipe(const RankProcess& process, bool isStderr) const;

  private:
    RankRegistry(std::string dir, UniqueFd lock) : dir_(std::move(dir)), lock_(std::move(lock)) {}
    std::string path(const RankProcess& process, const char* suffix) const;

    std::string dir_;
    UniqueFd lock_;
};

}  // namespace bulkhead::runtime
