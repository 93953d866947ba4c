// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "backend/client/failure.h"

namespace bulkhead::client {

struct PrivateDaemonOptions {
    std::string program;  ///< path of bulkheadd; empty: beside this program, then PATH
    /// Where socket, state and logs go (at most 93 bytes, for the socket's sake); jobs left
    /// unfinished there are taken up again. Empty: a new folder below the system's temporary one,
    /// which is removed with the daemon.
    std::string stateDir;
    /// The state folder is wanted only for what a crash cuts off: it is removed with the daemon
    /// when that has ended well, and a temporary one stands in while another daemon uses it.
    bool scratch = false;
    std::string runFile;    ///< history to write; with `readOnly` the run file to serve
    bool readOnly = false;  ///< offline: serve `runFile`, no jobs
    std::string jobsDir;    ///< with `readOnly`: as bulkheadd's --jobs
    uint32_t agents = 1;    ///< nodes on this machine
    std::chrono::milliseconds startLimit{15000};
};

/// A bulkheadd of one's own on a Unix socket nobody else knows: the console's embedded demo, a run
/// file opened offline, `bulkheadctl up`. However this process ends, its jobs write a checkpoint
/// and it ends too, unless it was released. Thread: one owner; create() blocks until the daemon
/// serves or has failed, so the console calls it from a worker thread.
class PrivateDaemon {
  public:
    /// Failure: the daemon's own cause and remedy (a file that is no history, a newer schema ...).
    static Result<std::unique_ptr<PrivateDaemon>> create(PrivateDaemonOptions options);
    /// stop(), unless released.
    virtual ~PrivateDaemon() = default;

    /// The value for Options::target.
    virtual std::string target() const = 0;
    virtual int pid() const = 0;
    virtual std::string stateDir() const = 0;
    /// Running jobs write a checkpoint and end; blocks at most `limit`, then SIGKILL.
    virtual void stop(std::chrono::milliseconds limit = std::chrono::milliseconds(60000)) = 0;
    /// It goes on without us.
    virtual void release() = 0;
    /// True when it has ended by itself.
    virtual bool ended() = 0;
};

}  // namespace bulkhead::client
