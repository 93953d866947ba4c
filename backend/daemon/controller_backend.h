// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "backend/common/threads.h"
#include "backend/daemon/history_sink.h"
#include "backend/model/allow_list.h"
#include "backend/runtime/coordinator/controller.h"
#include "backend/service/backend.h"

namespace bulkhead::daemon {

/// The controller's jobs in the words of the services. A job's id is its run's name in the history
/// file. Thread: as service::Backend.
class ControllerBackend final : public service::Backend {
  public:
    /// Limits of the jobs that start here.
    struct Allowed {
        std::optional<model::AllowList> list;  ///< nullopt: everything
        std::string file;                      ///< the file it was read from
        std::string stateDir;                  ///< the daemon's own, always allowed
    };
    ControllerBackend(runtime::Controller& controller, HistorySink& history, Allowed allowed)
        : controller_(controller), history_(history), allowed_(std::move(allowed)) {}

    absl::Status mayReadModel(const std::string& path) const override;
    absl::StatusOr<std::string> start(const model::JobSpec& spec, const std::string& resumeFrom,
                                      const service::Call& call) override;
    std::vector<model::JobInfo> jobs() override;
    std::vector<model::NodeInfo> nodes() override;
    absl::Status changeNode(const std::string& node, model::NodeChange change, bool machineIsOff,
                            const service::Call& call) override;
    absl::StatusOr<model::JobInfo> job(const std::string& id) override;
    absl::StatusOr<model::Preflight> preflight(const std::string& job,
                                               const model::Action& action) override;
    absl::StatusOr<model::Preflight> preflight(const std::string& job,
                                               const model::FaultSpec& fault) override;
    absl::Status act(const std::string& job, const model::Action& action,
                     const service::Call& call) override;
    absl::StatusOr<uint64_t> inject(const std::string& job, const model::FaultSpec& fault,
                                    const service::Call& call) override;
    absl::Status endFault(const std::string& job, uint64_t fault,
                          const service::Call& call) override;
    absl::StatusOr<model::CampaignPreflight> preflight(
        const std::string& job, const model::CampaignText& campaign) override;
    absl::StatusOr<uint64_t> startCampaign(const std::string& job,
                                           const model::CampaignText& campaign,
                                           const service::Call& call) override;
    absl::Status stopCampaign(const std::string& job, uint64_t campaign,
                              const service::Call& call) override;
    absl::Status stop(const std::string& job, bool checkpoint, const service::Call& call) override;
    absl::Status subscribe(const std::string& job, service::Subscriber* subscriber) override;
    void unsubscribe(const std::string& job, service::Subscriber* subscriber) override;

  private:
    /// With what the history of the run lacks.
    model::JobInfo info(const runtime::JobStatus& status) const;

    runtime::Controller& controller_;
    HistorySink& history_;
    const Allowed allowed_;
    Mutex mutex_;
    std::map<service::Subscriber*, std::unique_ptr<runtime::Watcher>> watchers_
        ABSL_GUARDED_BY(mutex_);
};

}  // namespace bulkhead::daemon
