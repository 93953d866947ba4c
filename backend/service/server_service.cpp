// SPDX-License-Identifier: Apache-2.0
#include "backend/proto/convert.h"
#include "backend/service/services.h"
#include "backend/service/unary.h"
#include "bulkhead/v1/service.grpc.pb.h"

namespace bulkhead::service {
namespace {

class ServerService final : public v1::Server::CallbackService {
  public:
    explicit ServerService(const Context& context) : shared_(context) {}

    grpc::ServerUnaryReactor* GetInfo(grpc::CallbackServerContext* context,
                                      const v1::GetInfoRequest* request,
                                      v1::ServerInfo* response) override {
        return answerTo(shared_, context, request, shared_.reads,
                        [this, response](const Caller& caller) {
                            model::ServerInfo info = shared_.info();
                            info.principal = caller.name;
                            info.role = enumName(caller.role);
                            info.mayInject = caller.faults;
                            proto::toMessage(info, *response);
                            return absl::OkStatus();
                        });
    }

    grpc::ServerUnaryReactor* ReadAudit(grpc::CallbackServerContext* context,
                                        const v1::AuditQuery* request,
                                        v1::AuditPage* response) override {
        // A check reads all of it.
        Workers& workers = request->check() ? shared_.exports : shared_.reads;
        return answer(shared_, context, request, workers, [this, request, response] {
            if (shared_.audit == nullptr)
                return absl::FailedPreconditionError("this daemon has no jobs and keeps no audit");
            const auto query = proto::fromMessage<model::AuditQuery>(*request);
            if (!query.ok()) return query.status();
            const auto page = shared_.audit->read(*query);
            if (!page.ok()) return page.status();
            proto::toMessage(*page, *response);
            return absl::OkStatus();
        });
    }

    grpc::ServerUnaryReactor* Shutdown(grpc::CallbackServerContext* context,
                                       const v1::ShutdownRequest* request,
                                       v1::ShutdownResponse* response) override {
        return change(shared_, context, request, response,
                      [this](const Call&) { return shared_.shutdown(); });
    }

  private:
    const Context& shared_;
};

}  // namespace

std::unique_ptr<grpc::Service> makeServerService(const Context& context) {
    return std::make_unique<ServerService>(context);
}

}  // namespace bulkhead::service
