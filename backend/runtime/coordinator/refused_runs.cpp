// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/refused_runs.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/runtime/checkpoint/checkpoint.h"
#include "backend/runtime/coordinator/run_files.h"
#include "spdlog/spdlog.h"

namespace bulkhead::runtime {
namespace {

using Kind = model::ActionKind;

bool isStop(const model::Action& action) {
    return action.kind == Kind::kStop || action.kind == Kind::kStopNow;
}

bool isPause(const model::Action& action) {
    return action.kind == Kind::kPause || action.kind == Kind::kResume;
}

}  // namespace

void RefusedRuns::refuse(JobStatus status, const absl::Status& cause) {
    Refused& refused = refused_[status.run];
    refused.status = std::move(status);
    refused.status.phase = model::JobPhase::kFailed;
    refused.status.why = std::string(cause.message());
    refused.cause = cause;
    seeWhatIsLeft(refused);
}

void RefusedRuns::await(JobStatus status, model::RunState past, std::string why) {
    const std::string run = status.run;
    status.phase = model::JobPhase::kWaiting;
    status.why = std::move(why);
    const std::string id = runIdentity(files_, stateDir_ + "/" + run);
    waiting_[run] = {std::move(status), std::move(past), id};
}

const WaitingRun* RefusedRuns::waiting(const std::string& run) const {
    const auto it = waiting_.find(run);
    return it == waiting_.end() ? nullptr : &it->second;
}

std::optional<WaitingRun> RefusedRuns::take(const std::string& run) {
    auto taken = waiting_.extract(run);
    if (taken.empty()) return std::nullopt;
    return std::move(taken.mapped());
}

void RefusedRuns::putBack(WaitingRun run) {
    const std::string name = run.status.run;
    waiting_[name] = std::move(run);
}

void RefusedRuns::giveUp(const std::string& run) {
    JobStatus& last = givenUp_[run] = waiting_.at(run).status;
    last.phase = model::JobPhase::kFailed;
    last.why = "it was given up";
    waiting_.erase(run);
}

std::optional<JobStatus> RefusedRuns::status(const std::string& run) const {
    if (const WaitingRun* waits = waiting(run)) return waits->status;
    if (const auto it = refused_.find(run); it != refused_.end()) return told(it->second);
    if (const auto it = givenUp_.find(run); it != givenUp_.end()) return it->second;
    return std::nullopt;
}

std::vector<JobStatus> RefusedRuns::list() const {
    std::vector<JobStatus> all;
    for (const auto& [run, waits] : waiting_) all.push_back(waits.status);
    for (const auto& [run, refused] : refused_) all.push_back(told(refused));
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.run < b.run; });
    return all;
}

absl::Status RefusedRuns::why(const std::string& run) const {
    if (const WaitingRun* waits = waiting(run))
        return absl::ResourceExhaustedError(waits->status.why);
    if (const auto it = refused_.find(run); it != refused_.end())
        return absl::FailedPreconditionError(
            absl::StrCat("run ", run, " could not be taken up again: ", told(it->second).why));
    return absl::OkStatus();
}

bool RefusedRuns::keepsItsRun(const Refused& refused) {
    return absl::IsUnauthenticated(refused.cause) || absl::IsAborted(refused.cause);
}

bool RefusedRuns::isFrom(const JobStatus& status, const std::string& from) {
    const std::string& checkpoints = status.spec.checkpointDir;
    return status.run == from || (!checkpoints.empty() && from.starts_with(checkpoints + "/"));
}

void RefusedRuns::seeWhatIsLeft(Refused& refused) const {
    refused.status.step = 0;
    if (keepsItsRun(refused)) return;
    const auto found = findCheckpoint(files_, stateDir_, refused.status.run);
    if (found.ok()) refused.status.step = found->checkpoint.step;
    std::string newer;
    if (const auto newest =
            found.ok() ? newestFolder(files_, found->spec.checkpointDir) : std::nullopt;
        newest && std::pair(newest->lineage, newest->step) >
                      std::pair(found->checkpoint.lineage, found->checkpoint.step))
        newer = absl::StrCat(" (what is in ", newest->path,
                             " is not whole, or does not say which samples it has seen)");
    refused.left =
        found.ok() ? absl::StrCat("; its last whole checkpoint is of step ", found->checkpoint.step,
                                  newer, ": resume ", refused.status.run, " in a new run")
        : found.status() == refused.cause
            ? ""
            : absl::StrCat("; it cannot be resumed in a new run: ", found.status().message());
}

JobStatus RefusedRuns::told(const Refused& refused) const {
    JobStatus status = refused.status;
    const size_t ranks = pool_.running(status.run).size();
    if (ranks == 0) {
        absl::StrAppend(&status.why, refused.left);
        return status;
    }
    absl::StrAppend(&status.why, "; ", ranks,
                    " of its ranks run and hold what they trained, until it is mended");
    if (!refused.left.empty())
        absl::StrAppend(
            &status.why, " or bulkheadctl stop --job ", status.run,
            " has them write a checkpoint and end; `jobs` says then from which step --resume ",
            status.run, " goes on");
    return status;
}

void RefusedRuns::rankEnded(const std::string& run) {
    const auto it = refused_.find(run);
    if (it != refused_.end() && pool_.running(run).empty()) seeWhatIsLeft(it->second);
}

absl::Status RefusedRuns::checkLeft(const std::string& from) const {
    const auto refuses = [](const JobStatus& status) {
        return absl::FailedPreconditionError(
            absl::StrCat("run ", status.run, " could not be taken up: ", status.why));
    };
    for (const auto& [run, waits] : waiting_)
        if (isFrom(waits.status, from) && !pool_.running(run).empty()) return refuses(waits.status);
    for (const auto& [run, refused] : refused_)
        if (isFrom(refused.status, from) &&
            (!pool_.running(run).empty() || (keepsItsRun(refused) && run == from)))
            return refuses(told(refused));
    return absl::OkStatus();
}

std::optional<std::string> RefusedRuns::supersede(const std::string& from) {
    const auto forget = [&](auto& runs) -> std::optional<std::string> {
        const auto it = std::find_if(runs.begin(), runs.end(), [&](const auto& one) {
            return isFrom(one.second.status, from);
        });
        if (it == runs.end()) return std::nullopt;
        std::string run = it->first;
        runs.erase(it);
        return run;
    };
    if (auto run = forget(refused_)) return run;
    return forget(waiting_);
}

std::optional<absl::StatusOr<model::Preflight>> RefusedRuns::preflight(
    const std::string& run, const model::Action& action) const {
    model::Preflight check;
    if (const WaitingRun* waits = waiting(run)) {
        if (isStop(action) || isPause(action)) return std::nullopt;
        check.allowed = false;
        check.refusal = waits->status.why;
        return check;
    }
    if (!refused_.contains(run)) return std::nullopt;
    const size_t ranks = pool_.running(run).size();
    if (!isStop(action) || ranks == 0) return why(run);
    check.title = absl::StrCat("End the ranks of ", run);
    check.effect =
        absl::StrCat("The ", ranks, " ranks that run ",
                     action.kind == Kind::kStop ? "write a checkpoint of what they hold and end"
                                                : "end, and what they hold is lost");
    return check;
}

absl::Status RefusedRuns::keep(const std::string& run, JobOrder order) {
    WaitingRun& waiting = waiting_.at(run);
    const Kind kind = order.action.kind;
    const bool stopping = waiting.order && isStop(waiting.order->action);
    if (!isStop(order.action) && !isPause(order.action))
        return absl::ResourceExhaustedError(waiting.status.why);
    if (isPause(order.action) && stopping)
        return absl::FailedPreconditionError("the job is stopping");
    if (kind == Kind::kStop && stopping) return absl::OkStatus();
    if (!waiting.order) waiting.waits = waiting.status.why;
    if (isPause(order.action)) waiting.status.pauseOrdered = kind == Kind::kPause;
    if (kind == Kind::kStopNow)
        for (const auto& [node, running] : pool_.running(run))
            (void)pool_.send(node, SignalRank{running.process, SIGKILL, 0, 0});
    waiting.status.phase = kind == Kind::kPause    ? model::JobPhase::kPaused
                           : kind == Kind::kResume ? model::JobPhase::kWaiting
                                                   : model::JobPhase::kStopping;
    waiting.status.why = absl::StrCat(
        kind == Kind::kStopNow ? "its ranks were ended; that it ended is logged"
        : kind == Kind::kStop  ? "it stops with a checkpoint"
        : kind == Kind::kPause ? "it pauses"
                               : "it resumes",
        " when there is room, and until then only this controller knows of the order: ",
        waiting.waits);
    spdlog::warn("run {}: {}", run, waiting.status.why);
    waiting.order = std::move(order);
    return absl::OkStatus();
}

bool RefusedRuns::endRanks(const std::string& run, const model::Action& order) {
    const auto ranks = pool_.running(run);
    if (!refused_.contains(run) || !isStop(order) || ranks.empty()) return false;
    for (const auto& [node, running] : ranks)
        (void)pool_.send(
            node, SignalRank{running.process, order.kind == Kind::kStop ? SIGTERM : SIGKILL, 0, 0});
    return true;
}

}  // namespace bulkhead::runtime
