// SPDX-License-Identifier: Apache-2.0
#include "backend/client/watches.h"

#include <algorithm>
#include <utility>

#include "backend/client/answers.h"
#include "backend/client/connection.h"
#include "backend/client/stream.h"

namespace bulkhead::client {
namespace {

/// No state within model::Limits is as large.
constexpr size_t kMostStateBytes = 256u << 20;

/// The state that a watch begins with, as it comes: in pieces where it is too large for one
/// message, and then the events that it lacks of the state of now.
class FirstState {
  public:
    void clear() { *this = {}; }
    std::optional<Failure> add(const v1::Snapshot& snapshot) {
        if (pieces_.size() + snapshot.state().size() > kMostStateBytes)
            return Failure{FailureCode::kServer, kTitle, "The daemon sends a state without an end.",
                           "Use a console and a daemon of the same version.", false};
        pieces_ += snapshot.state();
        if (snapshot.more()) return std::nullopt;
        auto state = stateOf(kTitle, std::exchange(pieces_, {}), snapshot.form());
        if (!state.ok()) return state.failure();
        state_ = std::move(state).value();
        newest_ = snapshot.newest();
        return std::nullopt;
    }
    /// Folds in the events that it lacks and removes them from `events`.
    void add(std::vector<model::Event>& events) {
        if (state_ == nullptr) return;
        const auto later =
            std::ranges::find_if(events, [&](const model::Event& e) { return e.seq > newest_; });
        std::for_each(events.begin(), later, [&](const model::Event& e) { apply(*state_, e); });
        events.erase(events.begin(), later);
    }
    /// Null: it has been taken, or something is missing.
    StatePtr take() {
        if (state_ == nullptr || state_->seq < newest_) return nullptr;
        return std::exchange(state_, nullptr);
    }

    static constexpr const char* kTitle = "Cannot follow this run";

  private:
    std::string pieces_;
    std::shared_ptr<model::RunState> state_;
    uint64_t newest_ = 0;
};

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
    const auto first = std::make_shared<FirstState>();
    hooks.onConnected = [first](const model::ServerInfo& info, v1::WatchRequest& request) {
        first->clear();
        const bool same = info.fingerprint == proto::stateFingerprint();
        request.set_form(same ? v1::STATE_FORM_CODEC : v1::STATE_FORM_JSON);
    };
    hooks.onUpdate = [handlers, first](const v1::WatchUpdate& update) -> std::optional<Failure> {
        std::vector<model::Event> later;
        if (update.has_snapshot()) {
            if (auto failure = first->add(update.snapshot())) return failure;
        } else if (update.has_events()) {
            auto events = listOf<model::Event>(FirstState::kTitle, update.events().events());
            if (!events.ok()) return events.failure();
            later = std::move(events).value();
            first->add(later);
        } else if (update.has_position()) {
            auto position = proto::fromMessage<model::ReplayPosition>(update.position());
            if (!position.ok()) return unreadable(FirstState::kTitle, position.status());
            if (handlers.onPosition) handlers.onPosition(*std::move(position));
        }
        if (StatePtr state = first->take(); state != nullptr && handlers.onSnapshot)
            handlers.onSnapshot(std::move(state));
        if (!later.empty() && handlers.onEvents) handlers.onEvents(std::move(later));
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
