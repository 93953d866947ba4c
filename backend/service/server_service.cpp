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
                                      const v1::GetInfoRequest*,
                                      v1::ServerInfo* response) override {
        return answer(shared_, context, [this, response] {
            proto::toMessage(shared_.info, *response);
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
