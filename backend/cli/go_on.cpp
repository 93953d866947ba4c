// SPDX-License-Identifier: Apache-2.0
#include "backend/cli/go_on.h"

namespace bulkhead::cli {

client::Result<std::optional<model::JobInfo>> leftUnfinished(Session& session) {
    auto job = leftOrEnded(session);
    if (job.ok() && job.value() && job.value()->phase == model::JobPhase::kFinished)
        return std::optional<model::JobInfo>();
    return job;
}

client::Result<std::optional<model::JobInfo>> leftOrEnded(Session& session) {
    const auto jobs = session.await<std::vector<model::JobInfo>>(
        [](client::Client& c, auto reply) { c.listJobs(std::move(reply)); });
    if (!jobs.ok()) return jobs.failure();
    const auto order = [](const model::JobInfo& job) {
        const int rank = job.phase == model::JobPhase::kFinished ? 0
                         : job.phase == model::JobPhase::kFailed ? 1
                                                                 : 2;
        return std::pair(rank, job.run);
    };
    std::optional<model::JobInfo> newest;
    for (const model::JobInfo& job : jobs.value())
        if (!newest || order(job) > order(*newest)) newest = job;
    return newest;
}

client::Result<std::optional<model::RunInfo>> newestRun(Session& session) {
    const auto runs = session.await<std::vector<model::RunInfo>>(
        [](client::Client& c, auto reply) { c.listRuns("", std::move(reply)); });
    if (!runs.ok()) return runs.failure();
    std::optional<model::RunInfo> newest;
    for (const model::RunInfo& run : runs.value())
        if (run.steps > 0 && (!newest || run.startedNs > newest->startedNs)) newest = run;
    return newest;
}

client::Result<std::string> resumedFrom(Session& session, const std::string& resume) {
    if (resume != "latest") return resume;
    const auto newest = newestRun(session);
    if (!newest.ok()) return newest.failure();
    if (newest.value()) return newest.value()->id;
    return client::Failure{client::FailureCode::kNotFound, "There is no run to go on from",
                           "None of the recorded runs has committed a step.",
                           "Leave --resume out to begin anew, or name the --db of the run that is "
                           "meant, or the manifest.json of a checkpoint.",
                           false};
}

}  // namespace bulkhead::cli
