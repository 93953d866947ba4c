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
#include "backend/runtime/coordinator/event_sink.h"

namespace bulkhead::daemon {

/// Every event of every run of the controller into the history file. A history that cannot be
/// written never stops a job: it is logged, and the writer itself marks what was lost.
/// Thread: any; onEvent never waits for the disk.
class HistorySink final : public runtime::EventSink {
  public:
    /// `runs` is the folder of the controller's runs: each says there which run of the file is its.
    /// `fence` as WriterOptions::fence. `clock` and `files` outlive it.
    HistorySink(std::filesystem::path file, std::filesystem::path runs, const Clock& clock,
                FileSystem& files = diskFiles(), std::function<void()> fence = {})
        : file_(std::move(file)),
          runs_(std::move(runs)),
          clock_(clock),
          files_(files),
          fence_(std::move(fence)) {}

    ~HistorySink() override;

    /// Opens a run named after the job ("demo", "demo-2" ...) and returns that name; runs that have
    /// ended and are in the file need their writers no more. An error of
    /// `claim`, which is told the name, leaves no run of it.
    absl::StatusOr<std::string> open(const std::string& job,
                                     std::function<absl::Status(const std::string&)> claim = {});
    /// Ends a run that was opened and could not start. If nothing was told of it, it leaves
    /// nothing, and its name is free again.
    void closeFailed(const std::string& run, const std::string& why);
    /// Goes on with a run of an earlier life of the daemon, or whose file was lost(); the fold of
    /// its events so far. A run the file does not know is opened anew under its old uuid, and an
    /// empty state returned. FailedPrecondition: what the file has under this name is another run.
    /// After an error the run's events are kept nowhere, and it may be tried again.
    absl::StatusOr<model::RunState> resume(const std::string& run);
    /// The runs of the file that nobody writes and that have no RunFinished.
    std::vector<std::string> withoutEnd() const;
    void onEvent(const std::string& run, const model::Event& event) override;
    std::string lost(const std::string& run) const override;
    void release(const std::string& run) override;
    /// Says in a line which events of the run the file lacks, and why; empty: it has all, or
    /// nearly.
    std::string lacks(const std::string& run) const;
    /// Waits until everything is in the file.
    void flush();
    /// From now on, takes out runs that ended so many days ago and whose folder is gone, so that
    /// nobody goes on with them: at once and every hour, on a thread of its own. Call it once.
    void keepOnly(uint32_t days);

  private:
    struct Kept {
        std::unique_ptr<history::RunWriter> writer;  ///< null: nothing is kept
        std::string why;                             ///< there is no writer
        bool ended = false;
    };
    struct Identity {
        std::string uuid;
        int64_t createdNs = 0;
        template <class Self, class Visitor>
        static void fields(Self& self, Visitor& visit) {
            visit("uuid", self.uuid);
            visit("created_ns", self.createdNs);
        }
    };
    void removeOld(uint32_t days);
    bool isEnding() const;
    void closeEnded();
    history::WriterOptions writerOptions(const std::string& run, bool fresh) const;
    std::string identityFile(const std::string& run) const;
    Identity identity(const std::string& run) const;
    void keepIdentity(const std::string& run, const history::StoredRun& stored) const;
    absl::StatusOr<std::unique_ptr<history::RunWriter>> goOn(const std::string& run) const;

    const std::filesystem::path file_;
    const std::filesystem::path runs_;
    const Clock& clock_;
    FileSystem& files_;
    const std::function<void()> fence_;
    mutable Mutex mutex_;
    std::map<std::string, Kept> kept_ ABSL_GUARDED_BY(mutex_);
    bool ending_ ABSL_GUARDED_BY(mutex_) = false;
    ConditionVariable wake_;
    Thread cleaner_;
};

}  // namespace bulkhead::daemon
