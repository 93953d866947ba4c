// SPDX-License-Identifier: Apache-2.0
#include "bench/demo_job.h"

#include <filesystem>
#include <map>

#include "backend/model/job_file.h"

namespace bulkhead::bench {

absl::StatusOr<std::unique_ptr<DemoJob>> DemoJob::start(
    const std::string& root, const std::string& folder,
    const std::function<void(model::JobSpec&)>& change, uint32_t nodes) {
    namespace fs = std::filesystem;
    auto spec = model::readJobFile(root + "/resources/jobs/demo.toml");
    if (!spec.ok()) return spec.status();
    spec->checkpointDir = folder + "/checkpoints";
    if (change) change(*spec);

    std::error_code error;
    fs::remove_all(folder, error);
    if (fs::create_directories(folder, error); error)
        return absl::UnavailableError(folder + ": " + error.message());
    std::unique_ptr<DemoJob> job(new DemoJob(folder, nodes));
    if (!job->host_.ready().ok()) return job->host_.ready();
    auto run = job->host_.controller().start(*spec, {});
    if (!run.ok()) return run.status();
    job->run_ = *run;
    return job;
}

absl::Status DemoJob::wait(const std::string& what, double seconds,
                           const std::function<bool(const model::RunState&)>& reached) {
    return host_.tape().awaitState(run_, what, reached, static_cast<MonoNs>(seconds * 1e9));
}

absl::StatusOr<uint64_t> DemoJob::inject(const model::FaultSpec& fault) {
    return host_.controller().inject(run_, fault, 0, "", "bench");
}

absl::Status DemoJob::act(const model::Action& action) {
    return host_.controller().act(run_, action, 0, "", "bench");
}

std::vector<model::StepCommitted> committed(const std::vector<model::Event>& events) {
    std::map<uint64_t, model::StepCommitted> latest;
    for (const model::Event& e : events)
        if (const auto* step = std::get_if<model::StepCommitted>(&e.body))
            latest[step->record.step] = *step;
    std::vector<model::StepCommitted> out;
    for (auto& [_, step] : latest) out.push_back(std::move(step));
    return out;
}

}  // namespace bulkhead::bench
