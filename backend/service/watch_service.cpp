// SPDX-License-Identifier: Apache-2.0
#include "backend/service/push_stream.h"
#include "backend/service/services.h"
#include "bulkhead/v1/service.grpc.pb.h"

namespace bulkhead::service {
namespace {

class WatchService final : public v1::Watch::CallbackService {
  public:
    explicit WatchService(const Context& context) : shared_(context) {}

    grpc::ServerWriteReactor<v1::WatchUpdate>* Watch(grpc::CallbackServerContext* context,
                                                     const v1::WatchRequest* request) override {
        const auto caller = shared_.gate.admit(*context, *request);
        if (!caller.ok()) return new RefusedStream<v1::WatchUpdate>(caller.status());
        auto share = shared_.watchShares.take(caller->name);
        if (!share.ok()) return new RefusedStream<v1::WatchUpdate>(share.status());
        auto feed = open(*request, caller->name);
        if (!feed.ok()) return new RefusedStream<v1::WatchUpdate>(feed.status());
        Feed::Cursor cursor;
        cursor.json = request->form() == v1::STATE_FORM_JSON;
        return new PushStream<Feed, v1::WatchUpdate>(
            *std::move(feed), cursor,
            [this, context, request] { return shared_.gate.admit(*context, *request).status(); },
            shared_.streams, shared_.open, caller->name, *std::move(share));
    }

  private:
    absl::StatusOr<std::shared_ptr<Feed>> open(const v1::WatchRequest& request,
                                               const std::string& caller) const {
        if (request.has_job()) {
            if (shared_.feeds == nullptr) return readOnly();
            auto feed = shared_.feeds->open(request.job());
            if (!feed.ok()) return withDetail(feed.status(), "job", request.job());
            return feed;
        }
        if (!request.has_replay())
            return absl::InvalidArgumentError("the request names neither a job nor a replay");
        if (shared_.runs == nullptr) return noHistory();
        auto feed = shared_.runs->replayFeed(request.replay(), caller);
        if (!feed.ok()) return withDetail(feed.status(), "replay", request.replay());
        return feed;
    }

    const Context& shared_;
};

}  // namespace

std::unique_ptr<grpc::Service> makeWatchService(const Context& context) {
    return std::make_unique<WatchService>(context);
}

}  // namespace bulkhead::service
