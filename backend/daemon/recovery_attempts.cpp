// SPDX-License-Identifier: Apache-2.0
#include "backend/daemon/recovery_attempts.h"

#include <spdlog/spdlog.h>

#include <sstream>

#include "absl/strings/str_cat.h"

namespace bulkhead::daemon {

constexpr int kMost = 2;

RecoveryAttempts::RecoveryAttempts(FileSystem& files, std::string file)
    : files_(files), file_(std::move(file)) {
    std::istringstream lines(files_.read(file_).value_or(""));
    int times = 0;
    for (std::string run; lines >> run >> times;) ended_[run] = times;
}

absl::Status RecoveryAttempts::begin(const std::string& run) {
    const MutexLock lock(mutex_);
    if (done_) return absl::OkStatus();
    ended_.erase(current_);
    current_.clear();
    if (const auto it = ended_.find(run); it != ended_.end() && it->second >= kMost)
        return absl::FailedPreconditionError(
            absl::StrCat(it->second, " controllers in a row ended while they took it up, so it is ",
                         "left alone; to try again, remove its line from ", file_,
                         " and start the controller again"));
    current_ = run;
    ++ended_[run];
    write();
    return absl::OkStatus();
}

void RecoveryAttempts::done() {
    const MutexLock lock(mutex_);
    ended_.erase(current_);
    done_ = true;
    write();
}

void RecoveryAttempts::write() {
    std::string text;
    for (const auto& [run, times] : ended_) absl::StrAppend(&text, run, " ", times, "\n");
    if (text.empty() && !files_.exists(file_)) return;
    if (absl::Status s = text.empty() ? files_.remove(file_) : writeDurably(files_, file_, text);
        !s.ok())
        spdlog::warn("{}", std::string(s.message()));
}

}  // namespace bulkhead::daemon
