// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <netinet/in.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/threads.h"
#include "backend/common/unique_fd.h"

/// The network as an attacker has it: all bytes of a loopback, its open ports, connections of his.
namespace bulkhead::attack {

/// Moves the calling thread, and what it starts from now on, to a network with a loopback and
/// nothing else. Who is not root gets it in a user namespace, for which the process must have one
/// thread only. Unavailable with the kernel's reason.
absl::Status ownLoopback();

/// Ports on which somebody listens in the network of the process's first thread.
std::set<uint16_t> listeningPorts();

/// One direction of a TCP connection, as far as it was heard.
struct Stream {
    uint16_t from = 0;
    uint16_t to = 0;
    bool called = false;  ///< `from` opened the connection
    std::string bytes;    ///< in order; repeated segments once
};

/// Hears every TCP segment on the loopback. Threads: one, and one of its own.
class Tap {
  public:
    static absl::StatusOr<std::unique_ptr<Tap>> begin();
    ~Tap();
    /// Returns the bytes heard so far, by connection and direction.
    std::vector<Stream> streams() const;
    /// Segments that came faster than they were read.
    uint64_t missed() const;

  private:
    struct Key {
        uint32_t fromHost, toHost;
        uint16_t from, to;
        auto operator<=>(const Key&) const = default;
    };
    struct Heard {
        bool called = false;
        uint32_t first = 0;                     ///< sequence number of the first byte
        std::map<uint64_t, std::string> parts;  ///< by offset
    };

    explicit Tap(UniqueFd fd) : fd_(std::move(fd)), thread_([this] { read(); }) {}
    void read();
    void take(std::string_view packet);

    UniqueFd fd_;
    std::atomic<bool> stop_{false};
    mutable Mutex mutex_;
    /// The last of a key is the present.
    std::multimap<Key, Heard> heard_ ABSL_GUARDED_BY(mutex_);
    std::thread thread_;
};

/// Looks for pieces of secrets and data in what was heard. A piece is 16 bytes; those of few
/// different values say nothing and are left out.
class Pieces {
  public:
    /// The 16 bytes at every `stride` bytes of `secret`.
    void add(const std::string& name, std::string_view secret, size_t stride = 1);
    size_t size() const { return count_; }
    /// Names whose pieces occur in `heard`, with how many.
    std::map<std::string, size_t> in(std::string_view heard) const;

  private:
    struct Piece {
        std::string bytes;
        std::string name;
    };
    std::multimap<uint64_t, Piece> byStart_;
    std::vector<bool> mayStart_ = std::vector<bool>(1 << 16);
    size_t count_ = 0;
};

/// Connections that an attacker holds, and what came of them. Thread: one.
class Callers {
  public:
    /// Opens one to 127.0.0.1:`port` and sends `bytes` as far as they are taken. `from`: the
    /// address of this machine that it comes from.
    void call(uint16_t port, std::string bytes, uint32_t from = INADDR_LOOPBACK);
    size_t open() const;
    size_t made() const { return lines_.size(); }
    uint64_t sent() const { return sent_; }
    /// Sends what is left, takes what has come, waits up to `ms` for either.
    void pump(int ms);
    /// Returns the answer on a connection; connections are numbered in the order they were made.
    const std::string& answer(size_t line) const { return lines_[line].answer; }
    bool isOpen(size_t line) const { return lines_[line].fd.valid(); }

  private:
    struct Line {
        UniqueFd fd;
        std::string bytes;
        size_t at = 0;
        std::string answer;
    };
    std::vector<Line> lines_;
    uint64_t sent_ = 0;
};

}  // namespace bulkhead::attack
