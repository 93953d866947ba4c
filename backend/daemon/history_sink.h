// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "backend/common/clock.h"
#include "backend/history/run_store.h"
#include "backend/runtime/coordinator/event_sink.h"

namespace bulkhead::daemon {

/// Every event of every run of the controller into the history file. A history that cannot be
/// written never stops a job: it is logged, and the writer itself marks what was lost.
/// Thread: any; onEvent never waits for the disk.
class HistorySink final : public runtime::EventSink {
  public:
    HistorySink(std::filesystem::path file, const Clock& clock)
        : file_(std::move(file)), clock_(clock) {}

    /// Opens a run named after the job ("demo", "demo-2" ...) and returns that name.
    absl::StatusOr<std::string> open(const std::string& job);
    /// Ends a run that was opened and could not start.
    void closeFailed(const std::string& run, const std::string& why);
    /// Goes on with a run of an earlier life of the daemon; the fold of its events so far. A run
    /// the file does not know is opened anew, and an empty state returned.
    model::RunState resume(const std::string& run);
    /// The runs of the file that nobody writes and that have no RunFinished.
    std::vector<std::string> withoutEnd() const;
    void onEvent(const std::string& run, const model::Event& event) override;
    /// Waits until everything is in the file.
    void flush();

  private:
    history::WriterOptions writerOptions(const std::string& run) const;

    const std::filesystem::path file_;
    const Clock& clock_;
    std::mutex mutex_;
    std::map<std::string, std::unique_ptr<history::RunWriter>> writers_;
};

}  // namespace bulkhead::daemon
