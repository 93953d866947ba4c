// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/file_system.h"
#include "backend/runtime/protocol/commit_log.h"

namespace bulkhead::runtime {

/// The file a run's decisions stand in before anybody hears of them: appended, synced, never
/// changed. Hold the run's lock (lockRun) while writing. Thread: one.
class CommitLog {
  public:
    /// Opens or makes `path`; a write that a crash cut short is cut off. DataLoss when the file is
    /// damaged before its end (naming the byte), Unavailable with the system's reason.
    static absl::StatusOr<CommitLog> open(FileSystem& files, const std::string& path);

    /// Returns the entries found at opening, once: those of a long run are hundreds of MB.
    std::vector<protocol::LogEntry> takeEntries() { return std::exchange(entries_, {}); }
    bool hadTornTail() const { return hadTornTail_; }

    /// All entries are durable when this returns OK. After an error nothing may be appended any
    /// more (FailedPrecondition): what is on disk is unknown until the log is opened again.
    absl::Status append(const std::vector<protocol::LogEntry>& entries);
    /// Nothing is appended any more.
    void close() { file_.reset(); }

  private:
    CommitLog(std::string path, std::unique_ptr<AppendFile> file)
        : path_(std::move(path)), file_(std::move(file)) {}

    std::string path_;
    std::unique_ptr<AppendFile> file_;
    std::vector<protocol::LogEntry> entries_;
    bool hadTornTail_ = false;
    bool broken_ = false;
};

}  // namespace bulkhead::runtime
