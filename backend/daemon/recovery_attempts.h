// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "backend/common/file_system.h"
#include "backend/common/threads.h"

namespace bulkhead::daemon {

/// Records in a file of the state folder which run a controller is recovering, so that a run whose
/// recovery ends the controller is left alone and the other jobs go on. Thread: any.
class RecoveryAttempts {
  public:
    explicit RecoveryAttempts(FileSystem& files, std::string file);
    /// Before `run` is taken up. FailedPrecondition when two controllers in a row ended while they
    /// did that; says what to do. OK after done(). A file that cannot be written stops nobody.
    absl::Status begin(const std::string& run);
    /// All were taken up, or refused.
    void done();

  private:
    void write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

    FileSystem& files_;
    const std::string file_;
    Mutex mutex_;
    std::map<std::string, int> ended_
        ABSL_GUARDED_BY(mutex_);  ///< controllers, while they took the run up
    std::string current_ ABSL_GUARDED_BY(mutex_);
    bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace bulkhead::daemon
