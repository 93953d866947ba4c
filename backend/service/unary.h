// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <utility>

#include "backend/service/context.h"
#include "backend/service/status_map.h"
#include "bulkhead/v1/service.pb.h"

namespace bulkhead::service {

/// Every unary call: through the gate, then on one of `workers`, then its status in gRPC's words.
/// Request and response outlive the reactor's Finish.
template <class Work>
grpc::ServerUnaryReactor* answer(const Context& shared, grpc::CallbackServerContext* context,
                                 Workers& workers, Work work) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    if (const absl::Status status = shared.gate.admit(*context); !status.ok()) {
        reactor->Finish(toGrpc(status));
        return reactor;
    }
    workers.post([reactor, context, work = std::move(work)] {
        // Whoever gave up while the call waited for its turn costs no more than that.
        reactor->Finish(context->IsCancelled() ? grpc::Status::CANCELLED : toGrpc(work()));
    });
    return reactor;
}

/// A call that answers soon and changes nothing.
template <class Work>
grpc::ServerUnaryReactor* answer(const Context& shared, grpc::CallbackServerContext* context,
                                 Work work) {
    return answer(shared, context, shared.reads, std::move(work));
}

/// A call that changes something: once for each request id.
template <class Request, class Response, class Work>
grpc::ServerUnaryReactor* change(const Context& shared, grpc::CallbackServerContext* context,
                                 Workers& workers, const Request* request, Response* response,
                                 Work work) {
    return answer(shared, context, workers, [&shared, request, response, work = std::move(work)] {
        const v1::Mutation& mutation = request->mutation();
        const Call call{mutation.request_id(), mutation.expected_revision(), mutation.by()};
        return shared.requests.once(call.requestId, *request, *response,
                                    [&] { return work(call); });
    });
}
template <class Request, class Response, class Work>
grpc::ServerUnaryReactor* change(const Context& shared, grpc::CallbackServerContext* context,
                                 const Request* request, Response* response, Work work) {
    return change(shared, context, shared.changes, request, response, std::move(work));
}

}  // namespace bulkhead::service
