// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "backend/common/file_system.h"

namespace bulkhead::daemon {

/// Remembers, in a file of the state folder, which run a controller is taking up, so that one whose
/// recovery ends the controller is left alone and the other jobs go on. Thread: any.
class TakeUps {
  public:
    explicit TakeUps(FileSystem& files, std::string file);
    /// Before `run` is taken up. FailedPrecondition when two controllers in a row ended while they
    /// did that; says what to do. OK after done(). A file that cannot be written stops nobody.
    absl::Status begin(const std::string& run);
    /// All were taken up, or refused.
    void done();

  private:
    void write();

    FileSystem& files_;
    const std::string file_;
    std::mutex mutex_;
    std::map<std::string, int> ended_;  ///< controllers, while they took the run up
    std::string current_;
    bool done_ = false;
};

}  // namespace bulkhead::daemon
