// SPDX-License-Identifier: GPL-3.0-only
#include "tests/app/support/fake_client.h"

#include <algorithm>

namespace bulkhead::test {
namespace {

class FakeWatch final : public client::Watch {
  public:
    explicit FakeWatch(std::shared_ptr<FakeClient::Log> log) : log_(std::move(log)) {}
    void retryNow() override { ++log_->retries; }

  private:
    std::shared_ptr<FakeClient::Log> log_;
};

}  // namespace

void FakeClient::goLive(Log& log, client::StatePtr state) {
    log.state = state;
    log.jobs.onConnected(log.server);
    model::JobInfo job;
    job.id = "demo";
    job.name = "demo";
    job.run = "demo-1";
    job.phase = model::JobPhase::kTraining;
    job.revision = 7;
    log.jobs.onJobs({job});
}

std::unique_ptr<client::Watch> FakeClient::watch(client::WatchTarget target,
                                                 client::WatchHandlers handlers) {
    client::WatchHandlers& told = target.replay.empty() ? log_->run : log_->replay;
    told = std::move(handlers);
    log_->watched = std::move(target);
    if (log_->state) told.onSnapshot(log_->state);
    return std::make_unique<FakeWatch>(log_);
}

std::unique_ptr<client::Watch> FakeClient::watchJobs(client::JobsHandlers handlers) {
    log_->jobs = std::move(handlers);
    return std::make_unique<FakeWatch>(log_);
}

void FakeClient::act(std::string, model::Action action, client::Mutation mutation,
                     client::Reply<model::JobInfo> reply) {
    log_->actions.push_back(std::move(action));
    log_->revisions.push_back(mutation.expectedRevision);
    reply(model::JobInfo{});
}

void FakeClient::startJob(client::JobText text, client::Mutation,
                          client::Reply<model::JobInfo> reply) {
    log_->started.push_back(std::move(text));
    model::JobInfo job;
    job.id = "started";
    job.run = "started-1";
    job.phase = model::JobPhase::kTraining;
    reply(job);
}

void FakeClient::inject(std::string, model::FaultSpec fault, client::Mutation mutation,
                        client::Reply<uint64_t> reply) {
    log_->faults.push_back(std::move(fault));
    log_->revisions.push_back(mutation.expectedRevision);
    reply(uint64_t{3});
}

void FakeClient::readEvents(model::EventQuery query, client::Reply<model::EventPage> reply) {
    model::EventPage page;
    const auto& types = query.types;
    for (const model::Event& e : log_->history)
        if ((query.toSeq == 0 || e.seq <= query.toSeq) &&
            (types.empty() ||
             std::find(types.begin(), types.end(), model::typeName(e.body)) != types.end()))
            page.events.push_back(e);
    if (query.newestFirst) std::reverse(page.events.begin(), page.events.end());
    if (const size_t most = std::min(query.limit, log_->pageSize); page.events.size() > most) {
        page.nextSeq = page.events[most].seq;
        page.events.resize(most);
    }
    if (!log_->holdHistory) return reply(std::move(page));
    log_->held.push_back(
        [reply = std::move(reply), page = std::move(page)] { reply(model::EventPage(page)); });
}

void FakeClient::readAudit(model::AuditQuery query, client::Reply<model::AuditPage> reply) {
    if (log_->noAudit) return reply(*log_->noAudit);
    model::AuditPage page;
    page.total = log_->audit.size();
    page.head = "c0ffee";
    if (query.check) page.brokenAt = log_->auditBrokenAt;
    for (const model::AuditEntry& entry : log_->audit)
        if (query.newestFirst || entry.seq >= query.fromSeq) page.entries.push_back(entry);
    if (query.newestFirst) std::reverse(page.entries.begin(), page.entries.end());
    page.entries.resize(std::min<size_t>(page.entries.size(), query.limit));
    reply(std::move(page));
}

void FakeClient::openReplay(std::string run, client::Reply<std::string> reply) {
    log_->replays.push_back(run);
    reply(std::string("replay-1"));
}

void FakeClient::controlReplay(std::string, model::ReplayControl control,
                               client::Reply<model::ReplayPosition> reply) {
    log_->orders.push_back(control);
    if (log_->noMove) return reply(*log_->noMove);
    model::ReplayPosition position;
    position.run = "demo-1";
    position.paused = control.paused.value_or(true);
    position.speed = control.speed.value_or(1);
    position.step = control.seekStep.value_or(1);
    if (!log_->holdOrders) return reply(position);
    log_->held.push_back([reply = std::move(reply), position] { reply(position); });
}

}  // namespace bulkhead::test
