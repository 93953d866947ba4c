// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "backend/cli/cli.h"
#include "backend/cli/follow.h"
#include "backend/client/client.h"
#include "backend/client/private_daemon.h"
#include "backend/model/run_state.h"

namespace bulkhead::cli {

/// A connection for the time of one verb: to the daemon named, or to a private one that serves the
/// run file named.
class Session {
  public:
    /// `by`: the author of what it does in events; empty: author().
    static client::Result<std::unique_ptr<Session>> open(const Cli& cli,
                                                         const std::string& by = "");
    static client::Result<std::unique_ptr<Session>> onDaemon(
        std::unique_ptr<client::PrivateDaemon> daemon);

    client::Client& client() { return *client_; }
    /// Null when the daemon is somebody else's.
    client::PrivateDaemon* daemon() { return daemon_.get(); }

    /// Runs an asynchronous call to its reply; every call has a deadline.
    template <class T, class Start>
    client::Result<T> await(Start&& start) {
        auto promise = std::make_shared<std::promise<client::Result<T>>>();
        auto future = promise->get_future();
        start(*client_,
              [promise](client::Result<T> result) { promise->set_value(std::move(result)); });
        return future.get();
    }

    /// Runs a call as await() does; nullopt after an interrupt, when the call's outcome is unknown.
    template <class T, class Start>
    std::optional<client::Result<T>> awaitUnless(const Interrupts& interrupts, Start&& start) {
        constexpr auto kLook = std::chrono::milliseconds(50);
        auto promise = std::make_shared<std::promise<client::Result<T>>>();
        auto future = promise->get_future();
        start(*client_,
              [promise](client::Result<T> result) { promise->set_value(std::move(result)); });
        while (future.wait_for(kLook) != std::future_status::ready)
            if (interrupts.count() > 0) return std::nullopt;
        return future.get();
    }

    /// `wanted`, or when that is empty the only job that is not over; with `alsoOver`, when there
    /// is none, the one started last.
    client::Result<std::string> job(const std::string& wanted, bool alsoOver = false);
    /// The state of a job now: the first snapshot of a watch.
    client::Result<client::StatePtr> stateOfJob(const std::string& job);
    client::Result<model::LedgerReport> checkLedger(const std::string& run);

  private:
    std::unique_ptr<client::PrivateDaemon> daemon_;
    std::unique_ptr<client::Client> client_;  // ends before its daemon
};

/// user@bulkheadctl
std::string author();

}  // namespace bulkhead::cli
