// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <deque>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "backend/common/threads.h"
#include "tests/support/event_tape.h"

namespace bulkhead::support {

/// bulkhead-test-controller and the pipes to it, over as many lives as are wanted. Thread: one; the
/// tape is filled by a thread of its own.
class OutsideController {
  public:
    OutsideController(std::string dir, std::string socket, std::string worker, EventTape& tape);
    ~OutsideController();

    /// A new life. Returns its answer to that: "ok RUN ..." names the runs it took up.
    std::string start();
    /// Sends a command (controller_main.cpp) and waits for its answer; "" when it died instead.
    std::string ask(const std::string& command);
    /// The same when it is expected to die of it.
    void tell(const std::string& command);
    /// True when it is dead, or dies within `patience`.
    bool gone(std::chrono::milliseconds patience);
    /// Waits until it is dead; true when SIGKILL ended it.
    bool awaitKilled();
    void killNow();
    /// Ends it in order.
    void end();

  private:
    std::string awaitAnswer();
    void read(int fd);

    const std::string dir_;
    const std::string socket_;
    const std::string worker_;
    EventTape& tape_;
    pid_t pid_ = -1;
    int in_ = -1;
    std::thread reader_;
    Mutex mutex_;
    ConditionVariable answered_;
    std::deque<std::string> answers_ ABSL_GUARDED_BY(mutex_);
    bool gone_ ABSL_GUARDED_BY(mutex_) = true;
};

}  // namespace bulkhead::support
