// SPDX-License-Identifier: Apache-2.0
#include "backend/proto/convert.h"
#include "backend/proto/state_form.h"
#include "backend/service/export_stream.h"
#include "backend/service/push_stream.h"
#include "backend/service/services.h"
#include "backend/service/unary.h"
#include "bulkhead/v1/service.grpc.pb.h"

namespace bulkhead::service {
namespace {

/// A page ends early rather than grow beyond what one message should hold; the next one goes on.
void shorten(v1::EventPage& page) {
    size_t bytes = 0;
    int keep = 0;
    for (; keep < page.events_size() && bytes < Feed::kMostBytes; ++keep)
        bytes += page.events(keep).ByteSizeLong();
    if (keep == page.events_size()) return;
    page.set_next_seq(page.events(keep).seq());
    page.mutable_events()->DeleteSubrange(keep, page.events_size() - keep);
}

class RunsService final : public v1::Runs::CallbackService {
  public:
    explicit RunsService(const Context& context) : shared_(context) {}

    grpc::ServerUnaryReactor* ListRuns(grpc::CallbackServerContext* context,
                                       const v1::ListRunsRequest* request,
                                       v1::RunList* response) override {
        return withRuns(context, request, "", [=](RunLibrary& runs) {
            const auto list = runs.list(request->text());
            if (!list.ok()) return list.status();
            for (const model::RunInfo& run : *list) proto::toMessage(run, *response->add_runs());
            return absl::OkStatus();
        });
    }

    grpc::ServerUnaryReactor* ReadEvents(grpc::CallbackServerContext* context,
                                         const v1::EventQuery* request,
                                         v1::EventPage* response) override {
        return withRuns(context, request, request->run(), [=](RunLibrary& runs) {
            const auto query = proto::fromMessage<model::EventQuery>(*request);
            if (!query.ok()) return query.status();
            const auto page = runs.events(*query);
            if (!page.ok()) return page.status();
            proto::toMessage(*page, *response);
            shorten(*response);
            return absl::OkStatus();
        });
    }

    grpc::ServerUnaryReactor* GetState(grpc::CallbackServerContext* context,
                                       const v1::GetStateRequest* request,
                                       v1::Snapshot* response) override {
        return withRuns(context, request, request->run(), [=](RunLibrary& runs) {
            const auto state = runs.state(request->run(), request->seq());
            if (!state.ok()) return state.status();
            response->set_seq(state->seq);
            response->set_form(request->form());
            response->set_state(proto::encodeState(*state, request->form() == v1::STATE_FORM_JSON));
            return absl::OkStatus();
        });
    }

    grpc::ServerUnaryReactor* CheckLedger(grpc::CallbackServerContext* context,
                                          const v1::CheckLedgerRequest* request,
                                          v1::LedgerReport* response) override {
        return withRuns(context, request, shared_.checks, request->run(), [=](RunLibrary& runs) {
            const auto report = runs.audit(request->run());
            if (!report.ok()) return report.status();
            proto::toMessage(*report, *response);
            return absl::OkStatus();
        });
    }

    grpc::ServerWriteReactor<v1::ExportChunk>* Export(grpc::CallbackServerContext* context,
                                                      const v1::ExportRequest* request) override {
        const auto caller = shared_.gate.admit(*context, *request);
        if (!caller.ok()) return new RefusedStream<v1::ExportChunk>(caller.status());
        if (shared_.runs == nullptr) return new RefusedStream<v1::ExportChunk>(noHistory());
        auto share = shared_.exportShares.take(caller->name);
        if (!share.ok())
            return new RefusedStream<v1::ExportChunk>(
                withDetail(share.status(), "run", request->run()));
        return new ExportStream(
            *context, shared_.exports, shared_.open, caller->name, *std::move(share),
            shared_.exportPatience, [runs = shared_.runs, wanted = *request](std::ostream& out) {
                const auto what = wanted.what() == v1::EXPORT_WHAT_EVENTS
                                      ? RunLibrary::What::kEvents
                                      : RunLibrary::What::kLedger;
                const auto format = wanted.format() == v1::EXPORT_FORMAT_CSV
                                        ? history::ExportFormat::kCsv
                                        : history::ExportFormat::kJsonLines;
                return withDetail(runs->write(wanted.run(), what, format, wanted.from_step(),
                                              wanted.to_step(), out),
                                  "run", wanted.run());
            });
    }

    grpc::ServerUnaryReactor* OpenReplay(grpc::CallbackServerContext* context,
                                         const v1::OpenReplayRequest* request,
                                         v1::OpenReplayResponse* response) override {
        return ofCaller(context, request, request->run(), [=](RunLibrary& runs, const auto& by) {
            auto id = runs.openReplay(request->run(), by.name);
            if (!id.ok()) return id.status();
            response->set_replay(*std::move(id));
            return absl::OkStatus();
        });
    }

    grpc::ServerUnaryReactor* ControlReplay(grpc::CallbackServerContext* context,
                                            const v1::ControlReplayRequest* request,
                                            v1::ReplayPosition* response) override {
        return ofCaller(context, request, request->replay(), [=](RunLibrary& runs, const auto& by) {
            const auto order = proto::fromMessage<model::ReplayControl>(request->control());
            if (!order.ok()) return order.status();
            const auto position = runs.controlReplay(request->replay(), by.name, *order);
            if (!position.ok()) return position.status();
            proto::toMessage(*position, *response);
            return absl::OkStatus();
        });
    }

    grpc::ServerUnaryReactor* CloseReplay(grpc::CallbackServerContext* context,
                                          const v1::CloseReplayRequest* request,
                                          v1::CloseReplayResponse*) override {
        return ofCaller(context, request, request->replay(), [=](RunLibrary& runs, const auto& by) {
            return runs.closeReplay(request->replay(), by.name);
        });
    }

  private:
    template <class Work>
    grpc::ServerUnaryReactor* withRuns(grpc::CallbackServerContext* context,
                                       const google::protobuf::Message* request, std::string object,
                                       Work work) {
        return withRuns(context, request, shared_.reads, std::move(object), std::move(work));
    }
    template <class Work>
    grpc::ServerUnaryReactor* withRuns(grpc::CallbackServerContext* context,
                                       const google::protobuf::Message* request, Workers& workers,
                                       std::string object, Work work) {
        return onRuns(
            context, request, workers, std::move(object),
            [work = std::move(work)](RunLibrary& runs, const Caller&) { return work(runs); });
    }
    /// The same for work that is told who calls.
    template <class Work>
    grpc::ServerUnaryReactor* ofCaller(grpc::CallbackServerContext* context,
                                       const google::protobuf::Message* request, std::string object,
                                       Work work) {
        return onRuns(context, request, shared_.reads, std::move(object), std::move(work));
    }
    template <class Work>
    grpc::ServerUnaryReactor* onRuns(grpc::CallbackServerContext* context,
                                     const google::protobuf::Message* request, Workers& workers,
                                     std::string object, Work work) {
        return answerTo(shared_, context, request, workers,
                        [this, object = std::move(object),
                         work = std::move(work)](const Caller& caller) -> absl::Status {
                            if (shared_.runs == nullptr) return noHistory();
                            return withDetail(work(*shared_.runs, caller), "run", object);
                        });
    }

    const Context& shared_;
};

}  // namespace

std::unique_ptr<grpc::Service> makeRunsService(const Context& context) {
    return std::make_unique<RunsService>(context);
}

}  // namespace bulkhead::service
