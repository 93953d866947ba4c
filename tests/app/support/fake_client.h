// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/client/client.h"
#include "backend/model/run_state.h"

namespace bulkhead::test {

/// A daemon in memory: what the console asks is recorded and answered at once, on the calling
/// thread's event loop by way of the session. The test pushes snapshots and events by hand.
class FakeClient final : public client::Client {
  public:
    struct Log {
        std::vector<model::Action> actions;
        std::vector<model::FaultSpec> faults;
        std::vector<uint64_t> revisions;
        std::vector<model::ReplayControl> orders;
        std::vector<std::string> replays;
        int retries = 0;
        client::JobsHandlers jobs;
        client::WatchHandlers run;     ///< of the job that is watched last
        client::WatchHandlers replay;  ///< likewise of a replay
        std::optional<client::WatchTarget> watched;
        model::Preflight preflight;
        model::CampaignPreflight campaign;
        std::vector<model::CampaignText> campaigns;
        std::vector<uint64_t> stoppedCampaigns;
        std::vector<client::JobText> started;
        std::vector<client::ExportRequest> exported;
        std::string exportText;
        model::ServerInfo server;
        std::vector<model::AuditEntry> audit;    ///< oldest first
        std::optional<client::Failure> noAudit;  ///< said in its place
        uint64_t auditBrokenAt = 0;
        std::vector<model::RunInfo> runs;
        int runsListed = 0;
        std::vector<model::Event> history;
        uint32_t pageSize = UINT32_MAX;         ///< of the history, however many are asked for
        bool holdHistory = false;               ///< its answers wait in `held`
        bool holdOrders = false;                ///< likewise those of a replay
        std::optional<client::Failure> noMove;  ///< the answer to them in its place
        std::vector<std::string> closedReplays;
        std::vector<std::function<void()>> held;
        client::StatePtr state;
        client::Options options;
    };
    explicit FakeClient(std::shared_ptr<Log> log) : log_(std::move(log)) {}

    /// A run on screen: connected, one job, the snapshot.
    static void goLive(Log& log, client::StatePtr state);

    void handshake(client::Reply<model::ServerInfo> reply) override { reply(model::ServerInfo{}); }
    std::unique_ptr<client::Watch> watch(client::WatchTarget target,
                                         client::WatchHandlers handlers) override;
    std::unique_ptr<client::Watch> watchJobs(client::JobsHandlers handlers) override;
    void startJob(model::JobSpec, client::Mutation, client::Reply<model::JobInfo> reply) override {
        reply(model::JobInfo{});
    }
    void startJob(client::JobText text, client::Mutation,
                  client::Reply<model::JobInfo> reply) override;
    void listJobs(client::Reply<std::vector<model::JobInfo>> reply) override {
        reply(std::vector<model::JobInfo>{});
    }
    void listNodes(client::Reply<std::vector<model::NodeInfo>> reply) override {
        reply(std::vector<model::NodeInfo>{});
    }
    void changeNode(std::string, model::NodeChange, bool, client::Mutation,
                    client::Reply<std::vector<model::NodeInfo>> reply) override {
        reply(std::vector<model::NodeInfo>{});
    }
    void getJob(std::string, client::Reply<model::JobInfo> reply) override {
        reply(model::JobInfo{});
    }
    void preflight(std::string, model::Action, client::Reply<model::Preflight> reply) override {
        reply(log_->preflight);
    }
    void preflight(std::string, model::FaultSpec, client::Reply<model::Preflight> reply) override {
        reply(log_->preflight);
    }
    void act(std::string, model::Action action, client::Mutation mutation,
             client::Reply<model::JobInfo> reply) override;
    void inject(std::string, model::FaultSpec fault, client::Mutation mutation,
                client::Reply<uint64_t> reply) override;
    void endFault(std::string, uint64_t, client::Mutation,
                  client::Reply<client::Done> reply) override {
        reply(client::Done{});
    }
    void preflight(std::string, model::CampaignText,
                   client::Reply<model::CampaignPreflight> reply) override {
        reply(log_->campaign);
    }
    void startCampaign(std::string, model::CampaignText campaign, client::Mutation mutation,
                       client::Reply<uint64_t> reply) override {
        log_->campaigns.push_back(campaign);
        log_->revisions.push_back(mutation.expectedRevision);
        reply(uint64_t{1});
    }
    void stopCampaign(std::string, uint64_t campaign, client::Mutation,
                      client::Reply<client::Done> reply) override {
        log_->stoppedCampaigns.push_back(campaign);
        reply(client::Done{});
    }
    void stopJob(std::string, bool, client::Mutation,
                 client::Reply<model::JobInfo> reply) override {
        reply(model::JobInfo{});
    }
    void listRuns(std::string, client::Reply<std::vector<model::RunInfo>> reply) override {
        ++log_->runsListed;
        reply(log_->runs);
    }
    void readEvents(model::EventQuery query, client::Reply<model::EventPage> reply) override;
    void getState(std::string, uint64_t, client::Reply<client::StatePtr> reply) override {
        reply(log_->state);
    }
    void readAudit(model::AuditQuery query, client::Reply<model::AuditPage> reply) override;
    void checkLedger(std::string, client::Reply<model::LedgerReport> reply) override {
        model::LedgerAudit audit;
        for (const model::Event& e : log_->history) audit.add(e);
        reply(audit.report({}));
    }
    void exportRun(client::ExportRequest request, std::function<void(std::string)> chunk,
                   client::Reply<client::Done> reply) override {
        log_->exported.push_back(request);
        chunk(log_->exportText);
        reply(client::Done{});
    }
    void openReplay(std::string run, client::Reply<std::string> reply) override;
    void controlReplay(std::string, model::ReplayControl control,
                       client::Reply<model::ReplayPosition> reply) override;
    void closeReplay(std::string replay, client::Reply<client::Done> reply) override {
        log_->closedReplays.push_back(std::move(replay));
        reply(client::Done{});
    }
    void shutdown(client::Mutation, client::Reply<client::Done> reply) override {
        reply(client::Done{});
    }

  private:
    std::shared_ptr<Log> log_;
};

}  // namespace bulkhead::test
