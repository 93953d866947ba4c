// SPDX-License-Identifier: Apache-2.0
#include "backend/service/gate.h"

#include <google/protobuf/message.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/server_interceptor.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "backend/access/certificates.h"
#include "backend/model/names.h"
#include "backend/proto/state_form.h"
#include "backend/service/status_map.h"
#include "bulkhead/v1/service.pb.h"

namespace bulkhead::service {
namespace {

using access::Role;
using google::protobuf::Descriptor;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;
using model::concat;

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr const char* kBearer = "Bearer ";

std::string metadata(const grpc::ServerContextBase& context, const char* key) {
    const auto& all = context.client_metadata();
    const auto it = all.find(key);
    return it == all.end() ? std::string() : std::string(it->second.data(), it->second.size());
}

/// gRPC calls so the other end of each connection over a Unix socket that is not Front's.
bool isLocal(const std::string& grpcName) {
    return grpcName.starts_with("unix:");
}

bool isOurs(const char* method) {
    return std::string_view(method).substr(0, 13) == "/bulkhead.v1.";
}

absl::Status unknown(std::string why, std::string remedy) {
    return withDetail(absl::UnauthenticatedError(std::move(why)), "token", "", std::move(remedy));
}

constexpr const char* kTokenRemedy =
    "Name the token file the daemon was started with, or that of a principal of its access file "
    "(--token-file).";
constexpr const char* kAccessRemedy =
    "Ask who runs the daemon: bulkheadctl access add NAME --role ROLE.";

const MethodDescriptor* methodWith(const Message& request) {
    static const std::map<const Descriptor*, const MethodDescriptor*> kMethods = [] {
        std::map<const Descriptor*, const MethodDescriptor*> methods;
        const google::protobuf::FileDescriptor* file = v1::Mutation::descriptor()->file();
        for (int i = 0; i < file->service_count(); ++i)
            for (int j = 0; j < file->service(i)->method_count(); ++j)
                methods[file->service(i)->method(j)->input_type()] = file->service(i)->method(j);
        return methods;
    }();
    const auto it = kMethods.find(request.GetDescriptor());
    return it == kMethods.end() ? nullptr : it->second;
}

/// OK when `caller` may call what `request` is for.
absl::Status allowed(const Caller& caller, const Message& request) {
    const MethodDescriptor* method = methodWith(request);
    const v1::Need need =
        method == nullptr ? v1::NEED_UNSPECIFIED : method->options().GetExtension(v1::need);
    Role least = Role::kAdmin;
    if (need == v1::NEED_VIEWER) least = Role::kViewer;
    if (need == v1::NEED_OPERATOR || need == v1::NEED_FAULTS) least = Role::kOperator;
    const bool lacksFaults = need == v1::NEED_FAULTS && !caller.faults;
    if (need != v1::NEED_UNSPECIFIED && caller.role >= least && !lacksFaults)
        return absl::OkStatus();
    return withDetail(
        absl::PermissionDeniedError(
            lacksFaults
                ? concat("The principal ", caller.name, " may not inject faults")
                : concat("This call (", methodOf(request), ") needs the role ", enumName(least),
                         ", and ", caller.name, " has the role ", enumName(caller.role))),
        "access", caller.name, kAccessRemedy);
}

Caller ownerOfProcess() {
    passwd entry{};
    passwd* found = nullptr;
    char text[4096];
    ::getpwuid_r(::geteuid(), &entry, text, sizeof text, &found);
    return {found != nullptr ? std::string(found->pw_name) : concat("uid", ::geteuid()),
            Role::kAdmin, true, "socket", "unix:"};
}

class GateInterceptor final : public grpc::experimental::Interceptor {
  public:
    GateInterceptor(const Gate& gate, grpc::experimental::ServerRpcInfo* info)
        : gate_(gate), info_(info), begun_(gate.begins(*info->server_context())) {}
    void Intercept(grpc::experimental::InterceptorBatchMethods* batch) override {
        if (batch->QueryInterceptionHookPoint(
                grpc::experimental::InterceptionHookPoints::POST_RECV_INITIAL_METADATA) &&
            !isOurs(info_->method()))
            if (const auto caller = gate_.identify(*info_->server_context()); !caller.ok())
                endNow(*info_->server_context(),
                       absl::UnauthenticatedError(
                           concat(std::string(caller.status().message()),
                                  "; send \"authorization: Bearer TOKEN\" with the token of its "
                                  "--token-file")));
        batch->Proceed();
    }

  private:
    const Gate& gate_;
    grpc::experimental::ServerRpcInfo* info_;
    const std::shared_ptr<void> begun_;
};

class GateInterceptorFactory final : public grpc::experimental::ServerInterceptorFactoryInterface {
  public:
    explicit GateInterceptorFactory(const Gate& gate) : gate_(gate) {}
    grpc::experimental::Interceptor* CreateServerInterceptor(
        grpc::experimental::ServerRpcInfo* info) override {
        return new GateInterceptor(gate_, info);
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

std::string methodOf(const Message& request) {
    const MethodDescriptor* method = methodWith(request);
    return method == nullptr ? std::string()
                             : concat(method->service()->name(), "/", method->name());
}

Gate::Gate(Options options, Auditor& auditor, front::Front& front, const Clock& clock)
    : options_(std::move(options)),
      auditor_(auditor),
      front_(front),
      clock_(clock),
      owner_(ownerOfProcess()) {}

absl::StatusOr<Caller> Gate::unlessExpired(const access::Principal& principal,
                                           const char* via) const {
    if (clock_.unixNs() / kSecondNs >= access::expiryOf(principal).value_or(0))
        return unknown(concat("The access of ", principal.name, " ended on ", principal.expires),
                       kAccessRemedy);
    return Caller{principal.name, principal.role, principal.faults, via, ""};
}

absl::StatusOr<Caller> Gate::withToken(const std::string& shown) const {
    const std::string_view text = shown;
    const std::string_view token =
        text.starts_with(kBearer) ? text.substr(std::string_view(kBearer).size()) : text;
    if (!options_.token.empty() && sameSecret(token, options_.token))
        return Caller{"token", Role::kAdmin, true, "token", ""};
    const auto list = options_.access ? options_.access->now() : nullptr;
    const access::Principal* principal = list ? list->withToken(token) : nullptr;
    if (principal == nullptr) return unknown("The token is not this daemon's", kTokenRemedy);
    return unlessExpired(*principal, "token");
}

absl::StatusOr<Caller> Gate::withCertificate(const access::Certificate& shown) const {
    const std::string name = model::shortened(model::printable(shown.name), 80);
    if (clock_.unixNs() / kSecondNs >= shown.endsS)
        return unknown(concat("The certificate of ", name, " has ended"), kAccessRemedy);
    const auto revoked = options_.revoked ? options_.revoked->now() : nullptr;
    if (revoked && std::ranges::find(*revoked, shown.serial) != revoked->end())
        return unknown(concat("The certificate of ", name, " was revoked"), kAccessRemedy);
    const auto list = options_.access ? options_.access->now() : nullptr;
    const access::Principal* principal = list ? list->withCertificate(shown.name) : nullptr;
    if (principal == nullptr)
        return unknown(concat("The access file of this daemon names no \"", name, "\""),
                       kAccessRemedy);
    return unlessExpired(*principal, "certificate");
}

absl::StatusOr<Caller> Gate::identify(const grpc::ServerContextBase& context) const {
    const std::string grpcName = context.peer();
    if (isLocal(grpcName)) return owner_;
    const auto other = front_.find(grpcName);
    if (other == nullptr) return absl::CancelledError("the connection is gone");
    auto caller = proved(context, *other);
    if (!caller.ok()) {
        front_.refused(grpcName);
        return caller;
    }
    caller->peer = other->peer.name;
    if (absl::Status status = front_.signedIn(grpcName, caller->name); !status.ok()) return status;
    return caller;
}

std::shared_ptr<void> Gate::begins(const grpc::ServerContextBase& context) const {
    const std::string grpcName = context.peer();
    return isLocal(grpcName) ? nullptr : front_.callBegins(grpcName);
}

absl::StatusOr<Caller> Gate::proved(const grpc::ServerContextBase& context,
                                    const front::Front::Known& other) const {
    if (const std::string shown = metadata(context, "authorization"); !shown.empty())
        return withToken(shown);
    if (other.certificate) return withCertificate(*other.certificate);
    return unknown("This daemon wants a token or a certificate, and none was sent", kTokenRemedy);
}

absl::StatusOr<Caller> Gate::admit(const grpc::ServerContextBase& context,
                                   const Message& request) const {
    auto caller = identify(context);
    if (!caller.ok()) {
        if (const auto other = front_.find(context.peer()))
            auditor_.refused(other->peer.name, nullptr, methodOf(request), nullptr,
                             caller.status());
        return caller;
    }
    const std::string version = metadata(context, "bulkhead-api");
    if (!version.empty() && version != std::to_string(proto::kApiVersion))
        return withDetail(
            absl::FailedPreconditionError("This daemon speaks API version " +
                                          std::to_string(proto::kApiVersion) +
                                          ", the caller version " + version.substr(0, 16)),
            "version", "", "Use a console and a daemon of the same version.");
    if (absl::Status status = allowed(*caller, request); !status.ok()) {
        auditor_.refused(caller->peer, &*caller, methodOf(request), &request, status);
        return status;
    }
    auditor_.called(*caller);
    return caller;
}

std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
Gate::interceptors() const {
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> out;
    out.push_back(std::make_unique<GateInterceptorFactory>(*this));
    return out;
}

}  // namespace bulkhead::service
