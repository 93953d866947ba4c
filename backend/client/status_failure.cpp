// SPDX-License-Identifier: Apache-2.0
#include "backend/client/status_failure.h"

#include <grpcpp/support/status.h>

#include <optional>

#include "bulkhead/v1/service.pb.h"

namespace bulkhead::client {
namespace {

std::optional<v1::ErrorDetail> detailOf(const grpc::Status& status) {
    v1::StatusDetails details;
    if (status.error_details().empty() || !details.ParseFromString(status.error_details()))
        return std::nullopt;
    for (const auto& any : details.details()) {
        v1::ErrorDetail detail;
        if (any.Is<v1::ErrorDetail>() && any.UnpackTo(&detail)) return detail;
    }
    return std::nullopt;
}

FailureCode codeOf(grpc::StatusCode code) {
    switch (code) {
        case grpc::StatusCode::UNAVAILABLE:
            return FailureCode::kUnreachable;
        case grpc::StatusCode::DEADLINE_EXCEEDED:
            return FailureCode::kTimeout;
        case grpc::StatusCode::UNAUTHENTICATED:
        case grpc::StatusCode::PERMISSION_DENIED:
            return FailureCode::kToken;
        case grpc::StatusCode::UNIMPLEMENTED:
            return FailureCode::kVersion;
        case grpc::StatusCode::NOT_FOUND:
            return FailureCode::kNotFound;
        case grpc::StatusCode::INVALID_ARGUMENT:
        case grpc::StatusCode::OUT_OF_RANGE:
            return FailureCode::kInvalid;
        case grpc::StatusCode::ABORTED:
            return FailureCode::kStale;
        case grpc::StatusCode::FAILED_PRECONDITION:
        case grpc::StatusCode::ALREADY_EXISTS:
        case grpc::StatusCode::RESOURCE_EXHAUSTED:
            return FailureCode::kRefused;
        case grpc::StatusCode::CANCELLED:
            return FailureCode::kCancelled;
        default:
            return FailureCode::kServer;
    }
}

/// The reason of a TLS failure, from gRPC's words; nullopt when that is not what failed. All of
/// these can be mended at the daemon's end, so that trying again is right.
std::optional<Failure> ofTls(const std::string& words, const std::string& title,
                             const std::string& target) {
    const auto says = [&](const char* part) { return words.find(part) != std::string::npos; };
    const auto failure = [&](std::string cause, std::string remedy) {
        return Failure{FailureCode::kToken, title, std::move(cause), std::move(remedy), true};
    };
    if (says("certificate verify failed"))
        return failure("The ca.pem of --certs does not vouch for what answers at " + target +
                           ", or its certificate has ended.",
                       "Use the ca.pem of the daemon's authority; if it is that, somebody else "
                       "answers there, or the daemon's certificate must be renewed.");
    if (says("Hostname Verification") || says("not in peer certificate"))
        return failure("The certificate of what answers at " + target + " is for another host.",
                       "Use a name or address it was issued for, or issue it with --host.");
    if (says("wrong version number"))
        return failure("What answers at " + target + " does not speak TLS.",
                       "Start the daemon with certificates, or leave out --certs.");
    if (says("unknown ca") || says("certificate expired") || says("bad certificate"))
        return failure("The daemon at " + target + " does not accept your certificate.",
                       "Use one that its authority issued (bulkheadctl certs check FOLDER).");
    if (says("Tls handshake failed"))
        return failure("No secure connection to " + target + " could be made.",
                       "Check the certificates at both ends (bulkheadctl certs check FOLDER).");
    if (says("Socket closed") && target.rfind("unix:", 0) != 0)
        return Failure{FailureCode::kUnreachable, title,
                       "What answers at " + target + " ends the connection.",
                       "If the daemon has certificates, name a folder with its ca.pem (--certs); "
                       "if you did, the daemon may not accept yours.",
                       true};
    return std::nullopt;
}

/// Handles statuses that gRPC itself made: their text is for programmers and stays out of sight.
Failure ofTransport(FailureCode code, std::string title, const std::string& target) {
    switch (code) {
        case FailureCode::kUnreachable:
            return {code, std::move(title), "Nobody answers at " + target + ".",
                    "Check that bulkheadd runs there and that the address is right.", true};
        case FailureCode::kTimeout:
            return {code, std::move(title), "The daemon at " + target + " did not answer in time.",
                    "Try again; if it stays so, look at the daemon's machine.", true};
        case FailureCode::kToken:
            return {code, std::move(title), "The daemon at " + target + " refused the token.",
                    "Name the token file the daemon was started with.", false};
        case FailureCode::kVersion:
            return {code, std::move(title),
                    "What answers at " + target + " does not offer this call.",
                    "Use a console and a daemon of the same version.", false};
        case FailureCode::kCancelled:
            return {code, std::move(title), "It was cancelled.", "Ask again if it is still wanted.",
                    true};
        default:
            return {code, std::move(title), "The daemon at " + target + " failed to answer.",
                    "Look at the daemon's log, then try again.", true};
    }
}

}  // namespace

Failure localFailure(FailureCode code, std::string title, std::string message) {
    std::string remedy = "Correct it and try again.";
    if (const size_t at = message.rfind("; "); at != std::string::npos) {
        remedy = message.substr(at + 2);
        message.resize(at);
    }
    return {code, std::move(title), std::move(message), std::move(remedy), false};
}

Failure failureOf(const grpc::Status& status, std::string title, const std::string& target) {
    const std::optional<v1::ErrorDetail> detail = detailOf(status);
    const FailureCode code = codeOf(status.error_code());
    if (!detail) {
        auto tls = code == FailureCode::kUnreachable ? ofTls(status.error_message(), title, target)
                                                     : std::nullopt;
        return tls ? *std::move(tls) : ofTransport(code, std::move(title), target);
    }
    Failure failure{code, std::move(title), status.error_message(), detail->hint(),
                    detail->retryable()};
    if (detail->component() == "version") failure.code = FailureCode::kVersion;
    if (failure.code == FailureCode::kToken && detail->component() != "token")
        failure.code = FailureCode::kRefused;
    if (failure.remedy.empty()) failure.remedy = ofTransport(failure.code, {}, target).remedy;
    return failure;
}

}  // namespace bulkhead::client
