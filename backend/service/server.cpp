// SPDX-License-Identifier: Apache-2.0
#include "backend/service/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <sys/stat.h>
#include <unistd.h>

#include <mutex>

#include "backend/proto/grpc_log.h"
#include "backend/proto/state_form.h"
#include "backend/service/addresses.h"
#include "backend/service/context.h"
#include "backend/service/services.h"

namespace bulkhead::service {
namespace {

constexpr size_t kWorkers = 4;
constexpr size_t kExports = 2;
constexpr int kKeepaliveMs = 10000;
constexpr int kKeepaliveAnswerMs = 5000;
constexpr int kFastestPingMs = 5000;
constexpr int kMaxRequestBytes = 16 << 20;
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

}  // namespace

class Server::Impl {
  public:
    Impl(ServerOptions options, std::string token, const Clock& clock)
        : options_(std::move(options)),
          gate_(std::move(token)),
          jobList_(options_.backend),
          workers_(kWorkers),
          exports_(kExports) {
        if (options_.backend != nullptr) feeds_.emplace(*options_.backend, options_.feed);
        if (!options_.history.empty()) runs_.emplace(options_.history, clock, options_.commitLogs);
        if (!options_.shutdown)
            options_.shutdown = [] {
                return absl::FailedPreconditionError(
                    "this daemon is shared by others; stop its process where it runs");
            };
    }

    ~Impl() {
        if (server_) {
            server_->Shutdown(std::chrono::system_clock::now() + kGrace);
            open_.awaitNone();
        }
    }

    absl::Status serve();

    std::vector<std::string> addresses;

  private:
    model::ServerInfo info() const;
    absl::Status listenTcp(grpc::ServerBuilder& builder, std::vector<int>& ports,
                           std::vector<std::string>& hosts);

    ServerOptions options_;
    SocketLock lock_;
    const Gate gate_;
    RequestLog requests_;
    std::optional<JobFeeds> feeds_;
    std::optional<RunLibrary> runs_;
    JobListFeed jobList_;
    Open open_;
    Workers workers_;
    Workers exports_;
    std::optional<Context> context_;
    std::vector<std::unique_ptr<grpc::Service>> services_;
    std::unique_ptr<grpc::Server> server_;
};

model::ServerInfo Server::Impl::info() const {
    model::ServerInfo info;
    info.apiVersion = proto::kApiVersion;
    info.build = options_.build;
    info.fingerprint = proto::stateFingerprint();
    info.readOnly = options_.backend == nullptr;
    info.runFile = options_.history.string();
    info.pid = static_cast<int32_t>(::getpid());
    info.host = hostName();
    return info;
}

absl::Status Server::Impl::listenTcp(grpc::ServerBuilder& builder, std::vector<int>& ports,
                                     std::vector<std::string>& hosts) {
    ports.resize(options_.listen.size());
    for (size_t i = 0; i < options_.listen.size(); ++i) {
        const auto address = tcpAddress(options_.listen[i]);
        if (!address.ok()) return address.status();
        if (absl::Status status = checkFree(*address); !status.ok()) return status;
        hosts.push_back(address->substr(0, address->rfind(':')));
        builder.AddListeningPort(*address, grpc::InsecureServerCredentials(), &ports[i]);
    }
    return absl::OkStatus();
}

absl::Status Server::Impl::serve() {
    setUpGrpcOnce();
    grpc::ServerBuilder builder;
    // Two daemons on one port would share its connections at random.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveAnswerMs);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               kFastestPingMs);
    builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
    // Watches, event pages and exports come in pieces (Feed::kMostBytes); a state that is asked for
    // whole is bounded by model::Limits.
    builder.SetMaxSendMessageSize(-1);
    builder.experimental().SetInterceptorCreators(gate_.interceptors());
    if (!options_.socket.empty()) {
        auto lock = SocketLock::take(options_.socket);
        if (!lock.ok()) return lock.status();
        lock_ = *std::move(lock);
        ::unlink(options_.socket.c_str());
        builder.AddListeningPort("unix:" + options_.socket, grpc::InsecureServerCredentials());
        addresses.push_back("unix:" + options_.socket);
    }
    std::vector<int> ports;
    std::vector<std::string> hosts;
    if (absl::Status status = listenTcp(builder, ports, hosts); !status.ok()) return status;
    context_.emplace(Context{gate_, options_.backend, runs_ ? &*runs_ : nullptr,
                             feeds_ ? &*feeds_ : nullptr, jobList_, requests_, open_, workers_,
                             exports_, info(), options_.shutdown});
    services_.push_back(makeServerService(*context_));
    services_.push_back(makeJobsService(*context_));
    services_.push_back(makeWatchService(*context_));
    services_.push_back(makeRunsService(*context_));
    for (const auto& service : services_) builder.RegisterService(service.get());
    // The socket must never exist with another mode, not for a moment.
    const mode_t before = ::umask(0177);
    server_ = builder.BuildAndStart();
    ::umask(before);
    if (!server_) return absl::UnavailableError("the addresses could not be bound; choose others");
    for (size_t i = 0; i < hosts.size(); ++i)
        addresses.push_back(hosts[i] + ":" + std::to_string(ports[i]));
    return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Server>> Server::start(ServerOptions options, const Clock& clock) {
    std::string token;
    if (!options.listen.empty()) {
        if (options.tokenFile.empty())
            return absl::InvalidArgumentError(
                "listening on TCP needs a token; name a file for it with --token-file (it is made "
                "if it is not there)");
        auto loaded = loadOrCreateToken(options.tokenFile);
        if (!loaded.ok()) return loaded.status();
        token = *std::move(loaded);
    }
    if (options.socket.size() > 107)
        return absl::InvalidArgumentError("the socket's path has " +
                                          std::to_string(options.socket.size()) +
                                          " bytes, 107 are possible; choose a shorter --socket");
    auto impl = std::make_unique<Impl>(std::move(options), std::move(token), clock);
    if (absl::Status status = impl->serve(); !status.ok()) return status;
    return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;
const std::vector<std::string>& Server::addresses() const {
    return impl_->addresses;
}

}  // namespace bulkhead::service
