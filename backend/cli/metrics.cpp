// SPDX-License-Identifier: Apache-2.0
#include "backend/cli/metrics.h"

#include <prometheus/exposer.h>
#include <prometheus/text_serializer.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "backend/cli/follow.h"
#include "backend/cli/session.h"
#include "backend/common/fields.h"
#include "backend/common/threads.h"

namespace bulkhead::cli {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<std::pair<std::string, std::string>>;

constexpr double kNs = 1e-9;
constexpr double kMs = 1e-3;
constexpr std::chrono::seconds kLimit{20};  ///< of --once
constexpr std::chrono::milliseconds kLook{100};
/// The daemon does not say by itself when other controllers come and go.
constexpr int kLooksPerHandshake = 50;

/// Families by name, in the order in which they were first named.
class Families {
  public:
    void gauge(const char* name, const char* help, const Labels& labels, double value) {
        add(MetricType::Gauge, name, help, labels).gauge.value = value;
    }
    void counter(const char* name, const char* help, const Labels& labels, double value) {
        add(MetricType::Counter, name, help, labels).counter.value = value;
    }
    std::vector<MetricFamily> take() { return std::move(families_); }

  private:
    prometheus::ClientMetric& add(MetricType type, const char* name, const char* help,
                                  const Labels& labels) {
        auto found = std::find_if(families_.begin(), families_.end(),
                                  [name](const MetricFamily& f) { return f.name == name; });
        if (found == families_.end())
            found = families_.insert(families_.end(), MetricFamily{name, help, type, {}});
        prometheus::ClientMetric& metric = found->metric.emplace_back();
        for (const auto& [label, value] : labels) metric.label.push_back({label, value});
        return metric;
    }
    std::vector<MetricFamily> families_;
};

/// One series for each value of the enum, so that a value that no longer holds reads 0.
template <class Enum, class Value>
void byState(Families& out, const char* name, const char* help, const Labels& labels,
             const char* label, Value&& value) {
    for (size_t i = 0; i < EnumNames<Enum>::kNames.size(); ++i) {
        Labels with = labels;
        with.emplace_back(label, EnumNames<Enum>::kNames[i]);
        out.gauge(name, help, with, value(static_cast<Enum>(i)));
    }
}

void addJob(Families& out, const model::JobInfo& job) {
    const Labels labels{{"run", job.id}};
    byState<model::JobPhase>(out, "bulkhead_job_phase",
                             "1 for the phase that the job is in, else 0", labels, "phase",
                             [&](model::JobPhase phase) { return phase == job.phase ? 1. : 0.; });
    out.gauge("bulkhead_job_step", "Last committed step", labels, static_cast<double>(job.step));
    if (job.steps > 0)
        out.gauge("bulkhead_job_steps_wanted", "Steps that the job is to make", labels,
                  static_cast<double>(job.steps));
    out.gauge("bulkhead_job_replicas_wanted", "Replicas of the job, without spares", labels,
              job.replicas);
    out.gauge("bulkhead_job_contributors", "Replicas that contribute to the step under way", labels,
              job.contributors);
    out.gauge("bulkhead_job_start_time_seconds", "Unix time of the job's start", labels,
              static_cast<double>(job.startedNs) * kNs);
}

void addSteps(Families& out, const Labels& labels, const model::RunState& state) {
    if (!state.lastCommit) return;
    const model::StepCommitted& last = *state.lastCommit;
    out.gauge("bulkhead_job_last_commit_timestamp_seconds", "Unix time of the last committed step",
              labels, static_cast<double>(state.lastCommitNs) * kNs);
    out.gauge("bulkhead_job_effective_training_time_ratio",
              "Step time times contributors over replicas, summed, over wall time", labels,
              state.effectiveTime);
    out.gauge("bulkhead_job_loss", "Loss of the last step, nats per token", labels, last.loss);
    out.gauge("bulkhead_job_grad_norm", "Gradient norm of the last step, before clipping", labels,
              last.gradNorm);
    out.gauge("bulkhead_job_step_seconds", "Time of the last step, commit to commit", labels,
              last.stepMs * kMs);
    out.gauge("bulkhead_job_tokens_per_second", "Throughput of the last step", labels,
              last.tokensPerSecond);
    if (state.typicalStepMs > 0)
        out.gauge("bulkhead_job_typical_step_seconds",
                  "Mean time of steps in which no replica was lost", labels,
                  state.typicalStepMs * kMs);
}

void addCounters(Families& out, const Labels& labels, const model::Counters& c) {
    const auto count = [&](const char* name, const char* help, double value) {
        out.counter(name, help, labels, value);
    };
    const auto number = [](uint64_t value) { return static_cast<double>(value); };
    count("bulkhead_job_commits_total", "Committed steps, superseded ones included",
          number(c.commits));
    count("bulkhead_job_samples_total", "Committed samples, superseded ones included",
          number(c.samples));
    count("bulkhead_job_tokens_total", "Committed tokens, superseded ones included",
          number(c.tokens));
    count("bulkhead_job_steps_skipped_total", "Steps committed without an update",
          number(c.skippedSteps));
    count("bulkhead_job_steps_superseded_total", "Steps given up by rollbacks",
          number(c.stepsSuperseded));
    count("bulkhead_job_redos_total", "Exchanges done again", number(c.redos));
    count("bulkhead_job_rollbacks_total", "Rollbacks to a checkpoint", number(c.rollbacks));
    count("bulkhead_job_incidents_total", "Incidents opened", number(c.incidents));
    out.gauge("bulkhead_job_incidents_open", "Incidents that are not closed", labels,
              number(c.incidentsOpen));
    count("bulkhead_job_rank_exits_total", "Ranks that ended without being asked to",
          number(c.rankExits));
    count("bulkhead_job_faults_total", "Faults injected on purpose", number(c.faults));
    count("bulkhead_job_stall_seconds_total",
          "Time that survivors of closed incidents did not train", c.survivorStallMs * kMs);
    count("bulkhead_job_lost_replica_seconds_total", "Replica time that closed incidents cost",
          c.replicaSeconds);
    count("bulkhead_job_rejoins_total", "Lost replicas that came back", number(c.rejoins));
    count("bulkhead_job_rejoin_seconds_total", "Time until they were back, summed",
          c.rejoinMs * kMs);
    count("bulkhead_job_checkpoints_total", "Checkpoints written", number(c.checkpoints));
    count("bulkhead_job_checkpoints_failed_total", "Checkpoints that could not be written",
          number(c.checkpointsFailed));
    count("bulkhead_job_warnings_total", "Events of severity warning", number(c.warnings));
    count("bulkhead_job_errors_total", "Events of severity error", number(c.errors));
}

void addCheckpoint(Families& out, const Labels& labels, const model::RunState& state) {
    const model::CheckpointView* newest = nullptr;
    for (const model::CheckpointView& c : state.checkpoints)
        if (c.checkpoint.ok && (newest == nullptr || c.checkpoint.step >= newest->checkpoint.step))
            newest = &c;
    if (newest == nullptr) return;
    out.gauge("bulkhead_job_checkpoint_step", "Step of the newest whole checkpoint", labels,
              static_cast<double>(newest->checkpoint.step));
    out.gauge("bulkhead_job_checkpoint_timestamp_seconds", "Unix time when it was written", labels,
              static_cast<double>(newest->timeNs) * kNs);
}

void addFleet(Families& out, const std::string& job, const model::RunState& state) {
    byState<model::ReplicaState>(out, "bulkhead_job_replicas", "Replicas in each state",
                                 {{"run", job}}, "state", [&](model::ReplicaState wanted) {
                                     return static_cast<double>(std::count_if(
                                         state.replicas.begin(), state.replicas.end(),
                                         [wanted](const auto& r) { return r.state == wanted; }));
                                 });
    for (const model::NodeView& node : state.nodes) {
        const Labels labels{{"run", job}, {"node", node.node}};
        out.gauge("bulkhead_node_up", "1 if the node's agent answers and takes ranks, else 0",
                  labels, node.state == model::NodeState::kUp ? 1 : 0);
        out.gauge("bulkhead_node_cordoned", "1 if an operator keeps ranks from the node, else 0",
                  labels, node.state == model::NodeState::kCordoned ? 1 : 0);
        out.gauge("bulkhead_node_slots", "Ranks that the node takes at most", labels, node.slots);
    }
    out.gauge("bulkhead_job_gpu_troubles",
              "Critical errors of GPUs that are kept for the run, at most 64", {{"run", job}},
              static_cast<double>(state.gpuTroubles.size()));
    out.gauge("bulkhead_job_invariants_broken",
              "Promises of the protocol that were found broken, at most 256", {{"run", job}},
              static_cast<double>(state.broken.size()));
}

/// Follows a daemon and each of its jobs. Thread: Collect() may be called from any.
class Exporter final : public prometheus::Collectable {
  public:
    explicit Exporter(client::Client& client) : client_(client) {
        client::JobsHandlers handlers;
        handlers.onConnected = [this](model::ServerInfo info) {
            const MutexLock lock(mutex_);
            observed_.up = true;
            failure_.reset();
            observed_.server = std::move(info);
        };
        handlers.onJobs = [this](std::vector<model::JobInfo> jobs) { follow(std::move(jobs)); };
        handlers.onDisconnected = [this](client::Failure failure, client::SteadyTime) {
            const MutexLock lock(mutex_);
            if (observed_.up || !failure.retryable)
                std::fprintf(stderr, "bulkheadctl: %s: %s / %s\n", failure.title.c_str(),
                             failure.cause.c_str(), failure.remedy.c_str());
            observed_.up = false;
            failure_ = std::move(failure);
            changed_.notify_all();
        };
        jobs_ = client_.watchJobs(std::move(handlers));
    }
    ~Exporter() override {
        jobs_.reset();  // nothing is followed anew from here on
        decltype(watches_) ending;
        {
            const MutexLock lock(mutex_);
            ending.swap(watches_);
        }
    }

    std::vector<MetricFamily> Collect() const override {
        const MutexLock lock(mutex_);
        return metricFamilies(observed_);
    }

    void serverIs(model::ServerInfo info) {
        const MutexLock lock(mutex_);
        observed_.server = std::move(info);
    }

    /// Waits until every job has sent its state. The reason, when that will not be, or not soon.
    std::optional<client::Failure> awaitAll() {
        MutexLock lock(mutex_);
        const bool all =
            changed_.wait_for(lock, kLimit, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                return isFinal() || (listed_ && observed_.states.size() >= watches_.size());
            });
        if (all) return isFinal() ? failure_ : std::nullopt;
        if (failure_) return failure_;
        return client::Failure{
            client::FailureCode::kTimeout, "The daemon says nothing of its jobs",
            absl::StrCat("It has not sent their states in ", kLimit.count(), " s."),
            "Look at its log, or ask again.", true};
    }
    /// Set when the connection cannot be made at all.
    std::optional<client::Failure> failure() const {
        const MutexLock lock(mutex_);
        return isFinal() ? failure_ : std::nullopt;
    }

  private:
    bool isFinal() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return failure_ && !failure_->retryable;
    }

    void follow(std::vector<model::JobInfo> jobs) {
        std::map<std::string, std::unique_ptr<client::Watch>> ending;  // after the lock
        const MutexLock lock(mutex_);
        for (auto it = watches_.begin(); it != watches_.end();) {
            const bool listed = std::any_of(jobs.begin(), jobs.end(),
                                            [&](const auto& j) { return j.id == it->first; });
            if (listed) {
                ++it;
                continue;
            }
            observed_.states.erase(it->first);
            ending.insert(watches_.extract(it++));
        }
        for (const model::JobInfo& job : jobs)
            if (!watches_.contains(job.id)) watches_[job.id] = watch(job.id);
        observed_.jobs = std::move(jobs);
        listed_ = true;
        changed_.notify_all();
    }

    std::unique_ptr<client::Watch> watch(const std::string& job) {
        client::WatchHandlers handlers;
        handlers.onSnapshot = [this, job](client::StatePtr state) {
            const MutexLock lock(mutex_);
            if (watches_.contains(job)) observed_.states[job] = *state;
            changed_.notify_all();
        };
        handlers.onEvents = [this, job](std::vector<model::Event> events) {
            const MutexLock lock(mutex_);
            const auto state = observed_.states.find(job);
            if (state == observed_.states.end()) return;
            for (const model::Event& event : events) model::apply(state->second, event);
        };
        return client_.watch({.job = job, .replay = ""}, std::move(handlers));
    }

    client::Client& client_;
    mutable Mutex mutex_;
    ConditionVariable changed_;
    Observed observed_ ABSL_GUARDED_BY(mutex_);
    bool listed_ ABSL_GUARDED_BY(mutex_) = false;  ///< the jobs have been told once
    std::optional<client::Failure> failure_ ABSL_GUARDED_BY(mutex_);  ///< none: it is connected
    std::map<std::string, std::unique_ptr<client::Watch>> watches_ ABSL_GUARDED_BY(mutex_);
    std::unique_ptr<client::Watch> jobs_;
};

int serve(const Cli& cli, const std::string& listen, bool once) {
    auto session = Session::open(cli);
    if (!session.ok()) return fail(cli, session.failure());
    const Interrupts interrupts;
    const auto exporter = std::make_shared<Exporter>(session.value()->client());
    if (once) {
        if (const auto failure = exporter->awaitAll()) return fail(cli, *failure);
        std::printf("%s", prometheus::TextSerializer().Serialize(exporter->Collect()).c_str());
        return kOk;
    }
    try {
        // Each connection has a thread until it has asked or a second is over.
        prometheus::Exposer exposer(std::vector<std::string>{
            "listening_ports", listen, "num_threads", "64", "request_timeout_ms", "1000"});
        exposer.RegisterCollectable(exporter);
        std::fprintf(stderr, "serving http://%s/metrics\n", listen.c_str());
        for (int round = 0; interrupts.count() == 0 && !exporter->failure(); ++round) {
            std::this_thread::sleep_for(kLook);
            if (round % kLooksPerHandshake != 0) continue;
            auto info = session.value()->awaitUnless<model::ServerInfo>(
                interrupts, [](client::Client& client, client::Reply<model::ServerInfo> reply) {
                    client.handshake(std::move(reply));
                });
            if (info && info->ok()) exporter->serverIs(std::move(info->value()));
        }
    } catch (const std::exception& e) {
        return fail(cli, {client::FailureCode::kInvalid, "Cannot serve metrics on " + listen,
                          std::string(e.what()) + ".",
                          "Name a free HOST:PORT of this machine with --listen.", false});
    }
    if (const auto failure = exporter->failure()) return exitCodeOf(failure->code);
    return kOk;
}

}  // namespace

std::vector<MetricFamily> metricFamilies(const Observed& observed) {
    Families out;
    out.gauge("bulkhead_daemon_up", "1 if the daemon answers, else 0", {}, observed.up ? 1 : 0);
    const model::ServerInfo& server = observed.server;
    if (!server.build.empty())
        out.gauge("bulkhead_daemon_info", "1; the version is a label", {{"version", server.build}},
                  1);
    if (server.certificateEndsNs > 0)
        out.gauge("bulkhead_daemon_certificate_end_timestamp_seconds",
                  "Unix time when the daemon's certificate ends", {},
                  static_cast<double>(server.certificateEndsNs) * kNs);
    // The past is no figure of the present: without the daemon nothing is said of its jobs.
    if (!observed.up) return out.take();
    if (!server.leader.empty())
        out.gauge("bulkhead_controllers_standing_by",
                  "Controllers that would take over from the one that leads", {},
                  static_cast<double>(server.standbys.size()));
    for (const model::JobInfo& job : observed.jobs) {
        addJob(out, job);
        const auto found = observed.states.find(job.id);
        if (found == observed.states.end()) continue;
        const model::RunState& state = found->second;
        const Labels labels{{"run", job.id}};
        addSteps(out, labels, state);
        addCounters(out, labels, state.counters);
        addCheckpoint(out, labels, state);
        addFleet(out, job.id, state);
    }
    return out.take();
}

void addMetrics(CLI::App& app, Cli& cli) {
    auto* verb = app.add_subcommand(
        "metrics", "Serve the daemon's jobs as Prometheus metrics, at http://HOST:PORT/metrics");
    const auto listen = std::make_shared<std::string>("127.0.0.1:9464");
    const auto once = std::make_shared<bool>(false);
    verb->add_option("--listen", *listen,
                     "HOST:PORT; whoever reaches it can read the figures and names of all jobs")
        ->capture_default_str();
    verb->add_flag("--once", *once, "print the metrics once and end, for a textfile collector");
    verb->callback([&cli, listen, once] {
        cli.chosen = [&cli, listen, once] { return serve(cli, *listen, *once); };
    });
}

}  // namespace bulkhead::cli
