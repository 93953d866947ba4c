// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "backend/access/certificates.h"
#include "backend/common/threads.h"
#include "backend/common/unique_fd.h"
#include "backend/front/connection.h"
#include "backend/front/host_turns.h"

namespace bulkhead::front {

/// The time that poll() takes: at least 1, so that it is over then.
int msUntil(std::chrono::steady_clock::time_point at);

/// The connections over the network. Until somebody has signed in on one it is a stranger's: some
/// are served at a time, in turns (HostTurns), with few bytes and few calls each, and a place is
/// free when gRPC has let go of its connection, so that what gRPC still has to do is bounded on a
/// busy machine too. Those on which somebody has signed in are served by a thread of their own,
/// which no handshake delays, and share what their principal is allowed.
/// Thread: find(), signedIn() and callBegins() any, the others one.
class Front {
  public:
    static constexpr size_t kMost = 12;
    /// A handshake with a chain of certificates and most first calls have fewer bytes. Of those
    /// that need more, one at a time has the second limit: that of a request.
    static constexpr uint64_t kFirstBytes = 32 << 10;
    static constexpr uint64_t kMostBytes = (2 << 20) + kFirstBytes;
    static constexpr Allowance::Limits kStranger{{8, 0}, {256, 0}, {16, 0}, 8, 1};
    static constexpr Allowance::Limits kPrincipal{{500, 1000}, {4000, 40000}, {100, 100}, 100, 64};
    /// After so long one gives way to others that wait: the oldest of the host that has most.
    static constexpr std::chrono::milliseconds kTurn{250};
    /// The same for the one that has the second limit.
    static constexpr std::chrono::milliseconds kLargeTurn{1000};

    struct Known {
        Peer peer;
        std::optional<access::Certificate> certificate;  ///< that it showed
    };
    /// Tells the audit why the connection of this peer was closed.
    using Closed = std::function<void(const std::string& peer, const std::string& why)>;
    using ToGrpc = std::function<void(UniqueFd)>;

    /// `tls` null: plain text. `time`: from letIn() to signedIn().
    Front(std::unique_ptr<ServerTls> tls, Closed closed, ToGrpc toGrpc,
          std::chrono::milliseconds time = std::chrono::seconds(5));
    /// Sends what gRPC has said, if gRPC has ended and the others take it soon.
    ~Front();

    /// Takes a connection, on which something has come, if it may come in now.
    bool letIn(UniqueFd& fd, const Peer& peer);
    /// Serves strangers; once for whatever poll() tells of addTo() or after waitMs().
    void look();
    void addTo(std::vector<pollfd>& waited) const;
    int waitMs() const;  ///< -1: for nothing
    /// When letIn() may let in a connection of this host, if there is room; in the past: now.
    HostTurns::Time turnOf(Host host) const { return turns_.next(host); }

    /// By gRPC's name for the other end; null: it is gone.
    std::shared_ptr<const Known> find(const std::string& grpcName) const;
    /// ResourceExhausted: the principal has as many connections as one may have.
    absl::Status signedIn(const std::string& grpcName, const std::string& principal);
    /// A call of nobody known. With as many as a stranger has, the next one closes the connection.
    void refused(const std::string& grpcName);
    /// gRPC begins a call of this connection, which ends when the result is destroyed.
    std::shared_ptr<void> callBegins(const std::string& grpcName);

  private:
    using Time = std::chrono::steady_clock::time_point;
    struct Stranger {
        std::unique_ptr<Connection> connection;
        Peer peer;
        Time until;
        Time turnEnds;
        bool isLarge = false;
        bool isOut = false;
    };
    struct Entry {
        std::shared_ptr<const Known> known;
        std::shared_ptr<Share> share;
        bool signedIn = false;
        int refused = 0;
    };
    class Hall;

    bool makeRoom(Time now);
    void giveMore(Time now);
    bool serve(Stranger& one, Time now);
    void putOut(Stranger& one, const std::string& why, Time now);
    void introduce(Connection& connection, const Peer& peer, std::shared_ptr<Share> share,
                   UniqueFd theirs);
    bool hasSignedIn(const std::string& grpcName) const;
    bool isRefused(const std::string& grpcName) const;
    void forget(const Connection& connection);

    const std::unique_ptr<ServerTls> tls_;
    const Closed closed_;
    const ToGrpc toGrpc_;
    const std::chrono::milliseconds time_;
    std::vector<Stranger> strangers_;  ///< the one that came first in front
    HostTurns turns_;
    UniqueFd wake_;  ///< somebody has signed in
    mutable LeafMutex mutex_;
    std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);  ///< by gRPC's name
    /// Kept until they are whole: whoever connects again has no more at once.
    std::map<std::string, std::shared_ptr<Allowance>> principals_ ABSL_GUARDED_BY(mutex_);
    std::unique_ptr<Hall> hall_;
};

}  // namespace bulkhead::front
