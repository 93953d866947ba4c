// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "backend/common/threads.h"
#include "backend/service/backend.h"

namespace bulkhead::testing {

/// Jobs that only exist as state: events are pushed into them by the test.
class FakeBackend final : public service::Backend {
  public:
    model::JobInfo& addJob(const std::string& id) {
        const MutexLock lock(mutex_);
        Job& job = jobs_[id];
        job.info.id = id;
        job.info.name = id;
        job.info.revision = 1;
        job.state.startedNs = 1;
        return job.info;
    }

    void emit(const std::string& id, model::EventBody body) {
        const MutexLock lock(mutex_);
        Job& job = jobs_.at(id);
        model::Event event;
        event.seq = job.state.seq + 1;
        event.timeNs = static_cast<int64_t>(event.seq) * 1000;
        event.body = std::move(body);
        model::apply(job.state, event);
        for (service::Subscriber* subscriber : job.subscribers) subscriber->onEvent(event);
    }

    size_t subscribers(const std::string& id) {
        const MutexLock lock(mutex_);
        return jobs_.at(id).subscribers.size();
    }

    model::RunState state(const std::string& id) {
        const MutexLock lock(mutex_);
        return jobs_.at(id).state;
    }

    std::vector<service::Call> calls() {
        const MutexLock lock(mutex_);
        return calls_;
    }

    /// Those that were accepted.
    std::vector<model::Action> actions() {
        const MutexLock lock(mutex_);
        return actions_;
    }

    /// Runs at the start of every call, outside the lock.
    std::function<void()> onCall;
    /// Runs in the place of what a start reads first.
    std::function<void(const service::Call&)> onStart;

    absl::Status mayReadModel(const std::string&) const override { return absl::OkStatus(); }
    absl::StatusOr<std::string> start(const model::JobSpec& spec, const std::string&,
                                      const service::Call& call) override {
        enter(call);
        if (onStart) onStart(call);
        if (spec.replicas == 0) return absl::InvalidArgumentError("replicas is 0; use at least 1");
        addJob(spec.name).replicas = spec.replicas;
        return spec.name;
    }
    std::vector<model::JobInfo> jobs() override {
        const MutexLock lock(mutex_);
        std::vector<model::JobInfo> out;
        for (const auto& [id, job] : jobs_) out.push_back(job.info);
        return out;
    }
    std::vector<model::NodeInfo> nodes() override {
        return {{"west", "10.0.0.7", model::NodeState::kCordoned, "", 8, 3, 4, 2}};
    }
    absl::Status changeNode(const std::string& node, model::NodeChange change, bool machineIsOff,
                            const service::Call& call) override {
        if (node != "west") return absl::NotFoundError("no node is named \"" + node + "\"");
        enter(call);
        changed = {std::string(enumName(change)), machineIsOff};
        return absl::OkStatus();
    }
    std::pair<std::string, bool> changed;
    absl::StatusOr<model::JobInfo> job(const std::string& id) override {
        if (onCall) onCall();
        const MutexLock lock(mutex_);
        const auto it = jobs_.find(id);
        if (it == jobs_.end())
            return absl::NotFoundError("there is no job \"" + id + "\"; list the jobs");
        return it->second.info;
    }
    absl::StatusOr<model::Preflight> preflight(const std::string& id,
                                               const model::Action& action) override {
        const auto found = job(id);
        if (!found.ok()) return found.status();
        model::Preflight out;
        out.title = "Action " + std::string(enumName(action.kind));
        out.revision = found->revision;
        return out;
    }
    absl::StatusOr<model::Preflight> preflight(const std::string& id,
                                               const model::FaultSpec& fault) override {
        const auto found = job(id);
        if (!found.ok()) return found.status();
        model::Preflight out;
        out.title = "Fault " + std::string(enumName(fault.kind));
        out.allowed = fault.replica >= 0;
        out.refusal = out.allowed ? "" : "no replica is named";
        out.revision = found->revision;
        return out;
    }
    absl::Status act(const std::string& id, const model::Action& action,
                     const service::Call& call) override {
        enter(call);
        if (absl::Status status = change(id, call); !status.ok()) return status;
        const MutexLock lock(mutex_);
        actions_.push_back(action);
        return absl::OkStatus();
    }
    absl::StatusOr<uint64_t> inject(const std::string& id, const model::FaultSpec&,
                                    const service::Call& call) override {
        enter(call);
        if (absl::Status status = change(id, call); !status.ok()) return status;
        const MutexLock lock(mutex_);
        return ++faults_;
    }
    absl::Status endFault(const std::string& id, uint64_t, const service::Call& call) override {
        enter(call);
        return change(id, call);
    }
    absl::StatusOr<model::CampaignPreflight> preflight(
        const std::string& id, const model::CampaignText& campaign) override {
        const auto found = job(id);
        if (!found.ok()) return found.status();
        model::CampaignPreflight out;
        out.preflight.title = "Campaign " + campaign.fileName;
        out.campaign.durationMs = campaign.durationMs;
        out.campaign.seed = campaign.seed.value_or(1);
        out.campaign.plan.push_back({5, {}});
        return out;
    }
    absl::StatusOr<uint64_t> startCampaign(const std::string& id, const model::CampaignText&,
                                           const service::Call& call) override {
        enter(call);
        if (absl::Status status = change(id, call); !status.ok()) return status;
        const MutexLock lock(mutex_);
        return ++campaigns_;
    }
    absl::Status stopCampaign(const std::string& id, uint64_t campaign,
                              const service::Call& call) override {
        enter(call);
        {
            const MutexLock lock(mutex_);
            if (campaign != campaigns_) return absl::NotFoundError("that campaign is over");
        }
        return change(id, call);
    }
    absl::Status stop(const std::string& id, bool, const service::Call& call) override {
        enter(call);
        return change(id, call);
    }
    absl::Status subscribe(const std::string& id, service::Subscriber* subscriber) override {
        const MutexLock lock(mutex_);
        const auto it = jobs_.find(id);
        if (it == jobs_.end())
            return absl::NotFoundError("there is no job \"" + id + "\"; list the jobs");
        it->second.subscribers.push_back(subscriber);
        subscriber->onSnapshot(it->second.state);
        return absl::OkStatus();
    }
    void unsubscribe(const std::string& id, service::Subscriber* subscriber) override {
        const MutexLock lock(mutex_);
        std::erase(jobs_.at(id).subscribers, subscriber);
    }

  private:
    struct Job {
        model::JobInfo info;
        model::RunState state;
        std::vector<service::Subscriber*> subscribers;
    };

    void enter(const service::Call& call) {
        if (onCall) onCall();
        const MutexLock lock(mutex_);
        calls_.push_back(call);
    }
    absl::Status change(const std::string& id, const service::Call& call) {
        const MutexLock lock(mutex_);
        const auto it = jobs_.find(id);
        if (it == jobs_.end())
            return absl::NotFoundError("there is no job \"" + id + "\"; list the jobs");
        model::JobInfo& info = it->second.info;
        if (call.expectedRevision != 0 && call.expectedRevision != info.revision)
            return absl::AbortedError("replica 2 left since; look at the job again");
        ++info.revision;
        return absl::OkStatus();
    }

    Mutex mutex_;
    std::map<std::string, Job> jobs_ ABSL_GUARDED_BY(mutex_);
    std::vector<service::Call> calls_ ABSL_GUARDED_BY(mutex_);
    std::vector<model::Action> actions_ ABSL_GUARDED_BY(mutex_);
    uint64_t faults_ ABSL_GUARDED_BY(mutex_) = 0;
    uint64_t campaigns_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace bulkhead::testing
