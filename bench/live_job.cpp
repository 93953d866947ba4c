// SPDX-License-Identifier: Apache-2.0
#include "bench/live_job.h"

#include <filesystem>
#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "backend/model/job_file.h"

namespace bulkhead::bench {

namespace {

namespace fs = std::filesystem;

std::string besideThisProgram(const std::string& name) {
    return (fs::read_symlink("/proc/self/exe").parent_path() / name).string();
}

std::string randomToken() {
    std::random_device device;
    return absl::StrCat(absl::Hex(device()), absl::Hex(device()), absl::Hex(device()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<LiveJob>> LiveJob::start(const Options& options,
                                                        model::JobSpec spec) {
    std::error_code ignored;
    fs::remove_all(options.folder, ignored);
    fs::create_directories(options.folder);

    std::unique_ptr<LiveJob> job(new LiveJob);
    runtime::ControllerOptions control;
    control.stateDir = options.folder + "/state";
    control.listen = {"unix:" + options.folder + "/control.sock"};
    control.token = randomToken();
    control.workerPath = besideThisProgram("bulkhead-worker");
    control.version = "bench";
    auto controller = runtime::Controller::create(control, job->clock_, job.get());
    if (!controller.ok()) return controller.status();
    job->controller_ = *std::move(controller);

    const std::string address = job->controller_->addresses().front();
    if (absl::Status s = job->startAgents(options, address, control.token); !s.ok()) return s;
    auto run = job->controller_->start(spec, {});
    if (!run.ok()) return run.status();
    job->run_ = *run;
    return job;
}

absl::Status LiveJob::startAgents(const Options& options, const std::string& address,
                                  const std::string& token) {
    for (uint32_t i = 0; i < options.agents; ++i) {
        runtime::AgentOptions agent;
        agent.node = absl::StrCat("node", i);
        agent.address = absl::StrCat("127.0.0.", i + 1);
        agent.controller = address;
        agent.token = token;
        agent.runDir = absl::StrCat(options.folder, "/", agent.node);
        auto made = runtime::Agent::create(agent, clock_);
        if (!made.ok()) return made.status();
        agents_.push_back(*std::move(made));
        threads_.emplace_back([a = agents_.back().get()] { a->run().IgnoreError(); });
    }
    return absl::OkStatus();
}

LiveJob::~LiveJob() {
    if (!run_.empty() && !state().finished) {
        stop(false).IgnoreError();
        wait("the end of the run", 30, [](const model::RunState& s) {
            return s.finished.has_value();
        }).IgnoreError();
    }
    for (auto& agent : agents_) agent->stop();
    for (std::thread& thread : threads_) thread.join();
    controller_.reset();
}

void LiveJob::onEvent(const std::string&, const model::Event& event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(event);
    model::apply(state_, event);
    changed_.notify_all();
}

absl::Status LiveJob::wait(const std::string& what, double seconds,
                           const std::function<bool(const model::RunState&)>& reached) {
    std::unique_lock lock(mutex_);
    const auto until =
        std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (!reached(state_)) {
        if (state_.finished)
            return absl::AbortedError(
                absl::StrCat("waiting for ", what, ", the run ended: ", state_.finished->why));
        if (changed_.wait_until(lock, until) == std::cv_status::timeout && !reached(state_))
            return absl::DeadlineExceededError(
                absl::StrCat("no ", what, " within ", seconds, " s at step ",
                             state_.lastCommit ? state_.lastCommit->record.step : 0, ": ",
                             state_.explanation));
    }
    return absl::OkStatus();
}

absl::StatusOr<uint64_t> LiveJob::inject(const model::FaultSpec& fault) {
    return controller_->inject(run_, fault, 0, "", "bench");
}

absl::Status LiveJob::stop(bool checkpoint) {
    return controller_->stop(run_, checkpoint, "bench");
}

std::vector<model::Event> LiveJob::events(uint64_t after) const {
    const std::lock_guard lock(mutex_);
    std::vector<model::Event> out;
    for (const model::Event& e : events_)
        if (e.seq > after) out.push_back(e);
    return out;
}

model::RunState LiveJob::state() const {
    const std::lock_guard lock(mutex_);
    return state_;
}

absl::StatusOr<model::JobSpec> demoSpec(const std::string& root, const std::string& folder) {
    auto spec = model::readJobFile(root + "/resources/jobs/demo.toml");
    if (spec.ok()) spec->checkpointDir = folder + "/checkpoints";
    return spec;
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
