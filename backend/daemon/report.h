// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"

namespace bulkhead::daemon {

/// Exit codes, documented for scripts.
enum ExitCode { kOk = 0, kFailed = 1, kBadStart = 2 };

/// Tells whoever started the daemon how that went: on `fd` if there is one ("ready\n", or
/// "error\nCAUSE\nREMEDY\n"), and an error always on stderr in one line, which is a log
/// line if the log is JSON.
class Report {
  public:
    Report(int fd, bool jsonLog) : fd_(fd), jsonLog_(jsonLog) {}
    /// Once; closes the descriptor.
    void ready();
    /// "cause; remedy" as in every message of ours. Returns kBadStart.
    int failed(const absl::Status& status);

  private:
    void say(const std::string& text);
    int fd_;
    bool jsonLog_;
};

}  // namespace bulkhead::daemon
