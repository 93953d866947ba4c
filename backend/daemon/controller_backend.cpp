// SPDX-License-Identifier: Apache-2.0
#include "backend/daemon/controller_backend.h"

#include <algorithm>

#include "backend/common/file_system.h"
#include "backend/model/command_text.h"
#include "backend/model/job_file.h"
#include "backend/runtime/coordinator/run_files.h"

namespace bulkhead::daemon {
namespace {

class WatcherOf final : public runtime::Watcher {
  public:
    explicit WatcherOf(service::Subscriber* subscriber) : subscriber_(subscriber) {}
    void onSnapshot(const model::RunState& state) override { subscriber_->onSnapshot(state); }
    void onEvent(const model::Event& event) override { subscriber_->onEvent(event); }

  private:
    service::Subscriber* subscriber_;
};

model::JobInfo infoOf(const runtime::JobStatus& status) {
    model::JobInfo info;
    info.id = status.run;
    info.name = status.spec.name;
    info.phase = status.phase;
    info.why = status.why;
    info.revision = status.revision;
    info.run = status.run;
    info.step = status.step;
    info.steps = status.spec.steps;
    info.replicas = status.spec.replicas;
    info.shards = status.spec.shards;
    info.contributors = static_cast<uint32_t>(std::count_if(
        status.replicas.begin(), status.replicas.end(),
        [](const auto& replica) { return replica.state == model::ReplicaState::kTraining; }));
    info.startedNs = status.startedNs;
    return info;
}

}  // namespace

absl::Status ControllerBackend::mayReadModel(const std::string& path) const {
    return allowed_.list ? checkModelFile(*allowed_.list, path, allowed_.file) : absl::OkStatus();
}

absl::StatusOr<std::string> ControllerBackend::start(const model::JobSpec& spec,
                                                     const std::string& resumeFrom,
                                                     const service::Call& call) {
    // Said before a run is opened, so that a job that cannot run leaves no empty one behind.
    if (absl::Status status = model::checkJob(spec); !status.ok()) return status;
    if (allowed_.list) {
        // Before its text and its checkpoint are read.
        if (absl::Status s = checkAllowed(*allowed_.list, spec, allowed_.file); !s.ok()) return s;
        if (resumeFrom.find('/') != std::string::npos)
            if (absl::Status s =
                    checkResume(*allowed_.list, resumeFrom, allowed_.stateDir, allowed_.file);
                !s.ok())
                return s;
    }
    if (absl::Status status = model::checkData(spec); !status.ok()) return status;
    runtime::StartOptions options;
    options.resumeFrom = resumeFrom;
    if (!resumeFrom.empty()) {
        auto damaged = controller_.canResume(resumeFrom, spec);
        if (!damaged.ok()) return damaged.status();
        options.passedOver = *std::move(damaged);
    }
    if (call.gaveUp && call.gaveUp())
        return absl::CancelledError("the caller gave up before the job was started");
    const auto run = history_.open(spec.name, [&](const std::string& name) {
        if (spec.checkpointDir.empty()) return absl::OkStatus();
        return runtime::claimCheckpoints(diskFiles(),
                                         runtime::checkpointsBelow(spec.checkpointDir, name));
    });
    if (!run.ok()) return run.status();
    options.run = *run;
    auto started = controller_.start(spec, options);
    if (!started.ok()) history_.closeFailed(*run, std::string(started.status().message()));
    return started;
}

std::vector<model::JobInfo> ControllerBackend::jobs() {
    std::vector<model::JobInfo> out;
    for (const runtime::JobStatus& status : controller_.list()) out.push_back(info(status));
    return out;
}

std::vector<model::NodeInfo> ControllerBackend::nodes() {
    std::vector<model::NodeInfo> out;
    for (const runtime::NodeStatus& n : controller_.nodes())
        out.push_back({n.node, n.address, n.state, n.why, n.slots, n.used, n.gpus, n.gpusUsed});
    return out;
}

absl::Status ControllerBackend::changeNode(const std::string& node, model::NodeChange change,
                                           bool machineIsOff, const service::Call& call) {
    return controller_.changeNode(node, change, machineIsOff, call.by);
}

absl::StatusOr<model::JobInfo> ControllerBackend::job(const std::string& id) {
    const auto status = controller_.status(id);
    if (!status.ok()) return status.status();
    return info(*status);
}

model::JobInfo ControllerBackend::info(const runtime::JobStatus& status) const {
    model::JobInfo info = infoOf(status);
    const std::string lacks = history_.lacks(status.run);
    const std::string lost = history_.lost(status.run);  // the reason of a refusal, if any
    if (!lost.empty() && info.why.find(lost) != std::string::npos) return info;
    if (!lacks.empty()) info.why += (info.why.empty() ? "" : "; ") + lacks;
    return info;
}

absl::StatusOr<model::Preflight> ControllerBackend::preflight(const std::string& job,
                                                              const model::Action& action) {
    if (absl::Status status = model::checkAction(action); !status.ok()) return status;
    return controller_.preflight(job, action);
}

absl::StatusOr<model::Preflight> ControllerBackend::preflight(const std::string& job,
                                                              const model::FaultSpec& fault) {
    if (absl::Status status = model::checkFault(fault); !status.ok()) return status;
    return controller_.preflight(job, fault);
}

absl::Status ControllerBackend::act(const std::string& job, const model::Action& action,
                                    const service::Call& call) {
    if (absl::Status status = model::checkAction(action); !status.ok()) return status;
    return controller_.act(job, action, call.expectedRevision, call.requestId, call.by);
}

absl::StatusOr<uint64_t> ControllerBackend::inject(const std::string& job,
                                                   const model::FaultSpec& fault,
                                                   const service::Call& call) {
    if (absl::Status status = model::checkFault(fault); !status.ok()) return status;
    return controller_.inject(job, fault, call.expectedRevision, call.requestId, call.by);
}

absl::Status ControllerBackend::endFault(const std::string& job, uint64_t fault,
                                         const service::Call&) {
    return controller_.endFault(job, fault);
}

absl::StatusOr<model::CampaignPreflight> ControllerBackend::preflight(
    const std::string& job, const model::CampaignText& campaign) {
    return controller_.preflight(job, campaign);
}

absl::StatusOr<uint64_t> ControllerBackend::startCampaign(const std::string& job,
                                                          const model::CampaignText& campaign,
                                                          const service::Call& call) {
    return controller_.startCampaign(job, campaign, call.expectedRevision, call.requestId, call.by);
}

absl::Status ControllerBackend::stopCampaign(const std::string& job, uint64_t campaign,
                                             const service::Call& call) {
    return controller_.stopCampaign(job, campaign, call.by);
}

absl::Status ControllerBackend::stop(const std::string& job, bool checkpoint,
                                     const service::Call& call) {
    return controller_.stop(job, checkpoint, call.by);
}

absl::Status ControllerBackend::subscribe(const std::string& job, service::Subscriber* subscriber) {
    auto watcher = std::make_unique<WatcherOf>(subscriber);
    if (absl::Status status = controller_.watch(job, watcher.get()); !status.ok()) return status;
    const MutexLock lock(mutex_);
    watchers_[subscriber] = std::move(watcher);
    return absl::OkStatus();
}

void ControllerBackend::unsubscribe(const std::string& job, service::Subscriber* subscriber) {
    std::unique_ptr<runtime::Watcher> watcher;
    {
        const MutexLock lock(mutex_);
        const auto it = watchers_.find(subscriber);
        if (it == watchers_.end()) return;
        watcher = std::move(it->second);
        watchers_.erase(it);
    }
    controller_.unwatch(job, watcher.get());
}

}  // namespace bulkhead::daemon
