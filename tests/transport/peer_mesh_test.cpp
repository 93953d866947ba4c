// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/peer_mesh.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <thread>

#include "backend/runtime/transport/address.h"

namespace bulkhead::runtime {
namespace {

/// A member that listens for two others, whose ends the test writes by hand.
class PeerMeshTest : public ::testing::Test {
  protected:
    PeerMeshTest() {
        spec_.group = "group";
        spec_.identity.epoch = 6;
        spec_.secret = Secret::ofText("epoch 6");
        spec_.choice = PeerChoice::kTcp;
        spec_.listenFd = listener_.get();
        spec_.timeout = 60 * kSecond;
        for (int32_t id = 0; id < 3; ++id) {
            MeshPeer peer;
            peer.id = id;
            peer.incarnation = 1;
            peer.host = "node";
            peer.data = localAddress(listener_.get());
            spec_.peers.push_back(peer);
        }
        context_.clock = &clock_;
        context_.abort = &abort_;
    }
    ~PeerMeshTest() override {
        abort_.raise(absl::CancelledError("the test is over"));
        if (member_.joinable()) member_.join();
    }

    void connect() {
        member_ = std::thread([this] {
            std::vector<MeshFailure> failures;
            mesh_ = PeerMesh::connect(spec_, context_, failures);
        });
    }
    PeerHello helloOf(int32_t id) const {
        PeerHello hello;
        hello.identity = spec_.identity;
        hello.identity.group = hashBytes(spec_.group.data(), spec_.group.size());
        hello.identity.members = 3;
        hello.from = id;
        hello.incarnation = 1;
        prove(hello, spec_.secret);
        return hello;
    }
    UniqueFd say(const PeerHello& hello) {
        UniqueFd fd = std::move(beginConnect(localAddress(listener_.get()), "").value());
        pollfd ready{fd.get(), POLLOUT, 0};
        ::poll(&ready, 1, -1);
        EXPECT_EQ(::send(fd.get(), &hello, sizeof hello, MSG_NOSIGNAL), ssize_t{sizeof hello});
        return fd;
    }
    /// Receives the next reply; returns 0 at the end of the stream.
    static ssize_t hear(int fd, HelloReply& reply) {
        pollfd ready{fd, POLLIN, 0};
        ::poll(&ready, 1, -1);
        return ::recv(fd, &reply, sizeof reply, 0);
    }

    SystemClock clock_;
    AbortSignal abort_;
    UniqueFd listener_ = std::move(listenOn("127.0.0.1:0").value());
    MeshSpec spec_;
    MeshContext context_;
    absl::StatusOr<std::unique_ptr<PeerMesh>> mesh_ = absl::UnknownError("not connected yet");
    std::thread member_;
};

TEST_F(PeerMeshTest, AHelloThatIsRepeatedTakesNobodysPlace) {
    connect();
    const PeerHello hello = helloOf(1);
    HelloReply reply;
    const UniqueFd first = say(hello);
    ASSERT_EQ(hear(first.get(), reply), ssize_t{sizeof reply});
    ASSERT_EQ(reply.verdict, HelloVerdict::kAccepted);
    EXPECT_TRUE(proven(reply, hello, spec_.secret));

    const UniqueFd replayed = say(hello);
    EXPECT_EQ(hear(replayed.get(), reply), 0) << "no answer, and closed";
    char byte = 0;
    EXPECT_EQ(::recv(first.get(), &byte, 1, MSG_DONTWAIT), -1) << "the first one was closed";

    const UniqueFd last = say(helloOf(2));
    ASSERT_EQ(hear(last.get(), reply), ssize_t{sizeof reply});
    member_.join();
    ASSERT_TRUE(mesh_.ok()) << mesh_.status();
    EXPECT_EQ(::recv(first.get(), &byte, 1, MSG_DONTWAIT), -1);
}

TEST_F(PeerMeshTest, WhoLostItsConnectionComesAgainWithAHelloOfItsOwn) {
    connect();
    HelloReply reply;
    for (int time = 0; time < 2; ++time) {
        const UniqueFd fd = say(helloOf(1));
        ASSERT_EQ(hear(fd.get(), reply), ssize_t{sizeof reply});
        EXPECT_EQ(reply.verdict, HelloVerdict::kAccepted);
    }
}

}  // namespace
}  // namespace bulkhead::runtime
