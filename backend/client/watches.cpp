// SPDX-License-Identifier: Apache-2.0
#include "backend/client/watches.h"

#include "backend/client/answers.h"
#include "backend/client/connection.h"
#include "backend/client/stream.h"

namespace bulkhead::client {
namespace {

/// No state within model::Limits is as large.
constexpr size_t kMostStateBytes = 256u << 20;

}  // namespace

std::unique_ptr<Watch> startWatch(Connection& connection, const WatchTarget& target,
                                  WatchHandlers handlers) {
    using Stream = StreamWatch<v1::WatchRequest, v1::WatchUpdate>;
    Stream::Core::Hooks hooks;
    hooks.title = "Lost the live view";
    if (target.replay.empty())
        hooks.request.set_job(target.job);
    else
        hooks.request.set_replay(target.replay);
    hooks.open = [](Connection& c, grpc::ClientContext* context, const v1::WatchRequest* request,
                    grpc::ClientReadReactor<v1::WatchUpdate>* reactor) {
        c.watch->async()->Watch(context, request, reactor);
    };
    // The pieces of a state too large for one message, until the last has come.
    const auto pieces = std::make_shared<std::string>();
    hooks.onConnected = [pieces](const model::ServerInfo& info, v1::WatchRequest& request) {
        pieces->clear();
        const bool same = info.fingerprint == proto::stateFingerprint();
        request.set_form(same ? v1::STATE_FORM_CODEC : v1::STATE_FORM_JSON);
    };
    hooks.onUpdate = [handlers, pieces](const v1::WatchUpdate& update) -> std::optional<Failure> {
        const std::string title = "Cannot follow this run";
        if (update.has_snapshot()) {
            if (pieces->size() + update.snapshot().state().size() > kMostStateBytes)
                return Failure{FailureCode::kServer, title,
                               "The daemon sends a state without an end.",
                               "Use a console and a daemon of the same version.", false};
            *pieces += update.snapshot().state();
            if (update.snapshot().more()) return std::nullopt;
            auto state = stateOf(title, std::exchange(*pieces, {}), update.snapshot().form());
            if (!state.ok()) return state.failure();
            if (handlers.onSnapshot) handlers.onSnapshot(std::move(state).value());
        } else if (update.has_events()) {
            auto events = listOf<model::Event>(title, update.events().events());
            if (!events.ok()) return events.failure();
            if (handlers.onEvents) handlers.onEvents(std::move(events).value());
        } else if (update.has_position()) {
            auto position = proto::fromMessage<model::ReplayPosition>(update.position());
            if (!position.ok()) return unreadable(title, position.status());
            if (handlers.onPosition) handlers.onPosition(*std::move(position));
        }
        return std::nullopt;
    };
    hooks.onDisconnected = [handlers](Failure failure, SteadyTime next) {
        if (handlers.onDisconnected) handlers.onDisconnected(std::move(failure), next);
    };
    return std::make_unique<Stream>(connection, std::move(hooks));
}

std::unique_ptr<Watch> startJobsWatch(Connection& connection, JobsHandlers handlers) {
    using Stream = StreamWatch<v1::WatchJobsRequest, v1::JobList>;
    Stream::Core::Hooks hooks;
    hooks.title = "Lost the daemon";
    hooks.open = [](Connection& c, grpc::ClientContext* context,
                    const v1::WatchJobsRequest* request,
                    grpc::ClientReadReactor<v1::JobList>* reactor) {
        c.jobs->async()->WatchJobs(context, request, reactor);
    };
    hooks.onConnected = [handlers](const model::ServerInfo& info, v1::WatchJobsRequest&) {
        if (handlers.onConnected) handlers.onConnected(info);
    };
    hooks.onUpdate = [handlers](const v1::JobList& list) -> std::optional<Failure> {
        auto jobs = listOf<model::JobInfo>("Cannot list jobs", list.jobs());
        if (!jobs.ok()) return jobs.failure();
        if (handlers.onJobs) handlers.onJobs(std::move(jobs).value());
        return std::nullopt;
    };
    hooks.onDisconnected = [handlers](Failure failure, SteadyTime next) {
        if (handlers.onDisconnected) handlers.onDisconnected(std::move(failure), next);
    };
    return std::make_unique<Stream>(connection, std::move(hooks));
}

}  // namespace bulkhead::client
