// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "backend/common/clock.h"
#include "backend/common/threads.h"
#include "backend/history/run_store.h"
#include "backend/model/listing.h"
#include "backend/service/replay.h"

namespace bulkhead::service {

/// Answers from the runs' folders, by a run's id. Unset: there are none.
struct RunFolders {
    /// Reads the run's commit log, as history::RunReader::LogSource does.
    std::function<absl::StatusOr<std::vector<model::LogLink>>(const std::string& run)> commitLog;
    /// The run that goes on from this one, which could not be taken up; empty: none does.
    std::function<std::string(const std::string& run)> supersededBy;
};

/// The runs of one history file in the API's words, and the replays that are open. Every call opens
/// the file anew: readers belong to one thread, and opening is cheap beside reading.
/// Errors are the history's. Thread: any; calls may take as long as SQLite does.
class RunLibrary {
  public:
    static constexpr uint32_t kMostEvents = 10000;
    static constexpr size_t kMostReplays = 32, kMostReplaysOfOne = 8;

    RunLibrary(std::filesystem::path file, const Clock& clock, RunFolders folders = {})
        : file_(std::move(file)), clock_(clock), folders_(std::move(folders)) {}

    const std::filesystem::path& file() const { return file_; }

    absl::StatusOr<std::vector<model::RunInfo>> list(const std::string& text) const;
    absl::StatusOr<model::EventPage> events(const model::EventQuery& query) const;
    /// `seq` 0: after the last event.
    absl::StatusOr<model::RunState> state(const std::string& run, uint64_t seq) const;

    /// Reads all of the run.
    absl::StatusOr<model::LedgerReport> audit(const std::string& run) const;

    enum class What { kLedger, kEvents };
    absl::Status write(const std::string& run, What what, history::ExportFormat format,
                       uint64_t fromStep, uint64_t toStep, std::ostream& out) const;

    /// The id of the new replay, which is its caller's: for others it is not there.
    /// ResourceExhausted when too many are open, of the caller or of all.
    absl::StatusOr<std::string> openReplay(const std::string& run, const std::string& caller);
    absl::StatusOr<model::ReplayPosition> controlReplay(const std::string& replay,
                                                        const std::string& caller,
                                                        const model::ReplayControl& order);
    absl::Status closeReplay(const std::string& replay, const std::string& caller);
    absl::StatusOr<std::shared_ptr<Feed>> replayFeed(const std::string& replay,
                                                     const std::string& caller);

  private:
    struct OpenReplay {
        std::string caller;
        std::shared_ptr<Replay> replay;
    };
    absl::StatusOr<std::shared_ptr<Replay>> find(const std::string& replay,
                                                 const std::string& caller);

    const std::filesystem::path file_;
    const Clock& clock_;
    const RunFolders folders_;
    Mutex mutex_;
    uint64_t opened_ ABSL_GUARDED_BY(mutex_) = 0;
    std::map<std::string, OpenReplay> replays_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bulkhead::service
