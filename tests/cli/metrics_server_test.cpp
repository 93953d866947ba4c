// SPDX-License-Identifier: Apache-2.0
// `bulkheadctl metrics` as whoever reaches its port finds it.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "backend/common/unique_fd.h"
#include "tests/rpc/rpc_fixture.h"

namespace bulkhead::testing {
namespace {

using ::testing::HasSubstr;
using Steady = std::chrono::steady_clock;

constexpr int kThreads = 64;                 // of connections that have not asked
constexpr std::chrono::seconds kSilence{1};  // after which one of them is put out
constexpr std::chrono::seconds kSlowMachine{5};

class MetricsServerTest : public RpcTest {
  protected:
    ~MetricsServerTest() override {
        if (metrics_ <= 0) return;
        ::kill(metrics_, SIGKILL);
        ::waitpid(metrics_, nullptr, 0);
    }
    /// Starts the program, and waits until it answers.
    void begin() {
        serve(unixOptions());
        port_ = freePort();
        const std::string program = std::string(BULKHEAD_BIN) + "/bulkheadctl";
        const std::string target = "unix:" + socket();
        const std::string listen = "127.0.0.1:" + std::to_string(port_);
        metrics_ = ::fork();
        if (metrics_ == 0) {
            ::execl(program.c_str(), program.c_str(), "--target", target.c_str(), "metrics",
                    "--listen", listen.c_str(), nullptr);
            ::_exit(127);
        }
        const auto until = Steady::now() + kForever;
        while (scrape().empty() && Steady::now() < until)
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    /// Invalid while nobody listens.
    UniqueFd call() const {
        UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        const sockaddr_in to = loopback(port_);
        return ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0
                   ? std::move(fd)
                   : UniqueFd();
    }
    std::string scrape() const {
        const UniqueFd fd = call();
        const std::string request = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        ::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL);
        std::string answer;
        std::string piece(1 << 16, '\0');
        for (ssize_t n; (n = ::recv(fd.get(), piece.data(), piece.size(), 0)) > 0;)
            answer.append(piece, 0, static_cast<size_t>(n));
        return answer;
    }
    ptrdiff_t threads() const {
        return std::distance(
            std::filesystem::directory_iterator("/proc/" + std::to_string(metrics_) + "/task"),
            std::filesystem::directory_iterator());
    }

  private:
    static sockaddr_in loopback(uint16_t port) {
        sockaddr_in at{};
        at.sin_family = AF_INET;
        at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        at.sin_port = htons(port);
        return at;
    }
    static uint16_t freePort() {
        const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        sockaddr_in at = loopback(0);
        socklen_t size = sizeof at;
        EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
        EXPECT_EQ(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&at), &size), 0);
        return ntohs(at.sin_port);
    }

    pid_t metrics_ = -1;
    uint16_t port_ = 0;
};

TEST_F(MetricsServerTest, AScrapeIsAnsweredWhenThoseThatSayNothingArePutOut) {
    begin();
    constexpr int kRounds = 2;
    std::vector<UniqueFd> silent;
    for (int i = 0; i < kRounds * kThreads; ++i) {
        silent.push_back(call());
        ASSERT_TRUE(silent.back().valid());
    }
    const auto from = Steady::now();
    EXPECT_THAT(scrape(), HasSubstr("bulkhead_daemon_up 1\n"));
    EXPECT_LT(Steady::now() - from, kRounds * kSilence + kSlowMachine);
    EXPECT_LT(threads(), 2 * kThreads) << "no thread for each connection";
}

}  // namespace
}  // namespace bulkhead::testing
