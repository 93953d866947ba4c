// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/controller.h"

#include <signal.h>

#include <algorithm>
#include <future>
#include <map>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "backend/common/codec.h"
#include "backend/model/command_text.h"
#include "backend/model/job_file.h"
#include "backend/runtime/checkpoint/checkpoint.h"
#include "backend/runtime/coordinator/agent_pool.h"
#include "backend/runtime/coordinator/fact_events.h"
#include "backend/runtime/coordinator/job_coordinator.h"
#include "backend/runtime/coordinator/job_past.h"
#include "backend/runtime/coordinator/newcomers.h"
#include "backend/runtime/coordinator/refused_runs.h"
#include "backend/runtime/coordinator/run_files.h"
#include "spdlog/spdlog.h"

namespace bulkhead::runtime {
namespace {

/// A job whose files cannot be written is tried again after so long.
constexpr MonoNs kDiskRetry = kSecond;

}  // namespace

class Controller::Impl {
  public:
    /// `own` is null when the options name a reactor.
    Impl(ControllerOptions options, EventSink* sink, std::unique_ptr<Reactor> own)
        : options_(std::move(options)),
          sink_(sink),
          own_(std::move(own)),
          reactor_(own_ != nullptr ? own_.get() : options_.reactor),
          random_(options_.seed),
          root_(Secret::ofText(options_.token)),
          pool_(*reactor_, files(), options_.agentHeartbeat, options_.stateDir + "/cordoned",
                poolListener()),
          refused_(files(), options_.stateDir, pool_),
          newcomers_(
              *reactor_,
              [this](std::unique_ptr<ControlChannel> c, const AgentHello& h) {
                  pool_.accept(std::move(c), h);
              },
              [this](std::unique_ptr<ControlChannel>& c, const protocol::Hello& h) {
                  return rankArrived(c, h);
              }) {}

    ~Impl() {
        if (own_ == nullptr) {
            reactor_->cancel(historyTimer_);
            return;
        }
        own_->stop();
        if (thread_.joinable()) thread_.join();
    }

    absl::Status bind() {
        ChannelOptions channel;
        channel.keyOf = [this](std::string_view identity) { return keyOf(identity); };
        for (const std::string& address : options_.listen) {
            auto listener = options_.network->listen(
                *reactor_, address, channel,
                [this](std::unique_ptr<ControlChannel> c) { newcomers_.add(std::move(c)); });
            if (!listener.ok()) return listener.status();
            addresses_.push_back((*listener)->address());
            listeners_.push_back(*std::move(listener));
        }
        if (addresses_.empty())
            return absl::InvalidArgumentError("the controller needs an address to listen on");
        return absl::OkStatus();
    }

    void startThread() {
        if (own_ != nullptr) thread_ = std::thread([this] { own_->run(); });
    }

    /// Runs `f` on the controller's thread and returns what it returned.
    template <class F>
    auto call(F f) -> decltype(f()) {
        if (own_ == nullptr) return f();
        std::packaged_task<decltype(f())()> task(std::move(f));
        auto result = task.get_future();
        reactor_->post([&] { task(); });
        return result.get();
    }

    absl::StatusOr<JobCoordinator*> find(const std::string& run) {
        const auto it = jobs_.find(run);
        if (it != jobs_.end()) return it->second.get();
        if (absl::Status s = refused_.why(run); !s.ok()) return s;
        std::string known;
        for (const auto& [name, job] : jobs_)
            absl::StrAppend(&known, known.empty() ? "" : ", ", name);
        return absl::NotFoundError(
            absl::StrCat("no job is named \"", run,
                         "\"; running or ended here: ", known.empty() ? "none" : known));
    }

    /// All of a start that comes before the training text is copied: a run with a folder.
    /// `made`: the folders that were not there before, or were empty.
    absl::StatusOr<JobBeginning> prepare(model::JobSpec spec, const StartOptions& options,
                                         std::optional<model::JobSpec>& earlier,
                                         std::vector<std::string>& made) {
        if (absl::Status s = model::checkSize(spec); !s.ok()) return s;
        for (const std::string& text : spec.faults)
            if (auto fault = model::parseFault(text); !fault.ok()) return fault.status();
        std::string run =
            options.run.empty() ? makeRunId(spec.name, reactor_->clock().unixNs()) : options.run;
        for (int n = 2; options.run.empty() && files().exists(options_.stateDir + "/" + run); ++n)
            run = absl::StrCat(makeRunId(spec.name, reactor_->clock().unixNs()), "-", n);
        if (absl::Status s = checkRunId(run); !s.ok()) return s;
        const std::string dir = options_.stateDir + "/" + run;
        if (isRun(files(), dir))
            return absl::AlreadyExistsError(absl::StrCat(
                "run ", run, " exists in ", options_.stateDir, "; choose another name"));
        JobBeginning beginning;
        if (!options.resumeFrom.empty()) {
            if (absl::Status s = checkLeft(options.resumeFrom); !s.ok()) return s;
            auto checkpoint =
                findCheckpoint(files(), options_.stateDir, options.resumeFrom, options.passedOver);
            if (!checkpoint.ok()) return checkpoint.status();
            if (absl::Status s = checkFits(options.resumeFrom, *checkpoint, spec); !s.ok())
                return s;
            beginning.resumedFrom = checkpoint->checkpoint.path;
            beginning.resume = std::move(checkpoint->checkpoint);
            if (const auto manifest = readManifest(files(), beginning.resume->path);
                manifest.ok() && history_)
                if (const auto past = history_(manifest->job); past.ok())
                    withholdQuarantined(*beginning.resume, *past);
            earlier = std::move(checkpoint->spec);
        }
        spec.checkpointDir = spec.checkpointDir.empty() ? dir + "/checkpoints"
                                                        : checkpointsBelow(spec.checkpointDir, run);
        if (!files().exists(dir)) made.push_back(dir);
        if (absl::Status s = claimCheckpoints(files(), spec.checkpointDir); !s.ok()) return s;
        if (files().list(spec.checkpointDir).empty()) made.push_back(spec.checkpointDir);
        if (absl::Status s = files().makeFolder(dir); !s.ok()) return s;
        beginning.run = run;
        beginning.dir = dir;
        beginning.spec = std::move(spec);
        return beginning;
    }

    absl::StatusOr<std::vector<std::string>> recover(const History& history,
                                                     const std::vector<std::string>& withoutEnd) {
        std::vector<std::string> runs;
        std::string failures;
        history_ = history;
        for (const std::string& run : withoutEnd)
            if (const absl::Status s = tellEnd(run); !s.ok()) {
                JobStatus status;
                status.run = run;
                refused_.refuse(std::move(status), s);
                absl::StrAppend(&failures, failures.empty() ? "" : "; ", run, ": ", s.message());
            }
        std::vector<std::string> open = unfinishedRuns(files(), options_.stateDir);
        for (const std::string& run : withoutEnd)
            if (checkRunId(run).ok() && !isRun(files(), options_.stateDir + "/" + run))
                open.push_back(run);
        for (const std::string& run : open) {
            if (jobs_.contains(run)) continue;
            JobStatus status;
            status.run = run;
            model::RunState past;
            const absl::Status begun = takeUp(status, past, false);
            if (begun.ok()) runs.push_back(run);
            if (begun.ok() || absl::IsCancelled(begun)) continue;
            if (absl::IsUnavailable(begun) || absl::IsResourceExhausted(begun)) {
                awaitDisk(std::move(status), std::move(past), std::string(begun.message()));
            } else {
                refused_.refuse(std::move(status), begun);
                tellRest(run, std::move(past));
            }
            absl::StrAppend(&failures, failures.empty() ? "" : "; ", run, ": ",
                            refused_.status(run)->why);
        }
        recovered_ = true;
        pool_.tellHeld();
        if (sink_ != nullptr) historyTimer_ = reactor_->every(kDiskRetry, [this] { retell(); });
        if (!failures.empty())
            return absl::FailedPreconditionError(absl::StrCat("not taken up again: ", failures));
        return runs;
    }

    /// Takes up a run that has not ended, as `status.run` says; `past` is asked of history unless
    /// it `waited`. Unavailable: its files are not there, or not all of them, and may come back;
    /// ResourceExhausted: there is no room for its log. Cancelled: it never began, and has ended
    /// now.
    absl::Status takeUp(JobStatus& status, model::RunState& past, bool waited) {
        JobBeginning beginning;
        beginning.run = status.run;
        beginning.dir = options_.stateDir + "/" + status.run;
        beginning.waited = waited;
        status.folderAway = !isRun(files(), beginning.dir);
        bool asked = false;
        const auto ask = [&] {
            if (waited) return absl::OkStatus();
            auto told = history_(status.run);
            asked = told.ok();
            if (told.ok()) past = *std::move(told);
            if (past.lastCommit) status.step = past.lastCommit->record.step;
            return anotherRun(told.status());
        };
        if (status.folderAway) {
            if (absl::Status s = ask(); !s.ok()) return s;
            if (past.spec.replicas > 0) status.spec = past.spec;
            // A start makes a row in history, then the folder, then the log; history is told of
            // every run that has a log.
            const bool cutOff = asked && past.seq == 0;
            if (cutOff && sink_ != nullptr) {
                const std::string why = "its start was cut off before the first step";
                spdlog::warn("run {}: {}", status.run, why);
                tellFinished(status.run, past, why);
                return absl::CancelledError(why);
            }
            return absl::UnavailableError(absl::StrCat(
                "the run has not ended, and ", beginning.dir,
                " is not there, or has nothing of it: mount the disk, or move the folder back, and "
                "the job goes on by itself; `stop --without-checkpoint` forgets the run"));
        }
        if (absl::Status s = checkNotSetAside(files(), beginning.dir); !s.ok()) return s;
        if (absl::Status s = ask(); !s.ok()) return s;
        auto spec = readSpec(files(), beginning.dir);
        if (!spec.ok()) return spec.status();
        status.spec = *spec;
        const auto [step, checkpoint] = newestLogged(files(), beginning.dir);
        status.step = std::max(status.step, step);
        status.checkpoint = checkpoint;
        if (absl::Status s = checkUnedited(files(), beginning.dir, *spec); !s.ok()) return s;
        if (absl::Status s = model::checkSize(*spec); !s.ok()) return s;
        if (absl::Status s = checkUnedited(files(), beginning.dir, *spec, past); !s.ok()) return s;
        beginning.spec = *std::move(spec);
        beginning.past = past;
        return launch(std::move(beginning));
    }

    /// FailedPrecondition while resuming from `from` would give up what ranks of the run hold.
    absl::Status checkLeft(const std::string& from) const {
        if (const auto it = jobs_.find(from); it != jobs_.end()) {
            const JobStatus status = it->second->status();
            if (status.phase != model::JobPhase::kFinished &&
                status.phase != model::JobPhase::kFailed)
                return absl::FailedPreconditionError(absl::StrCat(
                    "run ", from, " has not ended, it is at step ", status.step,
                    ": both would train the samples behind its last checkpoint; stop it first and "
                    "wait for its end (bulkheadctl watch), or name the manifest of a checkpoint to "
                    "train from there a second time"));
        }
        return refused_.checkLeft(from);
    }

    /// A run that could not be taken up goes on as `run`: nobody is to be told of it again.
    absl::Status supersede(const std::string& from, const std::string& run) {
        const auto left = refused_.supersede(from);
        if (!left) return absl::OkStatus();
        absl::Status s = setAside(files(), options_.stateDir + "/" + *left, run);
        if (s.ok()) (void)tellEnd(*left);  // else the next controller tells
        return s;
    }

    absl::StatusOr<JobStatus> status(const std::string& run) {
        if (auto refused = refused_.status(run)) return *std::move(refused);
        auto job = find(run);
        if (!job.ok()) return job.status();
        return (*job)->status();
    }

    absl::StatusOr<model::Preflight> preflight(const std::string& run,
                                               const model::Action& action) {
        if (auto refused = refused_.preflight(run, action)) return *std::move(refused);
        auto now = status(run);
        if (!now.ok()) return now.status();
        return runtime::preflight(*now, action);
    }

    /// Has the job's coordinator do it, which `give` asks; keeps it if there is no room for it.
    template <class Give>
    absl::Status order(const std::string& run, JobOrder order, Give give) {
        if (const auto it = jobs_.find(run); it != jobs_.end()) {
            absl::Status done = give(*it->second);
            if (it->second->halted().empty()) return done;
            halted(run);
        }
        const WaitingRun* waiting = refused_.waiting(run);
        if (waiting == nullptr)
            return refused_.endRanks(run, order.action) ? absl::OkStatus() : find(run).status();
        const bool gone = !isRun(files(), options_.stateDir + "/" + run);
        const model::ActionKind kind = order.action.kind;
        const std::string by = order.by;
        if (absl::Status s = refused_.keep(run, std::move(order)); !s.ok()) return s;
        if (kind == model::ActionKind::kStopNow && gone) forget(run, waiting->past, by);
        return absl::OkStatus();
    }

    absl::Status watch(const std::string& run, Watcher* watcher) {
        if (const WaitingRun* waiting = refused_.waiting(run)) {
            model::RunState now = waiting->past;
            now.phase = waiting->status.phase;
            now.explanation = waiting->status.why;
            if (pool_.running(run).empty())
                for (model::ReplicaView& replica : now.replicas)
                    replica.state = model::ReplicaState::kAbsent;
            watcher->onSnapshot(now);
        } else {
            auto job = find(run);
            if (!job.ok()) return job.status();
            watcher->onSnapshot((*job)->state());
        }
        watchers_.emplace(run, watcher);
        return absl::OkStatus();
    }

    bool unwatch(const std::string& run, Watcher* watcher) {
        const auto [begin, end] = watchers_.equal_range(run);
        for (auto it = begin; it != end; ++it)
            if (it->second == watcher) return watchers_.erase(it), true;
        return false;
    }

    FileSystem& files() const { return *options_.files; }

    Secret secretOf(std::string_view run) const { return root_.derive("job " + std::string(run)); }

    /// An agent's, or a rank's, of whatever job: it is told if there is none of that name.
    Secret keyOf(std::string_view identity) const {
        const auto run = runOfIdentity(identity);
        return (run ? secretOf(*run) : root_).derive(identity);
    }

    /// 64 bits that nobody can guess, or of a stated seed.
    uint64_t fresh() {
        if (options_.seed != 0) return random_();
        std::random_device device;
        return uint64_t{device()} << 32 | device();
    }

    ControllerOptions options_;
    EventSink* sink_;
    std::unique_ptr<Reactor> own_;
    Reactor* reactor_;
    std::mt19937_64 random_;
    const Secret root_;
    AgentPool pool_;
    RefusedRuns refused_;
    Newcomers newcomers_;
    std::vector<std::string> addresses_;
    std::vector<std::unique_ptr<ControlListener>> listeners_;
    std::map<std::string, std::unique_ptr<JobCoordinator>> jobs_;
    /// The folder of a run's checkpoints as it was when the run was last begun.
    struct Quiet {
        std::string there;
        MonoNs since = 0;
    };
    std::map<std::string, Quiet> quiet_;
    History history_;
    std::map<std::string, std::string> lost_;  ///< runs without history, and what was said of it
    Reactor::TimerId historyTimer_ = 0;
    bool recovered_ = false;
    bool ending_ = false;  ///< shutDown() was called: a job that began now would outlive us
    std::multimap<std::string, Watcher*> watchers_;
    std::thread thread_;

    absl::Status launch(JobBeginning beginning) {
        if (ending_)
            return absl::FailedPreconditionError("the daemon ends; start the job on another");
        const std::string run = beginning.run;
        beginning.newSecret = options_.newSecret;
        const auto [it, first] = quiet_.try_emplace(run);
        Quiet& quiet = it->second;
        auto there = inventoryOf(files(), beginning.spec.checkpointDir);
        if (first || there != quiet.there) quiet = {std::move(there), reactor_->now()};
        beginning.settled = reactor_->now() - quiet.since >= options_.settleNs;
        if (beginning.id.empty()) beginning.id = absl::StrFormat("%016x%016x", fresh(), fresh());
        JobSurroundings around{*reactor_,
                               files(),
                               pool_,
                               sink_,
                               options_.workerPath,
                               secretOf(run),
                               absl::StrFormat("%016x", root_.derive("fingerprint").words[0]),
                               options_.version,
                               options_.sampleMs,
                               &options_.probe,
                               options_.proposer,
                               [this, run] { reactor_->post([this, run] { halted(run); }); }};
        auto job = JobCoordinator::create(std::move(around), std::move(beginning));
        if (!job.ok()) return job.status();
        (*job)->setObserver([this, run](const model::Event& event) {
            const auto [begin, end] = watchers_.equal_range(run);
            for (auto it = begin; it != end; ++it) it->second->onEvent(event);
        });
        JobCoordinator& held = *(jobs_[run] = *std::move(job));
        held.begin();
        return absl::OkStatus();
    }

  private:
    /// The log says that the run ended, and history does not know.
    absl::Status tellEnd(const std::string& run) {
        const std::string dir = options_.stateDir + "/" + run;
        if (sink_ == nullptr || !checkRunId(run).ok() || isUnfinished(files(), dir))
            return absl::OkStatus();
        const auto entries = readLog(files(), dir);
        if (!entries.ok()) return absl::OkStatus();
        auto past = history_(run);
        if (!past.ok()) return anotherRun(past.status());
        const std::string by = supersededBy(files(), dir);
        if (by.empty())
            tellUntold(run, *entries, *std::move(past));
        else if (!past->finished)
            tellFinished(run, *past, supersededText(by));
        return absl::OkStatus();
    }

    /// Tells history what the log of a run has that is not taken up, as far as it is certain to be
    /// the log of which `past` was told. Nobody trains the run meanwhile.
    void tellRest(const std::string& run, model::RunState past) {
        if (sink_ == nullptr || past.seq == 0) return;
        const std::string dir = options_.stateDir + "/" + run;
        const auto entries = readLog(files(), dir);
        if (entries.ok() && logLinks(files(), dir).ok() && goesOn(*entries, past))
            tellUntold(run, *entries, std::move(past));
        sink_->release(run);
    }

    /// The end of a run that has no coordinator.
    void tellFinished(const std::string& run, const model::RunState& past, std::string why) {
        model::Event event;
        event.seq = past.seq + 1;
        event.timeNs = reactor_->clock().unixNs();
        event.severity = model::Severity::kWarning;
        event.body = model::RunFinished{false, std::move(why),
                                        past.lastCommit ? past.lastCommit->record.step : 0};
        sink_->onEvent(run, event);
    }

    /// Aborted, where history has another run of the name than the folder has.
    static absl::Status anotherRun(const absl::Status& told) {
        if (!absl::IsFailedPrecondition(told)) return absl::OkStatus();
        return absl::AbortedError(told.message());
    }

    void tellUntold(const std::string& run, const std::vector<protocol::LogEntry>& entries,
                    model::RunState past) {
        const FactContext context{[this](MonoNs) { return reactor_->clock().unixNs(); },
                                  [](int32_t) { return std::string(); }, past.policies};
        for (size_t i = firstUntold(entries, past); i < entries.size(); ++i) {
            const auto fact = untoldFact(entries, i, past);
            if (!fact) continue;
            auto told = translate(*fact, context);
            if (!told) continue;
            model::Event event;
            event.seq = past.seq + 1;
            event.timeNs = reactor_->clock().unixNs();
            event.severity = told->severity;
            event.body = std::move(told->body);
            model::apply(past, event);
            sink_->onEvent(run, event);
        }
    }

    /// Gives histories that were lost, or could not be had, what the commit log says of their runs.
    void retell() {
        std::vector<std::string> runs;
        for (const auto& [run, job] : jobs_) runs.push_back(run);
        for (const std::string& run : runs)
            if (const std::string why = sink_->lost(run); !why.empty()) retell(run, why);
    }

    void retell(const std::string& run, const std::string& why) {
        JobCoordinator& job = *jobs_.at(run);
        auto past = history_(run);
        if (!past.ok()) {
            const std::string now(past.status().message());
            if (std::exchange(lost_[run], now) != now) job.tellLost(now);
            return;
        }
        lost_.erase(run);
        if (job.finished()) {
            const auto entries = readLog(files(), options_.stateDir + "/" + run);
            if (entries.ok()) tellUntold(run, *entries, *std::move(past));
            return;
        }
        if (ending_) return;  // its order to stop is not in the log: the next controller tells
        const auto [begin, end] = watchers_.equal_range(run);
        for (auto it = begin; it != end; ++it) it->second->onSnapshot(*past);
        JobStatus status = job.status();
        JobBeginning beginning;
        beginning.run = run;
        beginning.dir = options_.stateDir + "/" + run;
        beginning.spec = status.spec;
        beginning.past = *past;
        beginning.lost = why;
        jobs_.erase(run);
        if (absl::Status s = launch(std::move(beginning)); !s.ok())
            awaitDisk(std::move(status), *std::move(past), std::string(s.message()));
    }

    /// Its coordinator could not write the log.
    void halted(const std::string& run) {
        const auto it = jobs_.find(run);
        if (it == jobs_.end() || it->second->halted().empty()) return;
        const std::unique_ptr<JobCoordinator> ended = std::move(it->second);
        jobs_.erase(it);
        awaitDisk(ended->status(), ended->state(), ended->halted());
    }

    void awaitDisk(JobStatus status, model::RunState past, std::string why) {
        const std::string run = status.run;
        refused_.await(std::move(status), std::move(past), std::move(why));
        reactor_->after(kDiskRetry, [this, run] { tryDisk(run); });
    }

    /// A run whose folder is gone ends in history, which is all that is left of it.
    void forget(const std::string& run, const model::RunState& past, const std::string& by) {
        if (sink_ != nullptr)
            tellFinished(run, past,
                         absl::StrCat("its folder is gone, and operator ", by, " gave it up"));
        refused_.giveUp(run);
    }

    /// Folders of two runs may have been exchanged when history was asked, and be right now.
    absl::Status takeUpWaiting(WaitingRun& waiting, const std::string& id) {
        if (id != waiting.id) {
            auto told = history_(waiting.status.run);
            if (absl::IsFailedPrecondition(told.status())) return told.status();
            // The other of the two may still hold this one's, until its turn comes.
            if (!told.ok() && !std::exchange(waiting.askedAgain, true))
                return absl::UnavailableError(told.status().message());
            waiting.past = told.ok() ? *std::move(told) : model::RunState();
            waiting.id = id;
        }
        return takeUp(waiting.status, waiting.past, true);
    }

    void tryDisk(const std::string& run) {
        std::optional<WaitingRun> waiting = refused_.take(run);
        if (!waiting) return;  // another run goes on from it
        // A folder that is back can be of a run that had ended.
        const std::string dir = options_.stateDir + "/" + run;
        if (isRun(files(), dir) && !isUnfinished(files(), dir)) {
            if (const absl::Status s = tellEnd(run); !s.ok())
                refused_.refuse(std::move(waiting->status), s);
            return;
        }
        if (absl::Status s = takeUpWaiting(*waiting, runIdentity(files(), dir)); !s.ok()) {
            if (!waiting->order) waiting->status.why = std::string(s.message());
            refused_.putBack(*std::move(waiting));
            reactor_->after(kDiskRetry, [this, run] { tryDisk(run); });
            return;
        }
        pool_.tellHeld();
        if (!waiting->order) return;
        const JobOrder kept = *std::move(waiting->order);
        const absl::Status done = order(run, kept, [&](JobCoordinator& job) {
            return job.act(kept.action, 0, kept.requestId, kept.by);
        });
        // The log may have had the order already, if there was room for that and not for the rest.
        if (!done.ok()) spdlog::info("run {}: {}", run, std::string(done.message()));
    }

    AgentPool::Listener poolListener() {
        AgentPool::Listener l;
        l.nodeChanged = [this](const NodeStatus& node, const std::string& why) {
            spdlog::info("node {}: {}", node.node, why);
            for (auto& [run, job] : jobs_) job->nodeChanged(node, why);
        };
        l.rankUp = [this](const std::string& node, const RankUp& up) {
            if (auto* job = jobOf(up.process)) job->rankUp(node, up);
        };
        l.startLost = [this](const std::string& node, const RankProcess& process) {
            if (auto* job = jobOf(process)) job->startLost(node, process);
        };
        l.rankDied = [this](const std::string& node, const RankDied& died) {
            if (willBeTakenUp(died.process.job)) return false;
            refused_.rankEnded(died.process.job);
            if (auto* job = jobOf(died.process)) job->rankDied(node, died);
            return true;
        };
        l.rankGone = [this](const std::string& node, const RankGone& gone) {
            if (willBeTakenUp(gone.process.job)) return false;
            refused_.rankEnded(gone.process.job);
            if (auto* job = jobOf(gone.process)) job->rankGone(node, gone);
            // Its slot is free for any job.
            const auto nodes = pool_.nodes();
            const auto it = std::find_if(nodes.begin(), nodes.end(),
                                         [&](const NodeStatus& n) { return n.node == node; });
            if (it != nodes.end())
                for (auto& [run, job] : jobs_)
                    if (run != gone.process.job) job->nodeChanged(*it, "a slot is free");
            return true;
        };
        l.rankUnknown = [this](const std::string& node, const RunningRank& rank,
                               const std::string& why) {
            if (auto* job = jobOf(rank.process)) job->rankUnknown(node, rank, why);
        };
        l.other = [this](const std::string& node, const AgentMessage& message) {
            if (const auto* out = std::get_if<OutputLine>(&message)) {
                if (auto* job = jobOf(out->process)) job->agentSaid(node, message);
            } else if (const auto* noted = std::get_if<AgentFaultNoted>(&message)) {
                if (willBeTakenUp(noted->job)) return false;
                if (const auto it = jobs_.find(noted->job); it != jobs_.end())
                    it->second->agentSaid(node, message);
            } else {
                for (auto& [run, job] : jobs_) job->agentSaid(node, message);
            }
            return true;
        };
        return l;
    }

    /// Agents may be back, with what happened meanwhile, and ranks, before recover() was called, or
    /// while the job's files cannot be written.
    bool willBeTakenUp(const std::string& run) const {
        if (refused_.waiting(run) != nullptr) return true;
        if (const auto it = jobs_.find(run); it != jobs_.end() && !it->second->halted().empty())
            return true;
        if (recovered_ || jobs_.contains(run) || !checkRunId(run).ok()) return false;
        const std::string dir = options_.stateDir + "/" + run;
        return isRun(files(), dir) && isUnfinished(files(), dir);
    }

    JobCoordinator* jobOf(const RankProcess& process) {
        const auto it = jobs_.find(process.job);
        return it == jobs_.end() ? nullptr : it->second.get();
    }

    /// Takes the channel of a rank whose job runs here; else says why not.
    absl::Status rankArrived(std::unique_ptr<ControlChannel>& channel,
                             const protocol::Hello& hello) {
        if (willBeTakenUp(hello.job)) return channel.reset(), absl::OkStatus();  // it comes again
        auto job = find(hello.job);
        if (!job.ok()) return job.status();
        (*job)->rankConnected(std::move(channel), hello);
        return absl::OkStatus();
    }
};

absl::StatusOr<std::unique_ptr<Controller>> Controller::create(ControllerOptions options,
                                                               const Clock& clock,
                                                               EventSink* sink) {
    if (absl::Status s = options.files->makeFolder(options.stateDir); !s.ok())
        return absl::PermissionDeniedError(absl::StrCat("cannot use the state directory ",
                                                        options.stateDir, ": ", s.message(),
                                                        "; choose another or change its owner"));
    std::unique_ptr<Reactor> own;
    if (options.reactor == nullptr) {
        auto reactor = Reactor::create(clock);
        if (!reactor.ok()) return reactor.status();
        own = *std::move(reactor);
    }
    auto impl = std::make_unique<Impl>(std::move(options), sink, std::move(own));
    if (absl::Status s = impl->bind(); !s.ok()) return s;
    impl->startThread();
    return std::unique_ptr<Controller>(new Controller(std::move(impl)));
}

Controller::Controller(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Controller::~Controller() = default;

std::vector<std::string> Controller::addresses() const {
    return impl_->addresses_;
}

absl::StatusOr<std::string> Controller::start(const model::JobSpec& spec,
                                              const StartOptions& options) {
    std::optional<model::JobSpec> earlier;
    std::vector<std::string> made;
    auto beginning = impl_->call([&] { return impl_->prepare(spec, options, earlier, made); });
    absl::Status ready = beginning.status();
    if (ready.ok())
        ready = takeText(beginning->spec, beginning->dir, earlier ? &*earlier : nullptr);
    if (ready.ok() && beginning->resume)
        ready = checkText(impl_->files(), beginning->spec, beginning->resume->path);
    if (!ready.ok()) {
        // Nothing was begun: the name is free again.
        for (const std::string& folder : made) (void)impl_->files().removeFolder(folder);
        return ready;
    }
    const std::string run = beginning->run;
    const absl::Status launched = impl_->call([&] {
        absl::Status s = impl_->launch(*std::move(beginning));
        if (s.ok() && !options.resumeFrom.empty()) s = impl_->supersede(options.resumeFrom, run);
        return s;
    });
    if (!launched.ok()) return launched;
    return run;
}

absl::StatusOr<std::vector<std::string>> Controller::canResume(const std::string& from,
                                                               const model::JobSpec& spec) {
    std::vector<std::string> damaged;
    absl::Status newest;
    while (true) {
        auto found = impl_->call([&]() -> absl::StatusOr<FoundCheckpoint> {
            if (absl::Status s = impl_->checkLeft(from); !s.ok()) return s;
            return findCheckpoint(impl_->files(), impl_->options_.stateDir, from, damaged);
        });
        if (!found.ok() && !damaged.empty()) return newest;
        // A file that was named and cannot be used.
        if (absl::IsDataLoss(found.status()))
            return absl::InvalidArgumentError(found.status().message());
        if (!found.ok()) return found.status();
        if (absl::Status s = checkFits(from, *found, spec); !s.ok()) return s;
        model::JobSpec own = spec;
        own.domains = textOf(spec, found->spec);
        const std::string& path = found->checkpoint.path;
        if (absl::Status s = checkText(impl_->files(), own, path); !s.ok()) return s;
        const absl::Status whole = checkStates(impl_->files(), path);
        if (whole.ok()) return damaged;
        if (damaged.empty()) newest = whole;
        if (path == from || std::find(damaged.begin(), damaged.end(), path) != damaged.end())
            return newest;
        spdlog::warn("{} is passed over: {}", path, std::string(whole.message()));
        damaged.push_back(path);
    }
}

absl::StatusOr<std::vector<std::string>> Controller::recover(
    const History& history, const std::vector<std::string>& withoutEnd) {
    return impl_->call([&] { return impl_->recover(history, withoutEnd); });
}

absl::Status Controller::stop(const std::string& run, bool checkpoint, const std::string& by) {
    return impl_->call([&] {
        model::Action action;
        action.kind = checkpoint ? model::ActionKind::kStop : model::ActionKind::kStopNow;
        return impl_->order(run, {action, "", by},
                            [&](JobCoordinator& job) { return job.stop(checkpoint, by); });
    });
}

void Controller::shutDown() {
    impl_->call([&] {
        impl_->ending_ = true;
        for (auto& [run, job] : impl_->jobs_) job->shutDown();
    });
}

bool Controller::isEnding() {
    return impl_->call([&] {
        return std::any_of(impl_->jobs_.begin(), impl_->jobs_.end(),
                           [](const auto& job) { return !job.second->finished(); });
    });
}

absl::Status Controller::act(const std::string& run, const model::Action& action,
                             uint64_t expectedRevision, const std::string& requestId,
                             const std::string& by) {
    return impl_->call([&] {
        return impl_->order(run, {action, requestId, by}, [&](JobCoordinator& job) {
            return job.act(action, expectedRevision, requestId, by);
        });
    });
}

absl::StatusOr<model::Preflight> Controller::preflight(const std::string& run,
                                                       const model::Action& action) {
    return impl_->call([&] { return impl_->preflight(run, action); });
}

absl::StatusOr<model::Preflight> Controller::preflight(const std::string& run,
                                                       const model::FaultSpec& fault) {
    return impl_->call([&]() -> absl::StatusOr<model::Preflight> {
        auto job = impl_->find(run);
        if (!job.ok()) return job.status();
        return runtime::preflight((*job)->status(), fault);
    });
}

absl::StatusOr<uint64_t> Controller::inject(const std::string& run, const model::FaultSpec& fault,
                                            uint64_t expectedRevision, const std::string& requestId,
                                            const std::string& by) {
    return impl_->call([&]() -> absl::StatusOr<uint64_t> {
        auto job = impl_->find(run);
        if (!job.ok()) return job.status();
        return (*job)->inject(fault, expectedRevision, requestId, by);
    });
}

absl::Status Controller::endFault(const std::string& run, uint64_t fault) {
    return impl_->call([&] {
        auto job = impl_->find(run);
        return job.ok() ? (*job)->endFault(fault) : job.status();
    });
}

absl::StatusOr<model::CampaignPreflight> Controller::preflight(
    const std::string& run, const model::CampaignText& campaign) {
    return impl_->call([&]() -> absl::StatusOr<model::CampaignPreflight> {
        auto job = impl_->find(run);
        if (!job.ok()) return job.status();
        return (*job)->preflightCampaign(campaign);
    });
}

absl::StatusOr<uint64_t> Controller::startCampaign(const std::string& run,
                                                   const model::CampaignText& campaign,
                                                   uint64_t expectedRevision,
                                                   const std::string& requestId,
                                                   const std::string& by) {
    return impl_->call([&]() -> absl::StatusOr<uint64_t> {
        auto job = impl_->find(run);
        if (!job.ok()) return job.status();
        return (*job)->startCampaign(campaign, expectedRevision, requestId, by);
    });
}

absl::Status Controller::stopCampaign(const std::string& run, uint64_t campaign,
                                      const std::string& by) {
    return impl_->call([&] {
        auto job = impl_->find(run);
        return job.ok() ? (*job)->stopCampaign(campaign, by) : job.status();
    });
}

std::vector<JobStatus> Controller::list() {
    return impl_->call([&] {
        std::vector<JobStatus> all;
        for (const auto& [run, job] : impl_->jobs_) all.push_back(job->status());
        for (JobStatus& refused : impl_->refused_.list()) all.push_back(std::move(refused));
        return all;
    });
}

absl::StatusOr<JobStatus> Controller::status(const std::string& run) {
    return impl_->call([&] { return impl_->status(run); });
}

std::vector<NodeStatus> Controller::nodes() {
    return impl_->call([&] { return impl_->pool_.nodes(); });
}

absl::Status Controller::changeNode(const std::string& node, model::NodeChange change,
                                    bool machineIsOff, const std::string& by) {
    return impl_->call([&] {
        if (change != model::NodeChange::kForget)
            return impl_->pool_.cordon(node, change == model::NodeChange::kCordon, by);
        for (const auto& [run, job] : impl_->jobs_)
            for (const auto& [where, rank] : impl_->pool_.running(run))
                if (where == node && job->isConnected(rank.process))
                    return absl::FailedPreconditionError(
                        absl::StrCat("replica ", rank.process.rank.replica, " of job ", run,
                                     " trains on node ", node, "; start its agent again"));
        return impl_->pool_.forget(node, machineIsOff, by);
    });
}

absl::Status Controller::watch(const std::string& run, Watcher* watcher) {
    return impl_->call([&] { return impl_->watch(run, watcher); });
}

void Controller::unwatch(const std::string& run, Watcher* watcher) {
    impl_->call([&] { return impl_->unwatch(run, watcher); });
}

}  // namespace bulkhead::runtime
