// SPDX-License-Identifier: Apache-2.0
#include "backend/service/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <mutex>

#include "backend/access/certificates.h"
#include "backend/common/file_system.h"
#include "backend/front/front.h"
#include "backend/front/server_sockets.h"
#include "backend/front/tls.h"
#include "backend/proto/grpc_log.h"
#include "backend/proto/state_form.h"
#include "backend/service/context.h"
#include "backend/service/export_stream.h"
#include "backend/service/services.h"

namespace bulkhead::service {
namespace {

namespace fs = std::filesystem;

constexpr size_t kReads = 2;  // they compute: more would only take processors from a stop
constexpr size_t kChanges = 4;
constexpr size_t kStops = 1;
constexpr size_t kChecks = 2;
constexpr size_t kExports = 16;  // each waits for its reader most of the time
constexpr size_t kStreams = 2;
constexpr size_t kExportsEach = 4;  // of one principal
constexpr size_t kWatchesEach = 32;
/// Checks and exports have so many steps of nice(1) more: on a busy machine all else goes first.
constexpr int kLowerPriority = 10;
/// A peer that does not speak HTTP/2 by then is put out.
constexpr int kHandshakeMs = 5000;
/// A connection without a call is closed after so long; its client connects again when it calls.
constexpr int kIdleMs = 5 * 60 * 1000;
constexpr int kKeepaliveMs = 10000;
constexpr int kKeepaliveAnswerMs = 5000;
constexpr int kFastestPingMs = 5000;
constexpr int kMaxRequestBytes = 2 << 20;  // a job file has at most half of that
constexpr int kCallsOfAConnection = 100;
/// Requests of all connections may hold so much: beyond it gRPC reads more slowly.
constexpr size_t kCallBytes = size_t{256} << 20;
constexpr std::chrono::milliseconds kGrace{500};

void setUpGrpcOnce() {
    static std::once_flag once;
    std::call_once(once, [] {
        proto::quietGrpcLog();
        grpc::EnableDefaultHealthCheckService(true);
        grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    });
}

std::string hostName() {
    char name[256] = "";
    ::gethostname(name, sizeof name - 1);
    return name;
}

absl::StatusOr<std::vector<std::string>> readRevoked(access::RevokedLists& lists,
                                                     const std::string& crl) {
    constexpr uint64_t kMostBytes = 16 << 20;
    const auto list = readTrusted(crl, kMostBytes);
    if (!list.ok()) return list.status();
    const auto authorities =
        readTrusted((fs::path(crl).parent_path() / "ca.pem").string(), kMostBytes);
    if (!authorities.ok()) return authorities.status();
    auto serials = lists.take(*list, *authorities);
    if (serials.ok()) return serials;
    return absl::InvalidArgumentError(crl + ": " + std::string(serials.status().message()) +
                                      "; copy crl.pem from the authority's folder");
}

/// Reads who may call over TCP; everything is empty where nothing listens there.
absl::StatusOr<Gate::Options> whoIsKnown(const ServerOptions& options) {
    Gate::Options known;
    if (options.listen.empty()) return known;
    if (!options.tokenFile.empty()) {
        auto token = loadOrCreateToken(options.tokenFile);
        if (!token.ok()) return token.status();
        known.token = *std::move(token);
    }
    if (!options.access.empty()) {
        auto access = AccessFile::open(options.access, AccessFile::WhenRemoved::kNothing,
                                       &access::AccessList::read);
        if (!access.ok()) return access.status();
        known.access = *std::move(access);
    }
    if (!options.certs.empty()) {
        auto revoked =
            RevokedFile::open((fs::path(options.certs) / "crl.pem").string(),
                              RevokedFile::WhenRemoved::kContentBefore,
                              [lists = std::make_shared<access::RevokedLists>()](
                                  const std::string& crl) { return readRevoked(*lists, crl); });
        if (!revoked.ok()) return revoked.status();
        known.revoked = *std::move(revoked);
    }
    if (known.token.empty() && (!known.access || known.access->now()->principals().empty()))
        return absl::InvalidArgumentError(
            "listening on TCP needs somebody who may call; name a file for a token with "
            "--token-file (it is made if it is not there), or add people with bulkheadctl access "
            "add");
    return known;
}

}  // namespace

class Server::Impl {
  public:
    Impl(ServerOptions options, Gate::Options known, std::unique_ptr<front::ServerTls> tls,
         const Clock& clock)
        : options_(std::move(options)),
          clock_(clock),
          auditor_(options_.audit, clock),
          front_(
              std::move(tls),
              [this](const std::string& peer, const std::string& why) {
                  auditor_.refused(peer, nullptr, "connect", nullptr,
                                   absl::UnauthenticatedError(why));
              },
              [this](UniqueFd fd) { giveToGrpc(std::move(fd)); }),
          gate_(std::move(known), auditor_, front_, clock),
          jobList_(options_.backend),
          reads_(kReads),
          changes_(kChanges),
          stops_(kStops),
          checks_(kChecks, kLowerPriority),
          exports_(kExports, kLowerPriority),
          streams_(kStreams) {
        if (options_.backend != nullptr) feeds_.emplace(*options_.backend, options_.feed);
        if (!options_.history.empty()) runs_.emplace(options_.history, clock, options_.runFolders);
        if (!options_.shutdown)
            options_.shutdown = [] {
                return absl::FailedPreconditionError(
                    "this daemon is shared by others; stop its process where it runs");
            };
    }

    ~Impl() {
        if (server_) {
            sockets_.reset();
            server_->Shutdown(std::chrono::system_clock::now() + kGrace);
            open_.awaitNone();
        }
    }

    absl::Status serve();

    std::vector<std::string> addresses;

  private:
    model::ServerInfo info() const;
    absl::Status listen();
    void giveToGrpc(UniqueFd fd);

    ServerOptions options_;
    const Clock& clock_;
    Auditor auditor_;
    front::Front front_;
    const Gate gate_;
    RequestLog requests_;
    std::optional<JobFeeds> feeds_;
    std::optional<RunLibrary> runs_;
    JobListFeed jobList_;
    Shares exportShares_{"exports", kExportsEach};
    Shares watchShares_{"watches", kWatchesEach};
    Open open_;
    Workers reads_;
    Workers changes_;
    Workers stops_;
    Workers checks_;
    Workers exports_;
    Workers streams_;
    std::optional<Context> context_;
    std::vector<std::unique_ptr<grpc::Service>> services_;
    std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
    std::unique_ptr<grpc::Server> server_;
    std::optional<front::ServerSockets> sockets_;
};

model::ServerInfo Server::Impl::info() const {
    model::ServerInfo info;
    info.apiVersion = proto::kApiVersion;
    info.build = options_.build;
    info.fingerprint = proto::stateFingerprint();
    info.readOnly = options_.backend == nullptr;
    info.runFile = options_.history.string();
    info.leader = options_.leader;
    if (options_.standbys) info.standbys = options_.standbys();
    info.pid = static_cast<int32_t>(::getpid());
    info.host = hostName();
    info.insecure = options_.certs.empty() && sockets_->reachedFromElsewhere();
    if (!options_.certs.empty()) {
        const auto own = access::readCertificate(fs::path(options_.certs) / "cert.pem");
        if (own.ok()) info.certificateEndsNs = own->endsS * kSecond;
    }
    return info;
}

absl::Status Server::Impl::listen() {
    if (!options_.socket.empty()) {
        auto address = sockets_->listenUnix(options_.socket);
        if (!address.ok()) return address.status();
        addresses.push_back(*std::move(address));
    }
    for (const std::string& listen : options_.listen) {
        const bool before = sockets_->reachedFromElsewhere();
        auto address = sockets_->listenTcp(listen);
        if (!address.ok()) return address.status();
        addresses.push_back(*std::move(address));
        if (!options_.certs.empty() || before || !sockets_->reachedFromElsewhere()) continue;
        if (!options_.insecure)
            return absl::InvalidArgumentError(
                "address " + addresses.back() +
                " can be reached from other machines, and without TLS tokens and text go over the "
                "network in plain text; name a folder of certificates with --certs (bulkheadctl "
                "certs issue makes one), or listen there with --insecure all the same");
        spdlog::warn(
            "serving {} without TLS (--insecure): whoever listens in on the network reads tokens "
            "and text",
            addresses.back());
    }
    return absl::OkStatus();
}

absl::Status Server::Impl::serve() {
    setUpGrpcOnce();
    grpc::ServerBuilder builder;
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveAnswerMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               kFastestPingMs);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kCallsOfAConnection);
    builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
    // gRPC would inflate a request whole before it knows who sends it or how large it is.
    for (const auto algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP})
        builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
    builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
    builder.SetResourceQuota(grpc::ResourceQuota("calls").Resize(kCallBytes));
    // Watches, event pages and exports come in pieces (Feed::kMostBytes); a state that is asked for
    // whole is bounded by model::Limits.
    builder.SetMaxSendMessageSize(-1);
    builder.experimental().SetInterceptorCreators(gate_.interceptors());
    using Kind = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
    acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        Kind::FROM_FD, grpc::InsecureServerCredentials());  // TLS ends before it
    sockets_.emplace(front_);
    if (absl::Status status = listen(); !status.ok()) return status;
    if (const model::ServerInfo us = info(); us.certificateEndsSoon(clock_.unixNs()))
        spdlog::warn("the certificate in {} ends in {} hours; renew it: bulkheadctl certs renew {}",
                     options_.certs, (us.certificateEndsNs - clock_.unixNs()) / (3600 * kSecond),
                     options_.certs);
    context_.emplace(Context{gate_,
                             auditor_,
                             options_.audit,
                             options_.backend,
                             runs_ ? &*runs_ : nullptr,
                             feeds_ ? &*feeds_ : nullptr,
                             jobList_,
                             requests_,
                             open_,
                             reads_,
                             changes_,
                             stops_,
                             checks_,
                             exports_,
                             streams_,
                             exportShares_,
                             watchShares_,
                             options_.exportPatience,
                             [this] { return info(); },
                             options_.shutdown});
    services_.push_back(makeServerService(*context_));
    services_.push_back(makeJobsService(*context_));
    services_.push_back(makeWatchService(*context_));
    services_.push_back(makeRunsService(*context_));
    for (const auto& service : services_) builder.RegisterService(service.get());
    server_ = builder.BuildAndStart();
    if (!server_) return absl::UnavailableError("gRPC could not start its server");
    sockets_->start([this](UniqueFd fd) { giveToGrpc(std::move(fd)); });
    return absl::OkStatus();
}

void Server::Impl::giveToGrpc(UniqueFd fd) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.fd = fd.release();
    acceptor_->HandleNewConnection(&connection);
}

absl::StatusOr<std::unique_ptr<Server>> Server::start(ServerOptions options, const Clock& clock) {
    auto known = whoIsKnown(options);
    if (!known.ok()) return known.status();
    std::unique_ptr<front::ServerTls> tls;
    if (!options.certs.empty()) {
        auto opened = front::ServerTls::open(options.certs, clock);
        if (!opened.ok()) return opened.status();
        tls = *std::move(opened);
    }
    auto impl =
        std::make_unique<Impl>(std::move(options), *std::move(known), std::move(tls), clock);
    if (absl::Status status = impl->serve(); !status.ok()) return status;
    return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;
const std::vector<std::string>& Server::addresses() const {
    return impl_->addresses;
}

}  // namespace bulkhead::service
