// SPDX-License-Identifier: Apache-2.0
#include "backend/service/gate.h"

#include <grpc/grpc.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/server_interceptor.h>

#include "backend/proto/state_form.h"
#include "backend/service/status_map.h"

namespace bulkhead::service {
namespace {

std::string metadata(const grpc::ServerContextBase& context, const char* key) {
    const auto& all = context.client_metadata();
    const auto it = all.find(key);
    return it == all.end() ? std::string() : std::string(it->second.data(), it->second.size());
}

bool isOurs(const char* method) {
    return std::string_view(method).substr(0, 13) == "/bulkhead.v1.";
}

constexpr const char* kNoToken = "This daemon wants a token, and none was sent";
constexpr const char* kWrongToken = "The token is not this daemon's";
constexpr const char* kTokenRemedy =
    "Name the token file the daemon was started with (--token-file).";

bool sentNone(const grpc::ServerContextBase& context) {
    return metadata(context, "authorization").empty();
}

/// Ends a call whose handler is not ours. TryCancel would too, but the caller could not tell why.
void refuse(grpc::ServerContextBase& context) {
    const std::string text = std::string(sentNone(context) ? kNoToken : kWrongToken) + "; send \"" +
                             "authorization: Bearer TOKEN\" with the token of its --token-file";
    ::grpc_call_cancel_with_status(context.c_call(), GRPC_STATUS_UNAUTHENTICATED, text.c_str(),
                                   nullptr);
}

class TokenInterceptor final : public grpc::experimental::Interceptor {
  public:
    TokenInterceptor(const Gate& gate, grpc::experimental::ServerRpcInfo* info)
        : gate_(gate), info_(info) {}
    void Intercept(grpc::experimental::InterceptorBatchMethods* batch) override {
        if (batch->QueryInterceptionHookPoint(
                grpc::experimental::InterceptionHookPoints::POST_RECV_INITIAL_METADATA) &&
            !isOurs(info_->method()) && !gate_.holdsToken(*info_->server_context()))
            refuse(*info_->server_context());
        batch->Proceed();
    }

  private:
    const Gate& gate_;
    grpc::experimental::ServerRpcInfo* info_;
};

class TokenInterceptorFactory final : public grpc::experimental::ServerInterceptorFactoryInterface {
  public:
    explicit TokenInterceptorFactory(const Gate& gate) : gate_(gate) {}
    grpc::experimental::Interceptor* CreateServerInterceptor(
        grpc::experimental::ServerRpcInfo* info) override {
        return new TokenInterceptor(gate_, info);
    }

  private:
    const Gate& gate_;
};

}  // namespace

bool sameSecret(std::string_view a, std::string_view b) {
    size_t different = a.size() ^ b.size();
    for (size_t i = 0; i < a.size(); ++i)
        different |= static_cast<unsigned char>(a[i]) ^
                     static_cast<unsigned char>(b.empty() ? '\0' : b[i % b.size()]);
    return different == 0;
}

bool Gate::holdsToken(const grpc::ServerContextBase& context) const {
    if (token_.empty()) return true;
    const std::string peer = context.peer();
    if (peer.rfind("unix:", 0) == 0) return true;
    const std::string shown = metadata(context, "authorization");
    return sameSecret(shown, "Bearer " + token_);
}

absl::Status Gate::admit(const grpc::ServerContextBase& context) const {
    if (!holdsToken(context)) {
        return withDetail(absl::UnauthenticatedError(sentNone(context) ? kNoToken : kWrongToken),
                          "token", "", kTokenRemedy);
    }
    const std::string version = metadata(context, "bulkhead-api");
    if (!version.empty() && version != std::to_string(proto::kApiVersion))
        return withDetail(
            absl::FailedPreconditionError("This daemon speaks API version " +
                                          std::to_string(proto::kApiVersion) +
                                          ", the caller version " + version.substr(0, 16)),
            "version", "", "Use a console and a daemon of the same version.");
    return absl::OkStatus();
}

std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
Gate::interceptors() const {
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> out;
    out.push_back(std::make_unique<TokenInterceptorFactory>(*this));
    return out;
}

}  // namespace bulkhead::service
