// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "backend/common/threads.h"
#include "backend/common/unique_fd.h"
#include "backend/service/host_turns.h"

namespace bulkhead::service {

/// The other end of a connection over the network.
struct Peer {
    std::string name;  ///< as grpc::ServerContextBase::peer() writes it
    Host host = 0;
    std::optional<uint32_t> firstByte;  ///< sequence number of the first that it sends
};
/// The connection was just accepted from a socket with TCP_SAVE_SYN. It is told once.
std::optional<uint32_t> firstByteOf(int fd);
/// The other end of a connection that was just accepted.
Peer peerOf(int fd);

/// The time that poll() takes: at least 1, so that it is over then.
int msUntil(std::chrono::steady_clock::time_point at);

/// Connections over the network on which nobody has signed in yet. gRPC 1.51 reads whatever they
/// send, without a bound on calls that are opened and cut off at once, or opened before the other
/// end has said how many it will open, or on requests that wait for their refusal; a call takes
/// some 12 KB. So the kernel hands on no more of a connection than its limit and one byte, and one
/// that sent so much, or is older than its time, is closed under gRPC. It keeps its place until
/// gRPC has let go of it: on a busy machine that is later, and what gRPC has to do would grow. The
/// host of one that is put out for what it sent waits for its next turn (HostTurns).
/// Thread: signedIn(), callBegins() and callArrives() any, the others one.
class Strangers {
  public:
    /// A stranger that needs more than the first limit gets the second when nobody else has it. A
    /// first call fits in the first; with TLS a handshake with a chain of certificates fits in the
    /// second, and mostly in the first.
    struct Limits {
        uint32_t first = 0;  ///< bytes
        uint32_t most = 0;
    };
    static constexpr Limits kPlain{1 << 10, 8 << 10};
    static constexpr Limits kTls{3 << 10, 16 << 10};
    static constexpr size_t kMost = 12;
    /// After so long one gives way to others that wait: the oldest of the host that has most.
    static constexpr std::chrono::milliseconds kTurn{250};
    /// The same for the one that has the second: what was dropped comes again after some 200 ms.
    static constexpr std::chrono::milliseconds kLargeTurn{500};
    /// So many calls cut off within so long close a connection.
    static constexpr int kMostCutOff = 300;
    static constexpr std::chrono::milliseconds kCutOffWithin{1000};

    /// `time`: from letIn() to signedIn(). `closed`: why the connection of this peer was, for the
    /// audit; called by look(), letIn() and callBegins().
    using Closed = std::function<void(const std::string& peer, const std::string& why)>;
    explicit Strangers(Closed closed, std::chrono::milliseconds time = std::chrono::seconds(5));

    enum class Answer { kIn, kNotYet, kNever };
    /// May gRPC have this connection, on which something has come? kIn: it has to have it at once,
    /// as this very descriptor. Its listening socket had TCP_SAVE_SYN: without that the kernel
    /// hands on what comes within a millisecond or so of the end.
    Answer letIn(int fd, const Peer& peer);
    void signedIn(const std::string& peer);
    /// gRPC begins a call of this peer, who has signed in, and it comes to us, unless the peer cut
    /// it off meanwhile. The connection of one that does so all the time is closed: gRPC 1.51 reads
    /// calls faster than it begins them, without a bound.
    void callBegins(const std::string& peer);
    void callArrives(const std::string& peer);

    /// Closes those that have to be.
    void look();
    /// Until look() is due; -1: for nothing.
    int waitMs() const;
    /// When letIn() may let in a connection of this host, if there is room; in the past: now.
    HostTurns::Time turnOf(Host host) const;

  private:
    using Time = std::chrono::steady_clock::time_point;
    struct Stranger {
        UniqueFd fd;      ///< a second descriptor of the connection
        int ofGrpc = -1;  ///< the first, while it is one of this socket
        ino_t socket = 0;
        Limits limits;
        bool large = false;  ///< it has the second
        uint64_t bytes = 0;  ///< that had come at the last look
        Peer peer;
        Time until;
        Time turnEnds;
        bool wantsMore() const { return !large && bytes > limits.first; }
        bool isLetGo() const;  ///< by gRPC
        void limitBytes() const;
    };
    using All = std::vector<Stranger>;
    /// Of somebody who has signed in. gRPC has it alone, and closes it without a word.
    struct Connection {
        int ofGrpc = -1;
        ino_t socket = 0;
    };
    static bool isOpen(const Connection& one);
    static constexpr size_t kPruneAtLeast = 256;
    struct CutOff {
        Time since;
        int calls = 0;
    };
    struct Out {
        std::string peer;
        std::string why;
    };
    Answer answer(int fd, const Peer& peer, Time now, std::vector<Out>& out)
        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
    bool makeRoom(Time now, std::vector<Out>& out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
    bool makeLargeRoom(Time now, std::vector<Out>& out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
    /// Why the connection is to be closed, empty for one that is over; nothing: it stays.
    std::optional<std::string> fault(Stranger& one, Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
    void giveMore(Time now, std::vector<Out>& out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
    void putOut(All::iterator one, std::string why, Time now, std::vector<Out>& out)
        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
    void tell(const std::vector<Out>& out);
    All::iterator leastWelcome(Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
    std::optional<Time> trimAt() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
    void trim(Time now);

    const Closed closed_;
    const std::chrono::milliseconds time_;
    mutable LeafMutex mutex_;
    All all_ ABSL_GUARDED_BY(mutex_);      ///< the one that came first in front
    All leaving_ ABSL_GUARDED_BY(mutex_);  ///< put out, and gRPC has not let go of them
    HostTurns turns_ ABSL_GUARDED_BY(mutex_);
    std::map<std::string, Connection> known_ ABSL_GUARDED_BY(mutex_);  ///< by peer; some are over
    size_t pruneAt_ ABSL_GUARDED_BY(mutex_) = kPruneAtLeast;           ///< when known_ has so many
    std::map<std::string, CutOff> cutOff_ ABSL_GUARDED_BY(mutex_);     ///< by peer
    /// Set: memory is given back when nobody has been put out for a while.
    std::optional<Time> firstOut_ ABSL_GUARDED_BY(mutex_);
    Time lastOut_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bulkhead::service
