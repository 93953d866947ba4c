// SPDX-License-Identifier: Apache-2.0
#include <SQLiteCpp/SQLiteCpp.h>
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/impl/client_unary_call.h>
#include <grpcpp/support/sync_stream.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <future>
#include <set>
#include <thread>

#include "backend/access/access_list.h"
#include "backend/access/certificates.h"
#include "backend/common/digest.h"
#include "backend/common/file_system.h"
#include "bulkhead/v1/service.grpc.pb.h"
#include "tests/ftar/relay.h"
#include "tests/rpc/rpc_fixture.h"

namespace bulkhead::testing {
namespace {

using access::AccessList;
using access::Authority;
using access::Role;
using client::FailureCode;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class PrincipalsTest : public RpcTest {
  protected:
    PrincipalsTest() {
        for (const auto& [name, role, faults] : {std::tuple("viewer", Role::kViewer, false),
                                                 std::tuple("operator", Role::kOperator, false),
                                                 std::tuple("breaker", Role::kOperator, true),
                                                 std::tuple("admin", Role::kAdmin, false)})
            list_.put({name, role, faults, {sha256Hex(tokenOf(name))}, "", ""});
        keepList();
    }
    ~PrincipalsTest() override { server_.reset(); }

    static std::string tokenOf(const std::string& name) { return "the-token-of-" + name; }
    void keepList() {
        ASSERT_TRUE(writeDurably(diskFiles(), dir_ + "/access.toml", list_.text()).ok());
    }

    service::ServerOptions options() {
        if (audit_ == nullptr) {  // else a server uses it
            auto log = access::AuditLog::open(dir_ + "/audit.db");
            EXPECT_TRUE(log.ok()) << log.status();
            audit_ = *std::move(log);
        }
        service::ServerOptions out = tcpOptions();
        out.socket = socket();
        out.access = dir_ + "/access.toml";
        out.audit = audit_.get();
        return out;
    }
    std::string address() const { return server_->addresses().back(); }

    client::Result<model::ServerInfo> greet(const std::string& target, const std::string& tokenFile,
                                            const std::string& certs) {
        client::Options wanted;
        wanted.target = target;
        wanted.tokenFile = tokenFile;
        wanted.certs = certs;
        wanted.deadline = kForever;
        auto opened = client::Client::open(wanted);
        if (!opened.ok()) return opened.failure();
        auto client = std::move(opened).value();
        return await<model::ServerInfo>([&](auto reply) { client->handshake(reply); });
    }
    std::string tokenFileOf(const std::string& name) {
        const std::string path = dir_ + "/token-of-" + name;
        EXPECT_TRUE(writeDurably(diskFiles(), path, tokenOf(name) + "\n").ok());
        return path;
    }
    model::AuditPage audited() {
        const auto page =
            audit_->read({.fromSeq = 0, .limit = 10000, .newestFirst = false, .check = true});
        EXPECT_TRUE(page.ok()) << page.status();
        return *page;
    }
    /// Waits until the audit has an entry that `matches`.
    template <class Matches>
    bool awaitAudit(Matches matches) {
        const auto until = std::chrono::steady_clock::now() + kForever;
        while (std::chrono::steady_clock::now() < until) {
            for (const model::AuditEntry& entry : audited().entries)
                if (matches(entry)) return true;
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        return false;
    }

    AccessList list_;
    std::unique_ptr<access::AuditLog> audit_;
};

/// Calls a method by its wire form with an empty request.
grpc::StatusCode callEmpty(grpc::Channel& channel, const google::protobuf::MethodDescriptor& method,
                           const std::string& token) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kForever);
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    const std::string name = "/" + method.service()->full_name() + "/" + method.name();
    v1::GetInfoRequest empty;
    v1::GetInfoRequest response;
    if (!method.server_streaming()) {
        const grpc::internal::RpcMethod unary(name.c_str(), grpc::internal::RpcMethod::NORMAL_RPC);
        return grpc::internal::BlockingUnaryCall(&channel, unary, &context, empty, &response)
            .error_code();
    }
    const grpc::internal::RpcMethod stream(name.c_str(),
                                           grpc::internal::RpcMethod::SERVER_STREAMING);
    const std::unique_ptr<grpc::ClientReader<v1::GetInfoRequest>> reader(
        grpc::internal::ClientReaderFactory<v1::GetInfoRequest>::Create(&channel, stream, &context,
                                                                        empty));
    if (reader->Read(&response)) context.TryCancel();
    return reader->Finish().error_code();
}

TEST_F(PrincipalsTest, EveryCallIsAllowedToWhomItsMethodSaysAndToNobodyElse) {
    serve(options());
    const auto channel = grpc::CreateChannel(address(), grpc::InsecureChannelCredentials());
    const google::protobuf::FileDescriptor* file = v1::Mutation::descriptor()->file();
    std::set<const google::protobuf::Descriptor*> requests;
    int calls = 0;
    for (int i = 0; i < file->service_count(); ++i)
        for (int j = 0; j < file->service(i)->method_count(); ++j) {
            const auto& method = *file->service(i)->method(j);
            EXPECT_TRUE(requests.insert(method.input_type()).second) << method.full_name();
            const v1::Need need = method.options().GetExtension(v1::need);
            EXPECT_NE(need, v1::NEED_UNSPECIFIED) << method.full_name();
            const bool changes = method.input_type()->FindFieldByName("mutation") != nullptr;
            EXPECT_EQ(changes, need != v1::NEED_VIEWER && method.name() != "ReadAudit")
                << method.full_name();
            const std::pair<std::string, bool> callers[] = {
                {"viewer", need == v1::NEED_VIEWER},
                {"operator", need == v1::NEED_VIEWER || need == v1::NEED_OPERATOR},
                {"breaker", need != v1::NEED_ADMIN},
                {"admin", need != v1::NEED_FAULTS}};
            EXPECT_EQ(callEmpty(*channel, method, ""), grpc::StatusCode::UNAUTHENTICATED)
                << method.full_name();
            EXPECT_EQ(callEmpty(*channel, method, "nobody's-token-at-all"),
                      grpc::StatusCode::UNAUTHENTICATED)
                << method.full_name();
            for (const auto& [name, allowed] : callers) {
                const grpc::StatusCode code = callEmpty(*channel, method, tokenOf(name));
                EXPECT_EQ(code != grpc::StatusCode::PERMISSION_DENIED, allowed)
                    << method.full_name() << " by " << name << ": " << code;
                EXPECT_NE(code, grpc::StatusCode::UNAUTHENTICATED) << method.full_name();
                ++calls;
            }
        }
    EXPECT_GE(calls, 4 * 25);
    EXPECT_TRUE(backend_.calls().empty()) << "no empty request changes anything";
}

TEST_F(PrincipalsTest, WhoCallsIsToldAsWhomAndRecordedAsThat) {
    serve(options());
    const auto info = greet(address(), tokenFileOf("breaker"), "");
    ASSERT_TRUE(info.ok()) << info.failure().cause;
    EXPECT_EQ(info.value().principal, "breaker");
    EXPECT_EQ(info.value().role, "operator");
    EXPECT_TRUE(info.value().mayInject);
    EXPECT_FALSE(info.value().insecure);
    client::Options wanted;
    wanted.target = address();
    wanted.tokenFile = tokenFileOf("operator");
    wanted.who = "somebody-else@console";
    wanted.deadline = kForever;
    {
        const auto client = client::Client::open(wanted);
        const auto stopped = await<model::JobInfo>(
            [&](auto reply) { client.value()->stopJob("demo", true, {}, reply); });
        ASSERT_TRUE(stopped.ok()) << stopped.failure().cause;
        EXPECT_EQ(backend_.calls().back().by, "operator") << "not what the caller says";
        const auto refused =
            await<uint64_t>([&](auto reply) { client.value()->inject("demo", {}, {}, reply); });
        ASSERT_FALSE(refused.ok());
        EXPECT_EQ(refused.failure().code, FailureCode::kRefused);
        EXPECT_THAT(refused.failure().cause, HasSubstr("may not inject faults"));
        model::JobSpec planned;
        planned.faults = {"kill:replica=1@step=5"};
        const size_t before = backend_.calls().size();
        const auto start = await<model::JobInfo>(
            [&](auto reply) { client.value()->startJob(planned, {}, reply); });
        ASSERT_FALSE(start.ok());
        EXPECT_THAT(start.failure().cause, HasSubstr("may not inject faults"));
        EXPECT_EQ(backend_.calls().size(), before);
    }
    EXPECT_TRUE(awaitAudit([](const model::AuditEntry& e) {
        return e.call == "Jobs/StopJob" && e.principal == "operator" && e.via == "token" &&
               e.by == "somebody-else@console" && e.object == "demo" && e.outcome == "ok" &&
               e.message.starts_with("job demo at revision ");
    }));
    EXPECT_TRUE(awaitAudit([](const model::AuditEntry& e) {
        return e.call == "Jobs/InjectFault" && e.principal == "operator" &&
               e.outcome == "PERMISSION_DENIED";
    }));
    EXPECT_TRUE(awaitAudit([](const model::AuditEntry& e) {
        return e.call == "sign in" && e.principal == "breaker";
    }));
    EXPECT_EQ(audited().brokenAt, 0u);
    for (const model::AuditEntry& e : audited().entries)
        EXPECT_THAT(e.request + e.message, ::testing::Not(HasSubstr("the-token-of")));
}

TEST_F(PrincipalsTest, WhoIsRemovedOrExpiredIsRefusedWithoutARestart) {
    serve(options());
    EXPECT_TRUE(greet(address(), tokenFileOf("viewer"), "").ok());
    list_.remove("viewer");
    access::Principal late = *list_.named("admin");
    late.expires = "2020-01-01";
    list_.put(late);
    keepList();
    const auto removed = greet(address(), tokenFileOf("viewer"), "");
    ASSERT_FALSE(removed.ok());
    EXPECT_EQ(removed.failure().code, FailureCode::kToken);
    const auto expired = greet(address(), tokenFileOf("admin"), "");
    ASSERT_FALSE(expired.ok());
    EXPECT_THAT(expired.failure().cause, HasSubstr("ended on 2020-01-01"));
    EXPECT_TRUE(greet(address(), tokenFileOf("operator"), "").ok());
}

TEST_F(PrincipalsTest, WhoIsRemovedIsToldNothingMoreByWhatHeWatches) {
    serve(options());
    client::Options wanted;
    wanted.target = address();
    wanted.tokenFile = tokenFileOf("viewer");
    wanted.deadline = kForever;
    const auto client = client::Client::open(wanted);
    ASSERT_TRUE(client.ok());
    WatchLog log;
    const auto watch = client.value()->watch({.job = "demo", .replay = ""}, log.handlers());
    ASSERT_TRUE(log.waitFor([](auto& l) { return l.snapshots == 1; }));
    list_.remove("viewer");
    keepList();
    const auto until = std::chrono::steady_clock::now() + kForever;
    bool ended = false;
    while (!ended && std::chrono::steady_clock::now() < until) {
        backend_.emit("demo", model::JobPhaseChanged{model::JobPhase::kTraining, "goes on"});
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        log.waitFor([&](auto& l) { return ended = !l.failures.empty(), true; });
    }
    ASSERT_TRUE(ended);
    EXPECT_EQ(log.failures[0].code, FailureCode::kToken);
    EXPECT_TRUE(awaitAudit([](const model::AuditEntry& e) {
        return e.call == "Watch/Watch" && e.outcome == "UNAUTHENTICATED";
    }));
}

TEST_F(PrincipalsTest, WhatIsDoneWhileTheAuditCannotBeWrittenIsInItLater) {
    serve(options());
    const auto client = connect(tokenFileOf("operator"));
    const auto order = [&](bool checkpoint) {
        return await<model::JobInfo>(
                   [&](auto reply) { client->stopJob("demo", checkpoint, {}, reply); })
            .ok();
    };
    {
        SQLite::Database other(dir_ + "/audit.db", SQLite::OPEN_READWRITE);
        other.exec("BEGIN IMMEDIATE");
        for (int i = 0; i < 3; ++i) EXPECT_TRUE(order(true)) << "an audit stops nobody";
        other.exec("ROLLBACK");
    }
    int stops = 0;
    EXPECT_TRUE(awaitAudit([&](const model::AuditEntry& e) {
        if (e.seq == 1) stops = 0;
        stops += e.call == "Jobs/StopJob" && e.outcome == "ok" ? 1 : 0;
        return stops == 3;
    }));
    EXPECT_EQ(audited().brokenAt, 0u);
}

TEST_F(PrincipalsTest, AFloodOfRefusalsDoesNotFillTheAudit) {
    serve(options());
    const auto channel = grpc::CreateChannel(address(), grpc::InsecureChannelCredentials());
    const auto& method = *v1::Mutation::descriptor()->file()->service(0)->method(0);
    constexpr int kCalls = 500;
    for (int refused = 0; refused < kCalls;) {
        const auto code = callEmpty(*channel, method, "guess-number-" + std::to_string(refused));
        refused += code == grpc::StatusCode::UNAUTHENTICATED ? 1 : 0;
        // A connection with so many refusals is closed, and its client makes another.
        ASSERT_TRUE(code == grpc::StatusCode::UNAUTHENTICATED ||
                    code == grpc::StatusCode::UNAVAILABLE)
            << code;
    }
    uint64_t known = 0;
    const auto whole = [&] {
        known = 0;
        for (const model::AuditEntry& e : audited().entries) known += 1 + e.repeated;
        return known >= kCalls;
    };
    // The number of those that were not kept comes with the next one that is.
    const auto until = std::chrono::steady_clock::now() + kForever;
    int more = 0;
    for (; !whole() && std::chrono::steady_clock::now() < until; ++more)
        callEmpty(*channel, method, "one more");
    EXPECT_GE(known, static_cast<uint64_t>(kCalls));
    EXPECT_LT(audited().entries.size(), 100u);
}

TEST_F(PrincipalsTest, AStrangerThatSendsMuchIsPutOutAndTheAuditKnowsItsPeer) {
    serve(options());
    const auto ask = [&](const std::string& token, size_t bytes) {
        grpc::ChannelArguments own;
        own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
        const auto channel =
            grpc::CreateCustomChannel(address(), grpc::InsecureChannelCredentials(), own);
        grpc::ClientContext context;
        context.set_deadline(std::chrono::system_clock::now() + kForever);
        context.AddMetadata("authorization", "Bearer " + token);
        v1::GetInfoRequest hello;
        v1::ServerInfo info;
        if (const auto greeted = v1::Server::NewStub(channel)->GetInfo(&context, hello, &info);
            bytes == 0 || !greeted.ok())
            return greeted.error_code();
        grpc::ClientContext second;
        second.AddMetadata("authorization", "Bearer " + token);
        v1::StartJobRequest request;
        request.mutable_text()->set_text("nonsense = 1\n#" + std::string(bytes, 'x'));
        v1::JobInfo response;
        return v1::Jobs::NewStub(channel)->StartJob(&second, request, &response).error_code();
    };
    EXPECT_EQ(ask(tokenOf("operator"), 900'000), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(ask("nobody's-token-at-all", 0), grpc::StatusCode::UNAUTHENTICATED);
    // Small settings of its window without end, by hand: no program of gRPC's would.
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port =
        htons(static_cast<uint16_t>(std::stoi(address().substr(address().rfind(':') + 1))));
    ASSERT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
    std::string flood("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
    for (int i = 0; i < 10'000; ++i) flood.append("\0\0\4\x8\0\0\0\0\0\0\0\0\1", 13);
    for (ssize_t n = 1; n > 0;)
        n = ::send(fd, flood.data(), flood.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    pollfd end{fd, POLLRDHUP, 0};
    EXPECT_EQ(::poll(&end, 1, static_cast<int>(std::chrono::milliseconds(kForever).count())), 1);
    ::close(fd);
    EXPECT_TRUE(awaitAudit([](const model::AuditEntry& e) {
        return e.call == "connect" && e.outcome == "UNAUTHENTICATED" &&
               e.peer.starts_with("ipv4:127.0.0.1:") &&
               e.message.find("had sent") != e.message.npos;
    }));
}

/// 20 MB of it are some 20 KB on the network.
TEST_F(PrincipalsTest, ACompressedRequestIsRefusedBeforeItIsInflated) {
    serve(options());
    const auto jobs =
        v1::Jobs::NewStub(grpc::CreateChannel(address(), grpc::InsecureChannelCredentials()));
    const auto refused = [&](grpc_compression_algorithm algorithm, size_t bytes) {
        grpc::ClientContext context;
        context.set_deadline(std::chrono::system_clock::now() + kForever);
        context.set_compression_algorithm(algorithm);
        context.AddMetadata("authorization", "Bearer " + tokenOf("operator"));
        v1::StartJobRequest request;
        request.mutable_text()->set_text("nonsense = 1\n#" + std::string(bytes, 'x'));
        v1::JobInfo job;
        return jobs->StartJob(&context, request, &job).error_code();
    };
    EXPECT_EQ(refused(GRPC_COMPRESS_NONE, 20'000), grpc::StatusCode::INVALID_ARGUMENT);
    for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE})
        for (const size_t bytes : {20'000, 20'000'000})
            EXPECT_EQ(refused(algorithm, bytes), grpc::StatusCode::UNIMPLEMENTED) << bytes;
}

class TlsTest : public PrincipalsTest {
  protected:
    TlsTest() {
        list_.put({"anna", Role::kOperator, true, {}, "", ""});
        keepList();
        auto made = Authority::init(dir_ + "/authority", "Test authority", now());
        EXPECT_TRUE(made.ok()) << made.status();
        authority_.emplace(*made);
        issue(*authority_, "daemon", {"127.0.0.1"}, "daemon");
        issue(*authority_, "anna", {}, "anna");
        issue(*authority_, "stranger", {}, "stranger");
        fs::create_directory(dir_ + "/ca");
        fs::copy_file(dir_ + "/authority/ca.pem", dir_ + "/ca/ca.pem");
    }
    int64_t now() const { return clock_.unixNs() / kSecond; }
    void issue(const Authority& by, const std::string& name, const std::vector<std::string>& hosts,
               const std::string& folder) {
        const auto made = by.issue(name, hosts, 30, now(), dir_ + "/" + folder);
        EXPECT_TRUE(made.ok()) << made.status();
    }
    void serveTls() {
        service::ServerOptions wanted = options();
        wanted.certs = dir_ + "/daemon";
        serve(std::move(wanted));
    }
    client::Failure refusal(const std::string& certs, const std::string& tokenFile = "") {
        const auto info = greet(address(), tokenFile, certs.empty() ? "" : dir_ + "/" + certs);
        EXPECT_FALSE(info.ok()) << certs;
        return info.ok() ? client::Failure{} : info.failure();
    }
    std::optional<Authority> authority_;
};

TEST_F(TlsTest, ACertificateIsWhoeverTheAccessFileSays) {
    serveTls();
    const auto anna = greet(address(), "", dir_ + "/anna");
    ASSERT_TRUE(anna.ok()) << anna.failure().cause;
    EXPECT_EQ(anna.value().principal, "anna");
    EXPECT_GT(anna.value().certificateEndsNs, clock_.unixNs());
    EXPECT_THAT(refusal("stranger").cause, HasSubstr("names no \"stranger\""));
    EXPECT_THAT(refusal("ca").cause, HasSubstr("none was sent"));
    const auto token = greet(address(), tokenFileOf("viewer"), dir_ + "/ca");
    ASSERT_TRUE(token.ok()) << token.failure().cause;
    EXPECT_EQ(token.value().principal, "viewer");
    EXPECT_EQ(greet("unix:" + socket(), "", "").value().role, "admin");
}

TEST_F(TlsTest, NeitherEndWorksWithAStrangerAndEachSaysWhy) {
    serveTls();
    EXPECT_THAT(refusal("").remedy, HasSubstr("--certs"));
    const auto others = Authority::init(dir_ + "/others", "Test authority", now());
    issue(*others, "anna", {}, "forged");
    EXPECT_EQ(refusal("forged").code, FailureCode::kToken);
    EXPECT_THAT(refusal("forged").cause, HasSubstr("does not vouch for"));
    // Trusts the daemon, but shows what the other authority issued.
    fs::copy_file(dir_ + "/authority/ca.pem", dir_ + "/forged/both.pem");
    const std::string both = *readAtMost(dir_ + "/forged/both.pem", 1 << 20) +
                             *readAtMost(dir_ + "/forged/ca.pem", 1 << 20);
    ASSERT_TRUE(writeDurably(diskFiles(), dir_ + "/forged/ca.pem", both).ok());
    EXPECT_FALSE(greet(address(), "", dir_ + "/forged").ok());
    // A person's certificate is no daemon's.
    service::ServerOptions wanted = options();
    wanted.certs = dir_ + "/anna";
    wanted.socket.clear();
    const auto server = service::Server::start(wanted, clock_);
    ASSERT_FALSE(server.ok());
    EXPECT_THAT(std::string(server.status().message()), HasSubstr("--host"));
}

TEST_F(TlsTest, ACertificateForAnotherHostIsRefused) {
    fs::remove_all(dir_ + "/daemon");
    issue(*authority_, "daemon", {"other.example"}, "daemon");
    serveTls();
    const auto info = greet(address(), "", dir_ + "/anna");
    ASSERT_FALSE(info.ok());
    EXPECT_EQ(info.failure().code, FailureCode::kToken) << info.failure().cause;
}

TEST_F(TlsTest, ARevokedCertificateIsRefusedWithoutARestart) {
    serveTls();
    EXPECT_TRUE(greet(address(), "", dir_ + "/anna").ok());
    ASSERT_TRUE(authority_->revoke("anna", now()).ok());
    fs::copy_file(dir_ + "/authority/crl.pem", dir_ + "/daemon/crl.pem");
    EXPECT_THAT(refusal("anna").cause, HasSubstr("was revoked"));
}

/// The time of this machine, and so much more.
class LaterClock final : public Clock {
  public:
    MonoNs now() const override { return clock_.now(); }
    int64_t unixNs() const override { return clock_.unixNs() + later_; }
    void advance(int64_t days) { later_ += days * 24 * 3600 * kSecond; }

  private:
    SystemClock clock_;
    std::atomic<int64_t> later_{0};
};

TEST_F(TlsTest, ACertificateThatEndsMeanwhileCountsNoMoreOnAnOpenConnection) {
    LaterClock clock;
    service::ServerOptions wanted = options();
    wanted.certs = dir_ + "/daemon";
    auto server = service::Server::start(std::move(wanted), clock);
    ASSERT_TRUE(server.ok()) << server.status();
    client::Options anna;
    anna.target = (*server)->addresses().back();
    anna.certs = dir_ + "/anna";
    anna.deadline = kForever;
    const auto client = client::Client::open(anna);
    ASSERT_TRUE(client.ok());
    const auto jobs = [&] {
        return await<std::vector<model::JobInfo>>(
            [&](auto reply) { client.value()->listJobs(reply); });
    };
    EXPECT_TRUE(jobs().ok());
    clock.advance(29);
    EXPECT_TRUE(jobs().ok()) << "it is valid for 30 days";
    clock.advance(2);
    const auto late = jobs();
    ASSERT_FALSE(late.ok());
    EXPECT_EQ(late.failure().code, FailureCode::kToken);
    EXPECT_THAT(late.failure().cause, HasSubstr("The certificate of anna has ended"));
}

/// Such a one lets a connection in and takes its time to say the first word.
TEST_F(PrincipalsTest, ABusyDaemonIsWaitedFor) {
    serve(options());
    runtime::testing::Relay busy(address());
    auto info = std::async(std::launch::async,
                           [&] { return greet(busy.address(), tokenFileOf("viewer"), ""); });
    EXPECT_EQ(info.wait_for(std::chrono::seconds(1)), std::future_status::timeout)
        << info.get().failure().cause;
    busy.allow(~uint64_t{0});
    const auto said = info.get();
    EXPECT_TRUE(said.ok()) << said.failure().cause;
}

TEST_F(TlsTest, AnOlderListOfRevokedCertificatesGivesNoneBack) {
    serveTls();
    issue(*authority_, "eve", {}, "eve");
    ASSERT_TRUE(authority_->revoke("eve", now() - 60).ok());
    fs::copy_file(dir_ + "/authority/crl.pem", dir_ + "/older.pem");
    ASSERT_TRUE(authority_->revoke("anna", now()).ok());
    fs::copy_file(dir_ + "/authority/crl.pem", dir_ + "/daemon/crl.pem");
    EXPECT_THAT(refusal("anna").cause, HasSubstr("was revoked"));
    fs::rename(dir_ + "/older.pem", dir_ + "/daemon/crl.pem");
    EXPECT_THAT(refusal("anna").cause, HasSubstr("was revoked"));
}

TEST_F(TlsTest, ARenewedCertificateIsTakenWithoutARestart) {
    serveTls();
    const auto first = greet(address(), "", dir_ + "/anna");
    ASSERT_TRUE(first.ok());
    // By another authority, so that only who trusts that one can connect.
    const auto others = Authority::init(dir_ + "/others", "Another", now());
    ASSERT_TRUE(others.ok());
    issue(*others, "daemon", {"127.0.0.1"}, "next");
    issue(*others, "anna", {}, "anna2");
    for (const char* file : {"ca.pem", "key.pem", "cert.pem"})
        fs::rename(dir_ + "/next/" + file, dir_ + "/daemon/" + file);
    const auto until = std::chrono::steady_clock::now() + kForever;
    auto info = greet(address(), "", dir_ + "/anna2");
    while (!info.ok() && std::chrono::steady_clock::now() < until)
        info = greet(address(), "", dir_ + "/anna2");
    ASSERT_TRUE(info.ok()) << info.failure().cause;
    EXPECT_EQ(info.value().principal, "anna");
}

TEST_F(TlsTest, PlainTextBeyondThisMachineIsRefusedAtBothEndsUnlessSaid) {
    service::ServerOptions wanted = options();
    wanted.listen = {"0.0.0.0:0"};
    const auto refused = service::Server::start(wanted, clock_);
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--insecure"));
    wanted.insecure = true;
    serve(wanted);
    const std::string port = address().substr(address().rfind(':') + 1);
    const auto info = greet("127.0.0.1:" + port, tokenFile(), "");
    ASSERT_TRUE(info.ok()) << info.failure().cause;
    EXPECT_TRUE(info.value().insecure);
    client::Options remote;
    remote.tokenFile = tokenFile();
    for (const char* host : {"10.0.0.7:", "127.attacker.example:", "127.0.0.1.example:"}) {
        remote.target = host + port;
        const auto client = client::Client::open(remote);
        ASSERT_FALSE(client.ok()) << host;
        EXPECT_THAT(client.failure().cause, HasSubstr("plain text"));
    }
    remote.insecure = true;
    EXPECT_TRUE(client::Client::open(remote).ok());
}

}  // namespace
}  // namespace bulkhead::testing
