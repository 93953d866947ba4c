// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/client/client.h"
#include "tests/attack/tap.h"

namespace bulkhead::attack {

/// A controller, an agent of another node and a job, each process started as a user starts it; all
/// they say goes over TCP, gradients too, consoles by TLS. Parameters stay as they are drawn (the
/// learning rate is below any of their last bits), so that a checkpoint has the bytes of those that
/// travelled. Killing all that it started is its duty. Thread: one.
class Victim {
  public:
    /// `programs`: folder of bulkheadd; `dir`: an empty folder that stays.
    Victim(std::string programs, std::string dir);
    ~Victim();
    Victim(const Victim&) = delete;
    Victim& operator=(const Victim&) = delete;

    /// Before start(): the agent has the key of another controller with this secret.
    void agentOf(const std::string& secret);
    /// Before start(): consoles without TLS.
    void withoutTls() { tls_ = false; }
    /// Certificates, keys and processes; returns when the daemon answers.
    absl::Status start();
    /// Begins a job of `replicas`; `overrides` as in JobText.
    absl::Status begin(uint32_t replicas, const std::vector<std::string>& overrides = {});
    /// The same, and waits until all of them train.
    absl::Status train(uint32_t replicas);

    /// A console of an administrator's, by token over TLS.
    std::unique_ptr<client::Client> connect() const;
    client::Client& console() { return *console_; }

    /// Kills a replica by an injected fault and waits until it trains again.
    absl::Status killAndAwait(int32_t replica);
    /// Waits until `reached` holds; DeadlineExceeded after two minutes.
    absl::Status await(const std::string& what, const std::function<bool()>& reached) const;
    /// Waits for so many more steps of all replicas.
    absl::Status awaitSteps(uint64_t more);
    client::Result<model::JobInfo> job();
    client::Result<client::StatePtr> state();
    /// Stops the job and holds its ledger against its commit log; what is wrong in it, if anything.
    absl::Status stopAndCheck();

    const std::string& jobId() const { return job_; }
    const std::string& run() const { return run_; }
    pid_t controller() const { return pids_.at("controller"); }
    pid_t agent() const { return pids_.at("agent"); }
    static constexpr uint16_t kConsolePort = 7400;
    static constexpr uint16_t kControlPort = 7401;

    /// Its secrets, text and parameters, as pieces to look for; the last from a checkpoint.
    Pieces pieces() const;
    std::string text() const { return text_; }

  private:
    absl::Status certificates();
    void spawn(const std::string& name, const std::string& secret,
               std::vector<std::string> arguments);
    std::string file(const std::string& name) const { return dir_ + "/" + name; }

    const std::string programs_;
    const std::string dir_;
    std::string text_;
    std::string agentSecret_ = "control.token";  ///< file
    bool tls_ = true;
    std::map<std::string, pid_t> pids_;
    std::unique_ptr<client::Client> console_;
    std::string job_;
    std::string run_;
    uint32_t replicas_ = 0;
};

/// Begins a call and waits for its reply.
template <class T, class Call>
client::Result<T> ask(Call call) {
    auto promise = std::make_shared<std::promise<client::Result<T>>>();
    auto reply = promise->get_future();
    call([promise](client::Result<T> result) { promise->set_value(std::move(result)); });
    return reply.get();
}

}  // namespace bulkhead::attack
