// SPDX-License-Identifier: Apache-2.0
#include "backend/service/status_map.h"

#include <grpc/grpc.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include "absl/strings/cord.h"
#include "backend/model/names.h"
#include "bulkhead/v1/service.pb.h"

namespace bulkhead::service {
namespace {

constexpr char kPayload[] = "bulkhead.v1.ErrorDetail";
// Bytes. All of it is in the trailers of a call, of which gRPC takes 8 KiB.
constexpr size_t kLongestCause = 1500;
constexpr size_t kLongestHint = 500;
constexpr size_t kLongestObject = 200;

/// "waits for r3" -> "Waits for r3."
std::string sentence(std::string text) {
    while (!text.empty() && text.front() == ' ') text.erase(0, 1);
    while (!text.empty() && (text.back() == ' ' || text.back() == '\n')) text.pop_back();
    if (text.empty()) return text;
    // A path or a name keeps its spelling; a plain word at the start is capitalised.
    const size_t word = text.find_first_of(" /.:_=0123456789");
    if (text[0] >= 'a' && text[0] <= 'z' && word != std::string::npos && text[word] == ' ')
        text[0] = static_cast<char>(text[0] - 'a' + 'A');
    if (text.back() != '.' && text.back() != '!' && text.back() != '?') text += '.';
    return text;
}

bool isRetryable(absl::StatusCode code) {
    return code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kDeadlineExceeded ||
           code == absl::StatusCode::kResourceExhausted;
}

const char* usualRemedy(absl::StatusCode code) {
    switch (code) {
        case absl::StatusCode::kNotFound:
            return "List what there is and use one of those names.";
        case absl::StatusCode::kInvalidArgument:
        case absl::StatusCode::kOutOfRange:
            return "Correct it and ask again.";
        case absl::StatusCode::kAborted:
            return "Look at the job as it is now, then decide again.";
        case absl::StatusCode::kFailedPrecondition:
            return "Wait until the job allows it.";
        case absl::StatusCode::kUnavailable:
        case absl::StatusCode::kDeadlineExceeded:
        case absl::StatusCode::kResourceExhausted:
            return "Try again in a moment.";
        default:
            return "Look at the daemon's log.";
    }
}

}  // namespace

absl::Status withDetail(absl::Status status, std::string component, std::string object,
                        std::string hint) {
    if (status.ok()) return status;
    v1::ErrorDetail detail;
    detail.set_component(std::move(component));
    detail.set_object(std::move(object));
    detail.set_hint(std::move(hint));
    status.SetPayload(kPayload, absl::Cord(detail.SerializeAsString()));
    return status;
}

grpc::Status toGrpc(const absl::Status& status) {
    if (status.ok()) return grpc::Status::OK;
    v1::ErrorDetail detail;
    if (const auto payload = status.GetPayload(kPayload))
        detail.ParseFromString(std::string(*payload));
    std::string cause(status.message());
    if (const size_t at = cause.rfind("; "); detail.hint().empty() && at != std::string::npos) {
        detail.set_hint(sentence(cause.substr(at + 2)));
        cause.resize(at);
    }
    if (detail.hint().empty()) detail.set_hint(usualRemedy(status.code()));
    detail.set_hint(model::shortened(detail.hint(), kLongestHint));
    detail.set_object(model::shortened(detail.object(), kLongestObject));
    detail.set_retryable(isRetryable(status.code()));
    cause = sentence(model::shortened(cause, kLongestCause));
    v1::StatusDetails details;
    details.set_code(static_cast<int>(status.code()));
    details.set_message(cause);
    details.add_details()->PackFrom(detail);
    return {static_cast<grpc::StatusCode>(status.code()), cause, details.SerializeAsString()};
}

void endNow(grpc::ServerContextBase& context, const absl::Status& status) {
    ::grpc_call_cancel_with_status(context.c_call(), static_cast<grpc_status_code>(status.code()),
                                   std::string(status.message()).c_str(), nullptr);
}

}  // namespace bulkhead::service
