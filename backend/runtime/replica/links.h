// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/runtime/protocol/channels.h"
#include "backend/runtime/transport/control_channel.h"

/// A rank's control connections. Thread: all on the control thread, the reactor's.
namespace bulkhead::runtime {

/// To the coordinator: connects, says Hello, and keeps reconnecting with the same Hello for ever. A
/// connection whose messages cannot be read is broken off; attempts come less and less often until
/// a message can be read.
class CoordinatorLink {
  public:
    struct Hooks {
        std::function<void()> connected;  ///< Hello was sent
        std::function<void()> disconnected;
        std::function<void(protocol::ToReplica)> received;
        std::function<void(const absl::Status&)> refused;  ///< it is another build
    };
    /// The address to connect to; asked before each attempt, and by follow().
    using Where = std::function<std::string()>;
    /// `reactor` and `network` outlive it.
    CoordinatorLink(Reactor& reactor, Network& network, Where where, ChannelOptions options,
                    protocol::Hello hello, Hooks hooks);
    ~CoordinatorLink();

    bool connected() const { return channel_ != nullptr; }
    /// Goes to the coordinator's new address if there is one, without waiting until the connection
    /// to the old one breaks.
    void follow();
    /// False when there is no connection or it takes no more.
    bool send(const protocol::ToCoordinator& message);
    /// An already encoded ToCoordinator.
    bool sendRaw(std::string_view message);

  private:
    void connect();
    void retry(MonoNs atMost);
    void lost(const absl::Status& why);
    void receive(const std::string& bytes);

    Reactor& reactor_;
    Network& network_;
    Where where_;
    std::string address_;
    ChannelOptions options_;
    protocol::Hello hello_;
    Hooks hooks_;
    std::unique_ptr<ControlConnector> connector_;
    std::unique_ptr<ControlChannel> channel_;
    MonoNs backoff_;
    Reactor::TimerId timer_ = 0;
};

/// Inside a replica: the leader listens, the other ranks connect, and both ends prove that they
/// know the replica's secret.
class LeaderLink {
  public:
    /// Leader: messages of siblings (never its own). Rank: what the leader relays.
    using Received = std::function<void(protocol::ToLeader)>;

    /// `address` is "ip:port" with port 0. The leader's is in address() then.
    /// `reactor` and `network` outlive it, likewise below.
    static absl::StatusOr<std::unique_ptr<LeaderLink>> lead(Reactor& reactor, Network& network,
                                                            const std::string& address,
                                                            const Secret& secret,
                                                            Received received);
    /// `again`: a connection that broke was made anew; what was sent on it may be lost.
    static std::unique_ptr<LeaderLink> follow(Reactor& reactor, Network& network,
                                              const std::string& leader, const Secret& secret,
                                              Received received, std::function<void()> again);
    ~LeaderLink();

    std::string address() const;
    /// Rank: to the leader, in order, kept until connected.
    void send(const protocol::ToLeader& message);
    /// Leader: to any sibling; false when none is connected.
    bool sendToSibling(const protocol::ToLeader& message);
    /// Leader: to all that are connected.
    void sendToSiblings(const protocol::ToLeader& message);

  private:
    LeaderLink(Reactor& reactor, Network& network, const Secret& secret, Received received);
    void accept(std::unique_ptr<ControlChannel> channel);
    void drop(uint64_t id);
    void receive(uint64_t id, const std::string& bytes);
    void connect();
    void flush();

    Reactor& reactor_;
    Network& network_;
    Secret secret_;
    Received received_;
    std::function<void()> again_;
    std::unique_ptr<ControlListener> listener_;
    struct Sibling {
        std::unique_ptr<ControlChannel> channel;
        bool heard = false;                 ///< proof that it knows the secret
        Reactor::TimerId introduction = 0;  ///< until it was heard
    };
    std::map<uint64_t, Sibling> siblings_;
    uint64_t next_ = 1;

    std::string leader_;
    std::unique_ptr<ControlConnector> connector_;
    std::unique_ptr<ControlChannel> up_;
    std::deque<std::string> waiting_;
    bool broke_ = false;  ///< a connection did, and none was made since
    Reactor::TimerId timer_ = 0;
};

}  // namespace bulkhead::runtime
