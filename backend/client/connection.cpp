// SPDX-License-Identifier: Apache-2.0
#include "backend/client/connection.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/support/channel_arguments.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>

#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "backend/access/certificates.h"
#include "backend/proto/convert.h"
#include "backend/proto/grpc_log.h"
#include "backend/proto/state_form.h"

namespace bulkhead::client {
namespace {

constexpr int kFirstBackoffMs = 200;
constexpr int kMaxBackoffMs = 1000;
/// A daemon on a busy machine may take a while to say the first word.
constexpr int kConnectMs = 10'000;
/// One of several: another may be the one that answers.
constexpr int kConnectOfListMs = 1000;
constexpr int kKeepaliveMs = 10000;
constexpr int kKeepaliveAnswerMs = 5000;
constexpr int kMaxMessageBytes = 256 << 20;

/// gRPC's own log lines would land in the middle of a person's terminal; every failure reaches the
/// caller as a Failure anyway.
void quietGrpc() {
    static std::once_flag once;
    std::call_once(once, [] { proto::quietGrpcLog(); });
}

Result<std::string> readToken(const std::string& file) {
    const std::string title = "Cannot use the token file";
    // Without waiting for the writer of a pipe.
    const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return Failure{FailureCode::kToken, title, file + ": " + std::strerror(errno) + ".",
                       "Name a token file you can read.", false};
    struct stat info {};
    char text[1024];
    const bool isFile = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
    const ssize_t n = isFile ? ::read(fd, text, sizeof text) : -1;
    ::close(fd);
    if (n < 0)
        return Failure{FailureCode::kToken, title, file + " is no file that can be read.",
                       "Name the token file the daemon was started with.", false};
    if ((info.st_mode & 077) != 0)
        return Failure{FailureCode::kToken, title, file + " can be read by others.",
                       "Run chmod 600 " + file + ".", false};
    std::string token(text, static_cast<size_t>(n));
    token = token.substr(0, token.find_first_of("\r\n"));
    for (const char c : token)
        if (c < '!' || c > '~') token.clear();
    if (token.empty())
        return Failure{FailureCode::kToken, title, file + " holds no token.",
                       "Its first line must be the token, without spaces.", false};
    return token;
}

/// AF_INET or AF_INET6 of "ip:port"; 0: its host is a name.
int familyOf(const std::string& target) {
    const std::string host = target.substr(0, target.rfind(':'));
    in6_addr any{};
    if (::inet_pton(AF_INET, host.c_str(), &any) == 1) return AF_INET;
    const bool brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
    return brackets && ::inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), &any) == 1
               ? AF_INET6
               : 0;
}

/// Empty when the target can be dialled, else what is wrong with it.
std::string wrongWithTarget(const std::string& target) {
    if (target.rfind("unix:", 0) == 0) {
        const std::string path = target.substr(5);
        if (path.empty()) return "names no socket";
        if (path.size() >= 108) return "is longer than a socket's path may be (107 bytes)";
        if (path.find(',') != path.npos)
            return "has a comma, at which gRPC ends a socket's path; choose a folder without one";
        return "";
    }
    const std::vector<std::string> each = absl::StrSplit(target, ',');
    if (each.size() > 1) {
        for (const std::string& one : each) {
            if (std::string wrong = wrongWithTarget(one); !wrong.empty()) return wrong;
            if (familyOf(one) == 0 || familyOf(one) != familyOf(each[0]))
                return "lists controllers by other than IP addresses of one kind; a name that has "
                       "several addresses needs no list";
        }
        return "";
    }
    const size_t colon = target.rfind(':');
    if (colon == std::string::npos || colon == 0) return "is neither unix:/path nor host:port";
    const std::string port = target.substr(colon + 1);
    if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != port.npos ||
        std::stoi(port) > 65535 || std::stoi(port) == 0)
        return "has no port between 1 and 65535";
    return "";
}

bool isList(const std::string& target) {
    return target.rfind("unix:", 0) != 0 && target.find(',') != target.npos;
}

/// gRPC reads a socket's path as a part of a URI, and tries what a list has in its order.
std::string dialled(const std::string& target) {
    if (isList(target))
        return (familyOf(target.substr(0, target.find(','))) == AF_INET ? "ipv4:" : "ipv6:") +
               target;
    if (target.rfind("unix:", 0) != 0) return target;
    return absl::StrReplaceAll(target, {{"%", "%25"}, {"?", "%3F"}, {"#", "%23"}});
}

bool isOfThisMachine(const std::string& target) {
    if (isList(target)) {
        const size_t comma = target.find(',');
        return isOfThisMachine(target.substr(0, comma)) &&
               isOfThisMachine(target.substr(comma + 1));
    }
    const std::string host = target.substr(0, target.rfind(':'));
    // A name that begins with "127." can be anybody's.
    in_addr v4{};
    const bool loopback =
        ::inet_pton(AF_INET, host.c_str(), &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127;
    return target.rfind("unix:", 0) == 0 || host == "localhost" || host == "[::1]" || loopback;
}

/// Plain text, or TLS with the certificates in `folder`.
Result<std::shared_ptr<grpc::ChannelCredentials>> credentialsOf(const Options& options) {
    if (options.certs.empty() || options.target.rfind("unix:", 0) == 0)
        return grpc::InsecureChannelCredentials();
    namespace fs = std::filesystem;
    namespace tls = grpc::experimental;
    const fs::path folder = options.certs;
    const std::string title = "Cannot use the certificates";
    const bool own = fs::exists(folder / "cert.pem");
    const auto checked = own ? access::checkCertificates(
                                   folder, std::chrono::duration_cast<std::chrono::seconds>(
                                               std::chrono::system_clock::now().time_since_epoch())
                                               .count())
                             : access::readCertificate(folder / "ca.pem");
    if (!checked.ok())
        return localFailure(FailureCode::kToken, title, std::string(checked.status().message()));
    std::shared_ptr<tls::CertificateProviderInterface> provider;
    constexpr unsigned kReadAgainS = 1;
    if (own)
        provider = std::make_shared<tls::FileWatcherCertificateProvider>(
            (folder / "key.pem").string(), (folder / "cert.pem").string(),
            (folder / "ca.pem").string(), kReadAgainS);
    else
        provider = std::make_shared<tls::FileWatcherCertificateProvider>(
            (folder / "ca.pem").string(), kReadAgainS);
    tls::TlsChannelCredentialsOptions wanted;
    wanted.set_certificate_provider(std::move(provider));
    wanted.watch_root_certs();
    if (own) wanted.watch_identity_key_cert_pairs();
    return tls::TlsCredentials(wanted);
}

std::string freshRequestId() {
    std::random_device device;
    char text[40];
    std::snprintf(text, sizeof text, "%08x%08x%08x", device(), device(), device());
    return text;
}

}  // namespace

Result<std::unique_ptr<Connection>> Connection::open(const Options& options) {
    if (const std::string wrong = wrongWithTarget(options.target); !wrong.empty())
        return Failure{
            FailureCode::kInvalid, "Cannot connect",
            "The address \"" + options.target + "\" " + wrong + ".",
            "Write unix:/path/to/socket, host:port, or ip:port of each controller that may "
            "lead, with commas between.",
            false};
    std::string token;
    if (!options.tokenFile.empty()) {
        auto read = readToken(options.tokenFile);
        if (!read.ok()) return read.failure();
        token = std::move(read).value();
    }
    if (!token.empty() && options.certs.empty() && !options.insecure &&
        !isOfThisMachine(options.target))
        return Failure{FailureCode::kToken, "Cannot connect",
                       "Without TLS the token would go to " + options.target +
                           " in plain text, for whoever listens in.",
                       "Name a folder with the daemon's ca.pem (--certs), or say --insecure.",
                       false};
    quietGrpc();
    auto credentials = credentialsOf(options);
    if (!credentials.ok()) return credentials.failure();
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstBackoffMs);
    // So gRPC 1.51 calls the time that an attempt to connect has at least.
    args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
                isList(options.target) ? kConnectOfListMs : kConnectMs);
    args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kMaxBackoffMs);
    args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveAnswerMs);
    args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 0);
    args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    // Two clients of one program must not share a broken connection's state.
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    args.SetMaxReceiveMessageSize(kMaxMessageBytes);
    // A daemon compresses nothing, and gRPC would inflate it before it looks at the size.
    args.SetInt(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
    args.SetInt(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE);
    auto channel = grpc::CreateCustomChannel(dialled(options.target), credentials.value(), args);
    return std::make_unique<Connection>(options, std::move(token), std::move(channel));
}

Connection::Connection(Options o, std::string token, std::shared_ptr<grpc::Channel> channel)
    : options(std::move(o)),
      server(v1::Server::NewStub(channel)),
      jobs(v1::Jobs::NewStub(channel)),
      watch(v1::Watch::NewStub(channel)),
      runs(v1::Runs::NewStub(channel)),
      token_(std::move(token)),
      channel_(std::move(channel)) {}

void Connection::prepare(grpc::ClientContext& context) const {
    context.AddMetadata("bulkhead-api", std::to_string(proto::kApiVersion));
    if (!token_.empty()) context.AddMetadata("authorization", "Bearer " + token_);
}

void Connection::prepare(grpc::ClientContext& context, std::chrono::milliseconds deadline) const {
    prepare(context);
    context.set_deadline(std::chrono::system_clock::now() + deadline);
}

void Connection::redial() {
    grpc::experimental::ChannelResetConnectionBackoff(channel_.get());
}

v1::Mutation Connection::mutation(const Mutation& mutation) const {
    v1::Mutation out;
    out.set_request_id(mutation.requestId.empty() ? freshRequestId() : mutation.requestId);
    out.set_expected_revision(mutation.expectedRevision);
    out.set_by(options.who);
    return out;
}

void Connection::began(grpc::ClientContext* context) {
    const MutexLock lock(mutex_);
    pending_.insert(context);
    if (draining_) context->TryCancel();
}

void Connection::ended(grpc::ClientContext* context) {
    const MutexLock lock(mutex_);
    pending_.erase(context);
}

void Connection::hold() {
    const MutexLock lock(mutex_);
    ++holds_;
}

void Connection::release() {
    const MutexLock lock(mutex_);
    if (--holds_ == 0) idle_.notify_all();
}

void Connection::drain() {
    MutexLock lock(mutex_);
    draining_ = true;
    for (grpc::ClientContext* context : pending_) context->TryCancel();
    idle_.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return holds_ == 0; });
}

Result<model::ServerInfo> Connection::check(const v1::ServerInfo& message) {
    auto info = proto::fromMessage<model::ServerInfo>(message);
    const std::string title = "Cannot work with this daemon";
    if (!info.ok())
        return Failure{FailureCode::kVersion, title, std::string(info.status().message()) + ".",
                       "Use a console and a daemon of the same version.", false};
    if (info->apiVersion != proto::kApiVersion)
        return Failure{FailureCode::kVersion, title,
                       "It speaks API version " + std::to_string(info->apiVersion) +
                           ", this program version " + std::to_string(proto::kApiVersion) + ".",
                       "Use a console and a daemon of the same version.", false};
    return *std::move(info);
}

}  // namespace bulkhead::client
