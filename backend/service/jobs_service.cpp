// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "backend/proto/convert.h"
#include "backend/service/job_text.h"
#include "backend/service/push_stream.h"
#include "backend/service/services.h"
#include "backend/service/unary.h"
#include "bulkhead/v1/service.grpc.pb.h"

namespace bulkhead::service {
namespace {

absl::StatusOr<model::JobSpec> specOf(const v1::StartJobRequest& request, const Backend& backend) {
    if (request.has_text()) {
        const v1::JobText& text = request.text();
        return parseJobText(text.text(), text.file_name(), text.base_dir(),
                            {text.overrides().begin(), text.overrides().end()},
                            [&](const std::string& path) { return backend.mayReadModel(path); });
    }
    if (request.has_spec()) return proto::fromMessage<model::JobSpec>(request.spec());
    return absl::InvalidArgumentError("the request names no job; send a spec or the text of one");
}

/// The value into the response, or the error onwards.
template <class T>
absl::Status put(const absl::StatusOr<T>& value, google::protobuf::Message* response) {
    if (!value.ok()) return value.status();
    proto::toMessage(*value, *response);
    return absl::OkStatus();
}

class JobsService final : public v1::Jobs::CallbackService {
  public:
    explicit JobsService(const Context& context) : shared_(context) {}

    grpc::ServerUnaryReactor* StartJob(grpc::CallbackServerContext* context,
                                       const v1::StartJobRequest* request,
                                       v1::JobInfo* response) override {
        return change(shared_, context, request, response, [=, this](const Call& call) {
            if (shared_.backend == nullptr) return readOnly();
            const auto spec = specOf(*request, *shared_.backend);
            if (!spec.ok()) return withDetail(spec.status(), "job", "");
            if (!spec->faults.empty() && !call.mayInject)
                return absl::PermissionDeniedError(
                    absl::StrCat("The principal ", call.by,
                                 " may not inject faults, and this job plans some; start it "
                                 "without them"));
            const auto id = shared_.backend->start(*spec, request->resume_from(), call);
            if (!id.ok()) return withDetail(id.status(), "job", spec->name);
            return put(shared_.backend->job(*id), response);
        });
    }

    grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context,
                                       const v1::ListJobsRequest* request,
                                       v1::JobList* response) override {
        return answer(shared_, context, request, [=, this] {
            if (shared_.backend == nullptr) return absl::OkStatus();
            for (const model::JobInfo& job : shared_.backend->jobs())
                proto::toMessage(job, *response->add_jobs());
            return absl::OkStatus();
        });
    }

    grpc::ServerUnaryReactor* ListNodes(grpc::CallbackServerContext* context,
                                        const v1::ListNodesRequest* request,
                                        v1::NodeList* response) override {
        return answer(shared_, context, request, [=, this] {
            if (shared_.backend != nullptr) putNodes(response);
            return absl::OkStatus();
        });
    }

    grpc::ServerUnaryReactor* ChangeNode(grpc::CallbackServerContext* context,
                                         const v1::ChangeNodeRequest* request,
                                         v1::NodeList* response) override {
        return change(shared_, context, request, response, [=, this](const Call& call) {
            if (shared_.backend == nullptr) return readOnly();
            if (!v1::NodeChange_IsValid(request->change()))
                return absl::InvalidArgumentError(
                    absl::StrCat("change ", request->change(), " of a node is not known"));
            const absl::Status done = shared_.backend->changeNode(
                request->node(), static_cast<model::NodeChange>(request->change()),
                request->machine_is_off(), call);
            if (done.ok()) putNodes(response);
            return withDetail(done, "node", request->node());
        });
    }

    grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context,
                                     const v1::GetJobRequest* request,
                                     v1::JobInfo* response) override {
        return answer(shared_, context, request, [=, this] {
            if (shared_.backend == nullptr) return readOnly();
            return withDetail(put(shared_.backend->job(request->job()), response), "job",
                              request->job());
        });
    }

    grpc::ServerWriteReactor<v1::JobList>* WatchJobs(grpc::CallbackServerContext* context,
                                                     const v1::WatchJobsRequest* request) override {
        const auto caller = shared_.gate.admit(*context, *request);
        if (!caller.ok()) return new RefusedStream<v1::JobList>(caller.status());
        auto share = shared_.watchShares.take(caller->name);
        if (!share.ok()) return new RefusedStream<v1::JobList>(share.status());
        // The list outlives every stream: Server ends them first.
        const std::shared_ptr<JobListFeed> list(std::shared_ptr<void>(), &shared_.jobList);
        return new PushStream<JobListFeed, v1::JobList>(
            list, {},
            [this, context, request] { return shared_.gate.admit(*context, *request).status(); },
            shared_.streams, shared_.open, caller->name, *std::move(share));
    }

    grpc::ServerUnaryReactor* PreflightAction(grpc::CallbackServerContext* context,
                                              const v1::PreflightActionRequest* request,
                                              v1::Preflight* response) override {
        return answer(shared_, context, request, [=, this] {
            if (shared_.backend == nullptr) return readOnly();
            const auto action = proto::fromMessage<model::Action>(request->action());
            if (!action.ok()) return action.status();
            return withDetail(put(shared_.backend->preflight(request->job(), *action), response),
                              "job", request->job());
        });
    }

    grpc::ServerUnaryReactor* Act(grpc::CallbackServerContext* context,
                                  const v1::ActRequest* request, v1::JobInfo* response) override {
        return change(shared_, context, request, response, [=, this](const Call& call) {
            if (shared_.backend == nullptr) return readOnly();
            const auto action = proto::fromMessage<model::Action>(request->action());
            if (!action.ok()) return action.status();
            return finish(shared_.backend->act(request->job(), *action, call), request->job(),
                          response);
        });
    }

    grpc::ServerUnaryReactor* PreflightFault(grpc::CallbackServerContext* context,
                                             const v1::PreflightFaultRequest* request,
                                             v1::Preflight* response) override {
        return answer(shared_, context, request, [=, this] {
            if (shared_.backend == nullptr) return readOnly();
            const auto fault = proto::fromMessage<model::FaultSpec>(request->fault());
            if (!fault.ok()) return fault.status();
            return withDetail(put(shared_.backend->preflight(request->job(), *fault), response),
                              "job", request->job());
        });
    }

    grpc::ServerUnaryReactor* InjectFault(grpc::CallbackServerContext* context,
                                          const v1::InjectFaultRequest* request,
                                          v1::InjectFaultResponse* response) override {
        return change(shared_, context, request, response, [=, this](const Call& call) {
            if (shared_.backend == nullptr) return readOnly();
            const auto fault = proto::fromMessage<model::FaultSpec>(request->fault());
            if (!fault.ok()) return fault.status();
            const auto id = shared_.backend->inject(request->job(), *fault, call);
            if (!id.ok()) return withDetail(id.status(), "job", request->job());
            response->set_fault(*id);
            return absl::OkStatus();
        });
    }

    grpc::ServerUnaryReactor* EndFault(grpc::CallbackServerContext* context,
                                       const v1::EndFaultRequest* request,
                                       v1::EndFaultResponse* response) override {
        return change(shared_, context, request, response, [=, this](const Call& call) {
            if (shared_.backend == nullptr) return readOnly();
            return withDetail(shared_.backend->endFault(request->job(), request->fault(), call),
                              "fault", std::to_string(request->fault()));
        });
    }

    grpc::ServerUnaryReactor* PreflightCampaign(grpc::CallbackServerContext* context,
                                                const v1::PreflightCampaignRequest* request,
                                                v1::CampaignPreflight* response) override {
        return answer(shared_, context, request, [=, this] {
            if (shared_.backend == nullptr) return readOnly();
            const auto text = proto::fromMessage<model::CampaignText>(request->campaign());
            if (!text.ok()) return text.status();
            return withDetail(put(shared_.backend->preflight(request->job(), *text), response),
                              "job", request->job());
        });
    }

    grpc::ServerUnaryReactor* StartCampaign(grpc::CallbackServerContext* context,
                                            const v1::StartCampaignRequest* request,
                                            v1::StartCampaignResponse* response) override {
        return change(shared_, context, request, response, [=, this](const Call& call) {
            if (shared_.backend == nullptr) return readOnly();
            const auto text = proto::fromMessage<model::CampaignText>(request->campaign());
            if (!text.ok()) return text.status();
            const auto id = shared_.backend->startCampaign(request->job(), *text, call);
            if (!id.ok()) return withDetail(id.status(), "job", request->job());
            response->set_campaign(*id);
            return absl::OkStatus();
        });
    }

    grpc::ServerUnaryReactor* StopCampaign(grpc::CallbackServerContext* context,
                                           const v1::StopCampaignRequest* request,
                                           v1::StopCampaignResponse* response) override {
        return change(shared_, context, request, response, [=, this](const Call& call) {
            if (shared_.backend == nullptr) return readOnly();
            return withDetail(
                shared_.backend->stopCampaign(request->job(), request->campaign(), call),
                "campaign", std::to_string(request->campaign()));
        });
    }

    grpc::ServerUnaryReactor* StopJob(grpc::CallbackServerContext* context,
                                      const v1::StopJobRequest* request,
                                      v1::JobInfo* response) override {
        return change(
            shared_, context, shared_.stops, request, response, [=, this](const Call& call) {
                if (shared_.backend == nullptr) return readOnly();
                return finish(shared_.backend->stop(request->job(), request->checkpoint(), call),
                              request->job(), response);
            });
    }

  private:
    void putNodes(v1::NodeList* response) const {
        for (const model::NodeInfo& node : shared_.backend->nodes())
            proto::toMessage(node, *response->add_nodes());
    }

    /// The job as it is now, after something was done to it.
    absl::Status finish(const absl::Status& status, const std::string& job,
                        v1::JobInfo* response) const {
        if (!status.ok()) return withDetail(status, "job", job);
        return withDetail(put(shared_.backend->job(job), response), "job", job);
    }

    const Context& shared_;
};

}  // namespace

std::unique_ptr<grpc::Service> makeJobsService(const Context& context) {
    return std::make_unique<JobsService>(context);
}

}  // namespace bulkhead::service
