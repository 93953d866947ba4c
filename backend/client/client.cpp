// SPDX-License-Identifier: Apache-2.0
#include "backend/client/client.h"

#include "backend/client/answers.h"
#include "backend/client/connection.h"
#include "backend/client/export_call.h"
#include "backend/client/watches.h"

namespace bulkhead::client {
namespace {

const auto kDone = [](const google::protobuf::Message&) -> Result<Done> { return Done{}; };

/// Binds an async method that takes a std::function to the stub it belongs to.
template <class Async, class Request, class Response, class Stub>
auto starting(void (Async::*method)(grpc::ClientContext*, const Request*, Response*,
                                    std::function<void(grpc::Status)>),
              const std::unique_ptr<Stub>& stub) {
    return [method, async = stub->async()](grpc::ClientContext* context, const Request* request,
                                           Response* response,
                                           std::function<void(grpc::Status)> done) {
        (async->*method)(context, request, response, std::move(done));
    };
}

class GrpcClient final : public Client {
  public:
    explicit GrpcClient(std::unique_ptr<Connection> connection) : c_(std::move(connection)) {}
    ~GrpcClient() override { c_->drain(); }

    void handshake(Reply<model::ServerInfo> reply) override {
        c_->call<model::ServerInfo, v1::GetInfoRequest, v1::ServerInfo>(
            "Cannot reach the daemon", {},
            starting(&v1::Server::Stub::async_interface::GetInfo, c_->server),
            [](const v1::ServerInfo& info) { return Connection::check(info); }, std::move(reply));
    }

    std::unique_ptr<Watch> watch(WatchTarget target, WatchHandlers handlers) override {
        return startWatch(*c_, target, std::move(handlers));
    }
    std::unique_ptr<Watch> watchJobs(JobsHandlers handlers) override {
        return startJobsWatch(*c_, std::move(handlers));
    }

    void startJob(model::JobSpec spec, Mutation mutation, Reply<model::JobInfo> reply) override {
        v1::StartJobRequest request;
        proto::toMessage(spec, *request.mutable_spec());
        start(std::move(request), mutation, std::move(reply));
    }

    void startJob(JobText text, Mutation mutation, Reply<model::JobInfo> reply) override {
        v1::StartJobRequest request;
        v1::JobText& job = *request.mutable_text();
        job.set_text(std::move(text.text));
        job.set_file_name(std::move(text.fileName));
        job.set_base_dir(std::move(text.baseDir));
        for (std::string& one : text.overrides) job.add_overrides(std::move(one));
        request.set_resume_from(std::move(text.resumeFrom));
        start(std::move(request), mutation, std::move(reply));
    }

    void listJobs(Reply<std::vector<model::JobInfo>> reply) override {
        const std::string title = "Cannot list jobs";
        c_->call<std::vector<model::JobInfo>, v1::ListJobsRequest, v1::JobList>(
            title, {}, starting(&v1::Jobs::Stub::async_interface::ListJobs, c_->jobs),
            [title](const v1::JobList& list) { return listOf<model::JobInfo>(title, list.jobs()); },
            std::move(reply));
    }

    void listNodes(Reply<std::vector<model::NodeInfo>> reply) override {
        const std::string title = "Cannot list nodes";
        c_->call<std::vector<model::NodeInfo>, v1::ListNodesRequest, v1::NodeList>(
            title, {}, starting(&v1::Jobs::Stub::async_interface::ListNodes, c_->jobs),
            [title](const v1::NodeList& list) {
                return listOf<model::NodeInfo>(title, list.nodes());
            },
            std::move(reply));
    }

    void changeNode(std::string node, model::NodeChange change, bool machineIsOff,
                    Mutation mutation, Reply<std::vector<model::NodeInfo>> reply) override {
        v1::ChangeNodeRequest request;
        *request.mutable_mutation() = c_->mutation(mutation);
        const std::string title = "Cannot " + std::string(enumName(change)) + " node " + node;
        request.set_node(std::move(node));
        request.set_change(static_cast<v1::NodeChange>(change));
        request.set_machine_is_off(machineIsOff);
        c_->call<std::vector<model::NodeInfo>, v1::ChangeNodeRequest, v1::NodeList>(
            title, std::move(request),
            starting(&v1::Jobs::Stub::async_interface::ChangeNode, c_->jobs),
            [title](const v1::NodeList& list) {
                return listOf<model::NodeInfo>(title, list.nodes());
            },
            std::move(reply));
    }

    void getJob(std::string job, Reply<model::JobInfo> reply) override {
        v1::GetJobRequest request;
        const std::string title = "Cannot read job " + job;
        request.set_job(std::move(job));
        c_->call<model::JobInfo, v1::GetJobRequest, v1::JobInfo>(
            title, std::move(request), starting(&v1::Jobs::Stub::async_interface::GetJob, c_->jobs),
            as<model::JobInfo>(title), std::move(reply));
    }

    void preflight(std::string job, model::Action action, Reply<model::Preflight> reply) override {
        v1::PreflightActionRequest request;
        request.set_job(std::move(job));
        proto::toMessage(action, *request.mutable_action());
        const std::string title = "Cannot tell what the action would do";
        c_->call<model::Preflight, v1::PreflightActionRequest, v1::Preflight>(
            title, std::move(request),
            starting(&v1::Jobs::Stub::async_interface::PreflightAction, c_->jobs),
            as<model::Preflight>(title), std::move(reply));
    }

    void preflight(std::string job, model::FaultSpec fault,
                   Reply<model::Preflight> reply) override {
        v1::PreflightFaultRequest request;
        request.set_job(std::move(job));
        proto::toMessage(fault, *request.mutable_fault());
        const std::string title = "Cannot tell what the fault would do";
        c_->call<model::Preflight, v1::PreflightFaultRequest, v1::Preflight>(
            title, std::move(request),
            starting(&v1::Jobs::Stub::async_interface::PreflightFault, c_->jobs),
            as<model::Preflight>(title), std::move(reply));
    }

    void act(std::string job, model::Action action, Mutation mutation,
             Reply<model::JobInfo> reply) override {
        v1::ActRequest request;
        *request.mutable_mutation() = c_->mutation(mutation);
        request.set_job(std::move(job));
        proto::toMessage(action, *request.mutable_action());
        const std::string title = "The action was not done";
        c_->call<model::JobInfo, v1::ActRequest, v1::JobInfo>(
            title, std::move(request), starting(&v1::Jobs::Stub::async_interface::Act, c_->jobs),
            as<model::JobInfo>(title), std::move(reply));
    }

    void inject(std::string job, model::FaultSpec fault, Mutation mutation,
                Reply<uint64_t> reply) override {
        v1::InjectFaultRequest request;
        *request.mutable_mutation() = c_->mutation(mutation);
        request.set_job(std::move(job));
        proto::toMessage(fault, *request.mutable_fault());
        c_->call<uint64_t, v1::InjectFaultRequest, v1::InjectFaultResponse>(
            "The fault was not injected", std::move(request),
            starting(&v1::Jobs::Stub::async_interface::InjectFault, c_->jobs),
            [](const v1::InjectFaultResponse& r) -> Result<uint64_t> { return r.fault(); },
            std::move(reply));
    }

    void endFault(std::string job, uint64_t fault, Mutation mutation, Reply<Done> reply) override {
        v1::EndFaultRequest request;
        *request.mutable_mutation() = c_->mutation(mutation);
        request.set_job(std::move(job));
        request.set_fault(fault);
        c_->call<Done, v1::EndFaultRequest, v1::EndFaultResponse>(
            "The fault was not ended", std::move(request),
            starting(&v1::Jobs::Stub::async_interface::EndFault, c_->jobs), kDone,
            std::move(reply));
    }

    void preflight(std::string job, model::CampaignText campaign,
                   Reply<model::CampaignPreflight> reply) override {
        v1::PreflightCampaignRequest request;
        request.set_job(std::move(job));
        proto::toMessage(campaign, *request.mutable_campaign());
        const std::string title = "Cannot use this campaign";
        c_->call<model::CampaignPreflight, v1::PreflightCampaignRequest, v1::CampaignPreflight>(
            title, std::move(request),
            starting(&v1::Jobs::Stub::async_interface::PreflightCampaign, c_->jobs),
            as<model::CampaignPreflight>(title), std::move(reply));
    }

    void startCampaign(std::string job, model::CampaignText campaign, Mutation mutation,
                       Reply<uint64_t> reply) override {
        v1::StartCampaignRequest request;
        *request.mutable_mutation() = c_->mutation(mutation);
        request.set_job(std::move(job));
        proto::toMessage(campaign, *request.mutable_campaign());
        c_->call<uint64_t, v1::StartCampaignRequest, v1::StartCampaignResponse>(
            "The campaign was not started", std::move(request),
            starting(&v1::Jobs::Stub::async_interface::StartCampaign, c_->jobs),
            [](const v1::StartCampaignResponse& r) -> Result<uint64_t> { return r.campaign(); },
            std::move(reply));
    }

    void stopCampaign(std::string job, uint64_t campaign, Mutation mutation,
                      Reply<Done> reply) override {
        v1::StopCampaignRequest request;
        *request.mutable_mutation() = c_->mutation(mutation);
        request.set_job(std::move(job));
        request.set_campaign(campaign);
        c_->call<Done, v1::StopCampaignRequest, v1::StopCampaignResponse>(
            "The campaign was not stopped", std::move(request),
            starting(&v1::Jobs::Stub::async_interface::StopCampaign, c_->jobs), kDone,
            std::move(reply));
    }

    void stopJob(std::string job, bool checkpoint, Mutation mutation,
                 Reply<model::JobInfo> reply) override {
        v1::StopJobRequest request;
        *request.mutable_mutation() = c_->mutation(mutation);
        const std::string title = "Cannot stop job " + job;
        request.set_job(std::move(job));
        request.set_checkpoint(checkpoint);
        c_->call<model::JobInfo, v1::StopJobRequest, v1::JobInfo>(
            title, std::move(request),
            starting(&v1::Jobs::Stub::async_interface::StopJob, c_->jobs),
            as<model::JobInfo>(title), std::move(reply));
    }

    void listRuns(std::string text, Reply<std::vector<model::RunInfo>> reply) override {
        v1::ListRunsRequest request;
        request.set_text(std::move(text));
        const std::string title = "Cannot list runs";
        c_->call<std::vector<model::RunInfo>, v1::ListRunsRequest, v1::RunList>(
            title, std::move(request),
            starting(&v1::Runs::Stub::async_interface::ListRuns, c_->runs),
            [title](const v1::RunList& list) { return listOf<model::RunInfo>(title, list.runs()); },
            std::move(reply));
    }

    void readEvents(model::EventQuery query, Reply<model::EventPage> reply) override {
        v1::EventQuery request;
        proto::toMessage(query, request);
        const std::string title = "Cannot read the events of " + query.run;
        c_->call<model::EventPage, v1::EventQuery, v1::EventPage>(
            title, std::move(request),
            starting(&v1::Runs::Stub::async_interface::ReadEvents, c_->runs),
            as<model::EventPage>(title), std::move(reply));
    }

    void getState(std::string run, uint64_t seq, Reply<StatePtr> reply) override {
        v1::GetStateRequest request;
        const std::string title = "Cannot read run " + run;
        request.set_run(std::move(run));
        request.set_seq(seq);
        c_->call<StatePtr, v1::GetStateRequest, v1::Snapshot>(
            title, std::move(request),
            starting(&v1::Runs::Stub::async_interface::GetState, c_->runs),
            [title](const v1::Snapshot& snapshot) -> Result<StatePtr> {
                auto state = stateOf(title, snapshot.state(), snapshot.form());
                if (!state.ok()) return state.failure();
                return StatePtr(std::move(state).value());
            },
            std::move(reply));
    }

    void checkLedger(std::string run, Reply<model::LedgerReport> reply) override {
        v1::CheckLedgerRequest request;
        const std::string title = "Cannot check the ledger of " + run;
        request.set_run(std::move(run));
        c_->call<model::LedgerReport, v1::CheckLedgerRequest, v1::LedgerReport>(
            title, longest(), std::move(request),
            starting(&v1::Runs::Stub::async_interface::CheckLedger, c_->runs),
            as<model::LedgerReport>(title), std::move(reply));
    }

    void exportRun(ExportRequest request, std::function<void(std::string)> chunk,
                   Reply<Done> reply) override {
        startExport(*c_, std::move(request), std::move(chunk), std::move(reply));
    }

    void openReplay(std::string run, Reply<std::string> reply) override {
        v1::OpenReplayRequest request;
        const std::string title = "Cannot replay run " + run;
        request.set_run(std::move(run));
        c_->call<std::string, v1::OpenReplayRequest, v1::OpenReplayResponse>(
            title, std::move(request),
            starting(&v1::Runs::Stub::async_interface::OpenReplay, c_->runs),
            [](const v1::OpenReplayResponse& r) -> Result<std::string> { return r.replay(); },
            std::move(reply));
    }

    void controlReplay(std::string replay, model::ReplayControl control,
                       Reply<model::ReplayPosition> reply) override {
        v1::ControlReplayRequest request;
        request.set_replay(std::move(replay));
        proto::toMessage(control, *request.mutable_control());
        const std::string title = "The replay did not obey";
        c_->call<model::ReplayPosition, v1::ControlReplayRequest, v1::ReplayPosition>(
            title, longest(), std::move(request),
            starting(&v1::Runs::Stub::async_interface::ControlReplay, c_->runs),
            as<model::ReplayPosition>(title), std::move(reply));
    }

    void closeReplay(std::string replay, Reply<Done> reply) override {
        v1::CloseReplayRequest request;
        request.set_replay(std::move(replay));
        c_->call<Done, v1::CloseReplayRequest, v1::CloseReplayResponse>(
            "Cannot close the replay", std::move(request),
            starting(&v1::Runs::Stub::async_interface::CloseReplay, c_->runs), kDone,
            std::move(reply));
    }

    void readAudit(model::AuditQuery query, Reply<model::AuditPage> reply) override {
        v1::AuditQuery request;
        proto::toMessage(query, request);
        const std::string title = "Cannot read the audit";
        c_->call<model::AuditPage, v1::AuditQuery, v1::AuditPage>(
            title, query.check ? longest() : c_->options.deadline, std::move(request),
            starting(&v1::Server::Stub::async_interface::ReadAudit, c_->server),
            as<model::AuditPage>(title), std::move(reply));
    }

    void shutdown(Mutation mutation, Reply<Done> reply) override {
        v1::ShutdownRequest request;
        *request.mutable_mutation() = c_->mutation(mutation);
        c_->call<Done, v1::ShutdownRequest, v1::ShutdownResponse>(
            "The daemon does not end", std::move(request),
            starting(&v1::Server::Stub::async_interface::Shutdown, c_->server), kDone,
            std::move(reply));
    }

  private:
    /// Deadline of calls that read all of a run.
    std::chrono::milliseconds longest() const {
        constexpr std::chrono::minutes kLongest{10};
        return std::max<std::chrono::milliseconds>(kLongest, c_->options.deadline);
    }

    void start(v1::StartJobRequest request, const Mutation& mutation, Reply<model::JobInfo> reply) {
        *request.mutable_mutation() = c_->mutation(mutation);
        const std::string title = "The job was not started";
        c_->call<model::JobInfo, v1::StartJobRequest, v1::JobInfo>(
            title, std::move(request),
            starting(&v1::Jobs::Stub::async_interface::StartJob, c_->jobs),
            as<model::JobInfo>(title), std::move(reply));
    }

    std::unique_ptr<Connection> c_;
};

}  // namespace

Result<std::unique_ptr<Client>> Client::open(Options options) {
    auto connection = Connection::open(options);
    if (!connection.ok()) return connection.failure();
    return std::unique_ptr<Client>(std::make_unique<GrpcClient>(std::move(connection).value()));
}

}  // namespace bulkhead::client
