// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "backend/cli/plan_files.h"
#include "backend/cli/session.h"
#include "backend/common/threads.h"
#include "backend/planner/live/captured.h"

namespace bulkhead::cli {
namespace {

/// A job that commits no step for so long brings no routing either.
constexpr std::chrono::seconds kNothingCame{60};

/// Collects a job's routing events as they arrive. Callbacks are the client's thread's.
class RoutingCatch {
  public:
    RoutingCatch(client::Client& client, const std::string& job) {
        client::WatchHandlers handlers;
        handlers.onSnapshot = [this](client::StatePtr state) {
            change([&] {
                mutex_.assertHeld();
                state_ = std::move(state);
            });
        };
        handlers.onEvents = [this](const std::vector<model::Event>& events) {
            change([&] {
                mutex_.assertHeld();
                for (const model::Event& event : events) take(event);
            });
        };
        handlers.onDisconnected = [this](const client::Failure& failure, client::SteadyTime) {
            if (!failure.retryable)
                change([&] {
                    mutex_.assertHeld();
                    failure_ = failure;
                });
        };
        watch_ = client.watch({job, ""}, std::move(handlers));
    }

    /// With the first snapshot: what is asked for from now on is not missed.
    void awaitFirst() {
        MutexLock lock(mutex_);
        changed_.wait(
            lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return state_ || failure_; });
    }
    /// Until `choices` came; false when the job ended or nothing came for too long.
    bool await(uint64_t choices) {
        MutexLock lock(mutex_);
        while (choices_ < choices && !over_ && !failure_) {
            const uint64_t before = choices_;
            if (!changed_.wait_for(lock, kNothingCame, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                    return choices_ != before || over_ || failure_;
                }))
                return false;
        }
        return choices_ >= choices;
    }
    client::StatePtr state() const {
        const MutexLock lock(mutex_);
        return state_;
    }
    std::optional<client::Failure> failure() const {
        const MutexLock lock(mutex_);
        return failure_;
    }
    /// Those that came so far.
    std::vector<RoutedSample> samples() const {
        const MutexLock lock(mutex_);
        return samples_;
    }

  private:
    template <class Change>
    void change(Change&& apply) {
        const MutexLock lock(mutex_);
        apply();
        changed_.notify_all();
    }
    void take(const model::Event& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        over_ = over_ || std::holds_alternative<model::RunFinished>(event.body);
        const auto* routing = std::get_if<model::RoutingSampled>(&event.body);
        if (routing == nullptr) return;
        for (const RoutedSample& sample : routing->samples) {
            choices_ += sample.experts.size();
            samples_.push_back(sample);
        }
    }

    mutable Mutex mutex_;
    ConditionVariable changed_;
    client::StatePtr state_ ABSL_GUARDED_BY(mutex_);
    std::optional<client::Failure> failure_ ABSL_GUARDED_BY(mutex_);
    std::vector<RoutedSample> samples_ ABSL_GUARDED_BY(mutex_);
    uint64_t choices_ ABSL_GUARDED_BY(mutex_) = 0;
    bool over_ ABSL_GUARDED_BY(mutex_) = false;
    std::unique_ptr<client::Watch> watch_;  // last: its callbacks use the rest
};

int refuseCapture(const Cli& cli, const std::string& job, const absl::Status& status) {
    return refusePlan(cli, "Cannot capture the routing of job " + job, status,
                      "Look at bulkheadctl status and try again.");
}

int capture(const Cli& cli, const std::string& wanted, uint64_t tokens, const std::string& path) {
    auto session = Session::open(cli);
    if (!session.ok()) return fail(cli, session.failure());
    const auto job = session.value()->job(wanted);
    if (!job.ok()) return fail(cli, job.failure());
    RoutingCatch caught(session.value()->client(), job.value());
    caught.awaitFirst();
    if (const auto failure = caught.failure()) return fail(cli, *failure);
    model::Action action;
    action.kind = model::ActionKind::kCaptureRouting;
    action.tokens = tokens;
    const auto asked = session.value()->await<model::JobInfo>([&](client::Client& c, auto reply) {
        c.act(job.value(), action, {"", 0}, std::move(reply));
    });
    if (!asked.ok()) return fail(cli, asked.failure());
    const client::StatePtr first = caught.state();
    const model::RunState& state = *first;
    const uint64_t choices = uint64_t{state.model.moeLayers} * state.model.topK;
    if (!caught.await(tokens * choices))
        return refuseCapture(cli, job.value(),
                             absl::UnavailableError("the job ended, or committed no step for a "
                                                    "minute, before all tokens came"));
    const std::vector<RoutedSample> samples = caught.samples();
    const auto recording = planner::captured(state, samples);
    if (!recording.ok()) return refuseCapture(cli, job.value(), recording.status());
    if (const absl::Status written = writeRecording(*recording, path); !written.ok())
        return refuseCapture(cli, job.value(), written);
    if (!cli.json)
        std::printf("%s: %zu samples, %llu tokens\n", path.c_str(), samples.size(),
                    static_cast<unsigned long long>(recording->routing->tokens()));
    return kOk;
}

}  // namespace

void addPlanCapture(CLI::App& plan, Cli& cli) {
    struct Arguments {
        std::string job, out;
        uint64_t tokens = 4096;
    };
    auto a = std::make_shared<Arguments>();
    CLI::App* verb = plan.add_subcommand(
        "capture", "Record which experts tokens of the running job choose, as JSON Lines");
    verb->add_option("-j,--job", a->job, "id of the job [the only one running]");
    verb->add_option("--tokens", a->tokens, "at least so many, in whole samples")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    verb->add_option("-o,--out", a->out, "file to write; characterise, solve and evaluate read it")
        ->required();
    verb->callback(
        [&cli, a] { cli.chosen = [&cli, a] { return capture(cli, a->job, a->tokens, a->out); }; });
}

}  // namespace bulkhead::cli
