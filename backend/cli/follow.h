// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "backend/client/client.h"
#include "backend/common/threads.h"
#include "backend/model/run_state.h"

namespace bulkhead::cli {

enum class Shows { kSummary, kEveryEvent, kNotable };  ///< kNotable: and no summary

/// Follows a job or a replay on the terminal until it is over: events as they come, and once a
/// second a summary of what the state has become.
class Follower {
  public:
    Follower(client::Client& client, client::WatchTarget target, bool json, Shows shows);
    ~Follower();

    /// Returns with the first snapshot, or when there will be none.
    void awaitFirst();
    /// Waits for at most a second, then prints a summary. True when it is over: finished, failed
    /// for good, or the replay is at its end.
    bool tick();
    /// The last state; empty before the first snapshot.
    model::RunState state() const;
    /// The reason for which it cannot continue; nullopt while it can.
    std::optional<client::Failure> failure() const;

  private:
    void print(const std::string& line);

    const bool json_;
    const Shows shows_;
    mutable Mutex mutex_;
    ConditionVariable changed_;
    model::RunState state_ ABSL_GUARDED_BY(mutex_);
    bool seen_ ABSL_GUARDED_BY(mutex_) = false;
    bool over_ ABSL_GUARDED_BY(mutex_) = false;
    bool connected_ ABSL_GUARDED_BY(mutex_) = false;
    std::optional<client::Failure> failure_ ABSL_GUARDED_BY(mutex_);
    std::unique_ptr<client::Watch> watch_;  // last: its callbacks use the rest
};

/// SIGINT, SIGTERM and SIGHUP counted, while it lives, instead of ending the program; a SIGHUP that
/// was ignored before stays so.
class Interrupts {
  public:
    /// `secondEnds`: the second signal of a kind ends the program as if this did not live.
    explicit Interrupts(bool secondEnds = false);
    ~Interrupts();
    int count() const;

  private:
    std::array<struct sigaction, 3> before_{};
};

/// While it lives, SIGINT and SIGTERM end the program as they would, but say so on standard error:
/// for what cannot be ended with a part of a result.
class SayInterrupted {
  public:
    SayInterrupted();
    ~SayInterrupted();

  private:
    std::array<struct sigaction, 2> before_{};
};

}  // namespace bulkhead::cli
