// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

namespace bulkhead::support {

/// Holds a process between its death and its end, as the giving back of much memory does: its main
/// thread stops where it begins to exit, and until release() it keeps its memory, its sockets and
/// its pid. The process descends from this one. Thread: the one that made it.
class HeldAtExit {
  public:
    explicit HeldAtExit(pid_t pid) : pid_(pid) {
        ::ptrace(PTRACE_SEIZE, pid, nullptr, PTRACE_O_TRACEEXIT);
    }
    ~HeldAtExit() { release(); }
    HeldAtExit(const HeldAtExit&) = delete;
    HeldAtExit& operator=(const HeldAtExit&) = delete;

    /// Returns when it has died and is held; false: it cannot be traced, or stopped elsewhere.
    [[nodiscard]] bool awaitDeath() {
        return awaitStop() >> 8 == (SIGTRAP | (PTRACE_EVENT_EXIT << 8));
    }
    /// Lets it end, or live on when it has not died.
    void release() {
        if (pid_ == 0) return;
        if (!stopped_ && ::ptrace(PTRACE_INTERRUPT, pid_, nullptr, nullptr) == 0) awaitStop();
        ::ptrace(PTRACE_DETACH, pid_, nullptr, nullptr);
        pid_ = 0;
    }

  private:
    int awaitStop() {
        int status = 0;
        stopped_ = ::waitpid(pid_, &status, __WALL) == pid_;
        return status;
    }

    pid_t pid_;
    bool stopped_ = false;
};

}  // namespace bulkhead::support
