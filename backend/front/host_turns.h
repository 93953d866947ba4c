// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace bulkhead::front {

/// An IPv4 address, or the 64 bits of an IPv6 address that name a network: whoever has one of its
/// addresses has all of them. An IPv4 address that IPv6 carries is one of IPv4.
using Host = uint64_t;
Host hostOf(const sockaddr_storage& address);

/// When a host may have its next turn. One that offends waits: a moment at first, twice as long
/// each time that it does so again, and meanwhile it has one turn in such a time. It is forgotten
/// after a minute without an offence. Where somebody has signed in, the wait stays the shortest:
/// others may be behind the same address. Of kMost hosts, the one that was heard of least recently
/// gives way to a new one, those where somebody has signed in after all others. Pure, but for what
/// it keeps.
class HostTurns {
  public:
    using Time = std::chrono::steady_clock::time_point;
    static constexpr size_t kMost = 256;
    static constexpr std::chrono::milliseconds kShortest{100};
    static constexpr std::chrono::milliseconds kLongest{3200};
    static constexpr std::chrono::minutes kForgotten{1};
    static constexpr std::chrono::hours kKnown{1};

    /// In the past: it need not wait.
    Time next(Host host) const;
    /// It has its turn.
    void came(Host host, Time now);
    void offended(Host host, Time now);
    void signedIn(Host host, Time now);

  private:
    struct Record {
        Host host = 0;
        Time heard;  ///< its last offence, or when somebody signed in there
        Time next;
        Time knownUntil;
        std::chrono::milliseconds wait{0};
        bool cameSince = false;  ///< it had a turn since its last offence
    };
    Record* find(Host host);
    Record& made(Host host);

    std::vector<Record> records_;
};

}  // namespace bulkhead::front
