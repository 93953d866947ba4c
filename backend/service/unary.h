// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/service/context.h"
#include "backend/service/status_map.h"
#include "bulkhead/v1/service.pb.h"

namespace bulkhead::service {

/// Every unary call: through the gate, then on one of `workers`, then its status in gRPC's words.
/// `work` takes the caller, of whom at most kMostWaiting calls wait: whoever gives calls up and
/// makes others at once uses up no memory. Request and response outlive the reactor's Finish.
inline constexpr size_t kMostWaiting = 1000;
template <class Work>
grpc::ServerUnaryReactor* answerTo(const Context& shared, grpc::CallbackServerContext* context,
                                   const google::protobuf::Message* request, Workers& workers,
                                   Work work) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    auto caller = shared.gate.admit(*context, *request);
    if (!caller.ok()) {
        reactor->Finish(toGrpc(caller.status()));
        return reactor;
    }
    const std::string name = caller->name;
    if (workers.waiting(name) >= kMostWaiting) {
        reactor->Finish(toGrpc(absl::ResourceExhaustedError(
            absl::StrCat(name, " has ", kMostWaiting, " calls that wait; make fewer at a time"))));
        return reactor;
    }
    workers.post(name, [reactor, context, caller = *std::move(caller), work = std::move(work)] {
        // A call that was cancelled while it waited for its turn is not executed.
        reactor->Finish(context->IsCancelled() ? grpc::Status::CANCELLED : toGrpc(work(caller)));
    });
    return reactor;
}

/// A call that changes nothing, and answers soon unless it has `workers` of its own.
template <class Work>
grpc::ServerUnaryReactor* answer(const Context& shared, grpc::CallbackServerContext* context,
                                 const google::protobuf::Message* request, Workers& workers,
                                 Work work) {
    return answerTo(shared, context, request, workers,
                    [work = std::move(work)](const Caller&) { return work(); });
}
template <class Work>
grpc::ServerUnaryReactor* answer(const Context& shared, grpc::CallbackServerContext* context,
                                 const google::protobuf::Message* request, Work work) {
    return answer(shared, context, request, shared.reads, std::move(work));
}

/// A call that changes something: once for each request id, and in the audit.
template <class Request, class Response, class Work>
grpc::ServerUnaryReactor* change(const Context& shared, grpc::CallbackServerContext* context,
                                 Workers& workers, const Request* request, Response* response,
                                 Work work) {
    return answerTo(
        shared, context, request, workers,
        [&shared, context, request, response, work = std::move(work)](const Caller& caller) {
            const v1::Mutation& mutation = request->mutation();
            // A caller on this machine is this user, whatever the program says; from
            // elsewhere only what was proved counts.
            const bool ownWord = caller.via == "socket" && !mutation.by().empty();
            const Call call{mutation.request_id(), mutation.expected_revision(),
                            ownWord ? mutation.by() : caller.name, caller.faults,
                            [context] { return context->IsCancelled(); }};
            const absl::Status status = shared.requests.once(call.requestId, *request, *response,
                                                             [&] { return work(call); });
            shared.auditor.changed(caller, *request, *response, status);
            return status;
        });
}
template <class Request, class Response, class Work>
grpc::ServerUnaryReactor* change(const Context& shared, grpc::CallbackServerContext* context,
                                 const Request* request, Response* response, Work work) {
    return change(shared, context, shared.changes, request, response, std::move(work));
}

}  // namespace bulkhead::service
