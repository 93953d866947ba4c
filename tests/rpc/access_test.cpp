// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/impl/client_unary_call.h>
#include <grpcpp/support/sync_stream.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "backend/front/server_sockets.h"
#include "backend/service/gate.h"
#include "bulkhead/v1/service.grpc.pb.h"
#include "tests/front/silent_callers.h"
#include "tests/rpc/rpc_fixture.h"

namespace bulkhead::testing {
namespace {

using client::FailureCode;
using ::testing::HasSubstr;

class AccessTest : public RpcTest {
  protected:
    client::Result<model::ServerInfo> greet(const std::string& tokenFile) {
        const auto client = connect(tokenFile);
        return await<model::ServerInfo>([&](auto reply) { client->handshake(reply); });
    }
    std::string write(const std::string& name, const std::string& text, mode_t mode) {
        const std::string path = dir_ + "/" + name;
        std::ofstream(path) << text;
        ::chmod(path.c_str(), mode);
        return path;
    }
};

TEST_F(AccessTest, TheSocketIsForItsOwnerOnly) {
    serve(unixOptions());
    struct stat info {};
    ASSERT_EQ(::stat(socket().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(AccessTest, TcpWithTheTokenWorksAndTheTokenFileIsPrivate) {
    serve(tcpOptions());
    struct stat info {};
    ASSERT_EQ(::stat(tokenFile().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
    const auto greeted = greet(tokenFile());
    EXPECT_TRUE(greeted.ok()) << greeted.failure().cause;
}

TEST_F(AccessTest, TcpWithoutATokenIsRefused) {
    serve(tcpOptions());
    const auto greeted = greet("");
    ASSERT_FALSE(greeted.ok());
    EXPECT_EQ(greeted.failure().code, FailureCode::kToken);
    EXPECT_THAT(greeted.failure().cause, HasSubstr("none was sent"));
    EXPECT_THAT(greeted.failure().remedy, HasSubstr("--token-file"));
}

TEST_F(AccessTest, TcpWithAWrongTokenIsRefusedOnStreamsToo) {
    serve(tcpOptions());
    const std::string wrong = write("wrong", "0123456789abcdef0123456789abcdef\n", 0600);
    EXPECT_EQ(greet(wrong).failure().code, FailureCode::kToken);
    auto stub = v1::Watch::NewStub(
        grpc::CreateChannel(server_->addresses().front(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    v1::WatchRequest request;
    request.set_job("demo");
    auto reader = stub->Watch(&context, request);
    v1::WatchUpdate update;
    EXPECT_FALSE(reader->Read(&update));
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

/// Calls a method by its wire form, with an empty request.
grpc::Status callRaw(grpc::Channel& channel, const char* name, const std::string& token,
                     bool streaming) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kForever);
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    const grpc::internal::RpcMethod method(name, streaming
                                                     ? grpc::internal::RpcMethod::BIDI_STREAMING
                                                     : grpc::internal::RpcMethod::NORMAL_RPC);
    v1::GetInfoRequest request;
    v1::GetInfoRequest response;
    if (!streaming)
        return grpc::internal::BlockingUnaryCall(&channel, method, &context, request, &response);
    using Stream = grpc::ClientReaderWriter<v1::GetInfoRequest, v1::GetInfoRequest>;
    const std::unique_ptr<Stream> stream(
        grpc::internal::ClientReaderWriterFactory<v1::GetInfoRequest, v1::GetInfoRequest>::Create(
            &channel, method, &context));
    if (token.empty()) {
        // The caller goes on waiting for an answer: the refusal must reach it all the same.
        EXPECT_FALSE(stream->Read(&response));
        return stream->Finish();
    }
    EXPECT_TRUE(stream->Write(request));
    EXPECT_TRUE(stream->Read(&response));
    stream->WritesDone();
    return stream->Finish();
}

TEST_F(AccessTest, HealthAndReflectionWantTheTokenTooAndSaySo) {
    serve(tcpOptions());
    const auto channel =
        grpc::CreateChannel(server_->addresses().front(), grpc::InsecureChannelCredentials());
    const auto token = service::loadOrCreateToken(tokenFile());
    ASSERT_TRUE(token.ok());
    const std::pair<const char*, bool> methods[] = {
        {"/grpc.health.v1.Health/Check", false},
        {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", true}};
    for (const auto& [method, streaming] : methods) {
        const grpc::Status none = callRaw(*channel, method, "", streaming);
        EXPECT_EQ(none.error_code(), grpc::StatusCode::UNAUTHENTICATED) << none.error_message();
        EXPECT_THAT(none.error_message(), HasSubstr("none was sent"));
        EXPECT_THAT(none.error_message(), HasSubstr("authorization: Bearer"));
        const grpc::Status shown = callRaw(*channel, method, *token, streaming);
        EXPECT_TRUE(shown.ok()) << method << ": " << shown.error_message();
    }
    const grpc::Status wrong =
        callRaw(*channel, "/grpc.health.v1.Health/Check", std::string(32, 'x'), false);
    EXPECT_EQ(wrong.error_code(), grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_THAT(wrong.error_message(), HasSubstr("not this daemon's"));
}

TEST_F(AccessTest, TcpIsNeverOpenedWithoutATokenFile) {
    auto options = tcpOptions();
    options.tokenFile.clear();
    const auto server = service::Server::start(options, clock_);
    ASSERT_EQ(server.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(server.status().message()), HasSubstr("--token-file"));
}

TEST_F(AccessTest, ATokenFileOthersCanReadIsRefusedAtBothEnds) {
    const std::string open = write("open", "0123456789abcdef0123456789abcdef\n", 0644);
    auto options = tcpOptions();
    options.tokenFile = open;
    const auto server = service::Server::start(options, clock_);
    ASSERT_FALSE(server.ok());
    EXPECT_THAT(std::string(server.status().message()), HasSubstr("chmod 600"));
    client::Options clientOptions;
    clientOptions.target = "127.0.0.1:1";
    clientOptions.tokenFile = open;
    const auto client = client::Client::open(clientOptions);
    ASSERT_FALSE(client.ok());
    EXPECT_EQ(client.failure().code, FailureCode::kToken);
    EXPECT_THAT(client.failure().remedy, HasSubstr("chmod 600"));
}

TEST_F(AccessTest, ATokenIsNotWaitedForAtAPipe) {
    client::Options options;
    options.target = "127.0.0.1:1";
    options.tokenFile = dir_ + "/pipe";
    ASSERT_EQ(::mkfifo(options.tokenFile.c_str(), 0600), 0);
    const auto client = client::Client::open(options);
    ASSERT_FALSE(client.ok());
    EXPECT_THAT(client.failure().cause, HasSubstr("no file that can be read"));
}

TEST_F(AccessTest, APortInUseIsNamed) {
    serve(tcpOptions());
    const auto second = service::Server::start(tcpOptions(server_->addresses().front()), clock_);
    ASSERT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
    EXPECT_THAT(std::string(second.status().message()), HasSubstr(server_->addresses().front()));
}

TEST_F(AccessTest, ASecondDaemonOnOneSocketIsRefusedAndTheFirstGoesOn) {
    serve(unixOptions());
    const auto second = service::Server::start(unixOptions(), clock_);
    ASSERT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
    EXPECT_THAT(std::string(second.status().message()), HasSubstr(socket()));
    EXPECT_TRUE(greet("").ok());
}

TEST_F(AccessTest, ASocketLeftByAKilledDaemonIsTakenOver) {
    std::ofstream(socket()) << "";
    serve(unixOptions());
    EXPECT_TRUE(greet("").ok());
}

TEST_F(AccessTest, ASocketsPathMayHaveWhatAUriHasForItself) {
    service::ServerOptions options = unixOptions();
    options.socket = dir_ + "/50%20#1 of? ü:.sock";
    serve(std::move(options));
    EXPECT_TRUE(greet("").ok());
}

TEST_F(AccessTest, ACallerOfAnotherApiVersionIsRefused) {
    serve(unixOptions());
    auto stub = v1::Server::NewStub(
        grpc::CreateChannel("unix:" + socket(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.AddMetadata("bulkhead-api", "2");
    v1::ServerInfo info;
    const grpc::Status status = stub->GetInfo(&context, {}, &info);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_THAT(status.error_message(), HasSubstr("API version 1"));
    grpc::ClientContext silent;
    EXPECT_TRUE(stub->GetInfo(&silent, {}, &info).ok());
}

/// Answers GetInfo as a daemon of the future would.
class FutureServer final : public v1::Server::Service {
    grpc::Status GetInfo(grpc::ServerContext*, const v1::GetInfoRequest*,
                         v1::ServerInfo* response) override {
        response->set_api_version(7);
        return grpc::Status::OK;
    }
};

TEST_F(AccessTest, AClientDoesNotWorkWithADaemonOfAnotherVersion) {
    FutureServer service;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + socket(), grpc::InsecureServerCredentials());
    builder.RegisterService(&service);
    const auto server = builder.BuildAndStart();
    const auto client = connect();
    const auto info = await<model::ServerInfo>([&](auto reply) { client->handshake(reply); });
    ASSERT_FALSE(info.ok());
    EXPECT_EQ(info.failure().code, FailureCode::kVersion);
    WatchLog log;
    const auto watch = client->watch({.job = "demo", .replay = ""}, log.handlers());
    ASSERT_TRUE(log.waitFor([](auto& l) { return !l.failures.empty(); }));
    EXPECT_EQ(log.failures[0].code, FailureCode::kVersion);
    EXPECT_FALSE(log.failures[0].retryable);
}

TEST(TargetTest, WhatIsNoAddressIsSaidAtOnce) {
    for (const char* bad :
         {"", "unix:", "unix:/a,b", "nowhere", "host:", "host:99999", "host:0", ":80"}) {
        client::Options options;
        options.target = bad;
        const auto client = client::Client::open(options);
        ASSERT_FALSE(client.ok()) << bad;
        EXPECT_EQ(client.failure().code, FailureCode::kInvalid);
    }
}

TEST_F(AccessTest, SilentConnectionsNeitherUseUpTheDescriptorsNorStay) {
    service::ServerOptions options = tcpOptions();
    options.socket = socket();
    serve(options);
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    rlimit few = before;
    few.rlim_cur = 200;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    // The callers live in a process of their own: the limit is the server's alone.
    const pid_t child = ::fork();
    if (child == 0) {
        ::setrlimit(RLIMIT_NOFILE, &before);
        SilentCallers callers(server_->addresses().back(), 200);
        // More than 100 at once, for want of descriptors; the others when they have said nothing.
        ::_exit(callers.closed(100) && callers.closed(200) ? 0 : 1);
    }
    for (bool ended = false; !ended;) {
        const auto local = greet("");
        EXPECT_TRUE(local.ok()) << local.failure().cause;
        int status = 0;
        ended = ::waitpid(child, &status, WNOHANG) == child;
        if (ended) {
            EXPECT_EQ(WEXITSTATUS(status), 0) << "not all of them were put out";
        }
    }
    client::Options remote;
    remote.target = server_->addresses().back();
    remote.tokenFile = tokenFile();
    remote.deadline = kForever;
    const auto client = client::Client::open(remote);
    ASSERT_TRUE(client.ok());
    const auto info =
        await<model::ServerInfo>([&](auto reply) { client.value()->handshake(reply); });
    EXPECT_TRUE(info.ok()) << "the TCP listener lives: " << info.failure().cause;
    ::setrlimit(RLIMIT_NOFILE, &before);
}

TEST(GateTest, SecretsCompareByContentAndLength) {
    EXPECT_TRUE(service::sameSecret("abc", "abc"));
    EXPECT_FALSE(service::sameSecret("abc", "abd"));
    EXPECT_FALSE(service::sameSecret("abcabc", "abc"));
    EXPECT_FALSE(service::sameSecret("", "abc"));
    EXPECT_FALSE(service::sameSecret("abc", ""));
}

}  // namespace
}  // namespace bulkhead::testing
