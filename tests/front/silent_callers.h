// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace bulkhead::testing {

/// Opens connections that say nothing, and counts those that were closed.
class SilentCallers {
  public:
    /// `host`: an address of this machine that they call from.
    SilentCallers(const std::string& address, int number, const char* host = "127.0.0.1") {
        const size_t colon = address.rfind(':');
        sockaddr_in at{};
        at.sin_family = AF_INET;
        at.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
        ::inet_pton(AF_INET, address.substr(0, colon).c_str(), &at.sin_addr);
        for (int i = 0; i < number; ++i) {
            fds_.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
            sockaddr_in from{};
            from.sin_family = AF_INET;
            ::inet_pton(AF_INET, host, &from.sin_addr);
            EXPECT_EQ(::bind(fds_.back(), reinterpret_cast<sockaddr*>(&from), sizeof from), 0);
            EXPECT_EQ(::connect(fds_.back(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
        }
    }
    ~SilentCallers() {
        for (const int fd : fds_) ::close(fd);
    }
    void say(const std::string& words) {
        for (const int fd : fds_) ::send(fd, words.data(), words.size(), MSG_NOSIGNAL);
    }
    /// Waits until the server has closed so many of them.
    bool closed(size_t number) {
        const auto until = std::chrono::steady_clock::now() + kAtMost;
        while (std::chrono::steady_clock::now() < until) {
            if (ended() >= number) return true;
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
        return false;
    }
    size_t ended() const {
        return static_cast<size_t>(std::ranges::count_if(fds_, [](int fd) {
            pollfd end{fd, POLLRDHUP, 0};
            ::poll(&end, 1, 0);
            return (end.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
        }));
    }
    /// All that comes to the first of them until nothing has come for so long, or it is closed.
    std::string hears(std::chrono::milliseconds quiet = std::chrono::seconds(1)) const {
        std::string all;
        std::array<char, 65536> piece;
        pollfd ready{fds_.front(), POLLIN, 0};
        while (::poll(&ready, 1, static_cast<int>(quiet.count())) == 1) {
            const ssize_t n = ::recv(fds_.front(), piece.data(), piece.size(), 0);
            if (n <= 0) break;
            all.append(piece.data(), static_cast<size_t>(n));
        }
        return all;
    }

  private:
    static constexpr std::chrono::seconds kAtMost{30};
    std::vector<int> fds_;
};

}  // namespace bulkhead::testing
