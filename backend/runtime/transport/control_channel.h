// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/clock.h"
#include "backend/runtime/transport/credential.h"
#include "backend/runtime/transport/network_faults.h"
#include "backend/runtime/transport/reactor.h"

/// Carries messages between ranks, leaders, agents and the coordinator: whole messages (opaque
/// bytes; callers use common/codec.h), in order, each at most once, over a Unix socket, TCP or
/// memory. Addresses are "unix:/path/of/socket" or "ip:port"; port 0 lets the kernel choose when
/// listening. Threads: a channel, listener or connector belongs to the thread of its reactor.
namespace bulkhead::runtime {

constexpr size_t kMaxControlMessage = size_t{64} << 20;

/// One end of a connection. Destroying it closes the connection without calling back.
class ControlChannel {
  public:
    using Received = std::function<void(std::string message)>;
    /// Called once, when the connection is lost: Unavailable (peer closed or died, reset),
    /// DataLoss (bytes that are no frame of ours; names what was wrong), PermissionDenied (the two
    /// ends have no key in common), DeadlineExceeded (TCP gave up).
    using Closed = std::function<void(const absl::Status& why)>;

    virtual ~ControlChannel() = default;

    /// Begins delivery; call once. Messages that came earlier are delivered first. Nothing is
    /// called back from inside start() or send(). Either callback may destroy the channel.
    virtual void start(Received received, Closed closed) = 0;

    /// Queues one message. ResourceExhausted when the queue is at its bound (the peer does not
    /// read: nothing was queued, the channel stays open and the caller decides),
    /// FailedPrecondition when the connection is gone, InvalidArgument when it is longer than
    /// kMaxControlMessage.
    [[nodiscard]] virtual absl::Status send(std::string_view message) = 0;

    /// Closes after what is queued has been tried once; no callback follows. Idempotent.
    virtual void close() = 0;

    virtual bool isOpen() const = 0;
    /// Bytes accepted by send() that have not left this process.
    virtual size_t queuedBytes() const = 0;
    /// The other end, for messages to people: "127.0.0.2:40112", "unix:/run/x", "memory".
    virtual std::string peer() const = 0;
    /// This end's own address as the other reached it, with the port that a listener has:
    /// "10.0.0.9:7171", "unix:/run/x", "memory".
    virtual std::string here() const = 0;
    /// The identity that the end that connected has proved; valid once a message was received.
    /// Empty where the listener asks for no proof.
    virtual std::string identity() const = 0;
};

/// The longest first message of a peer that connects, before it is known who that is.
constexpr size_t kMaxFirstMessage = size_t{64} << 10;

struct ChannelOptions {
    /// Longest first message that is received. A listener makes it kMaxFirstMessage.
    size_t firstMessage = kMaxControlMessage;
    /// send() refuses beyond this many queued bytes.
    size_t maxQueuedBytes = size_t{128} << 20;
    /// A connector binds its end to this IP ("127.0.0.3"), so that loopback addresses can stand for
    /// nodes; empty: the kernel chooses.
    std::string localIp;
    /// A connector gives up after so long, and both ends on a handshake of TLS.
    MonoNs connectTimeout = 5 * kSecond;
    /// A connector proves that it is this, and that the listener knows the key too; all that is
    /// said afterwards is encrypted. Without it the listener must have no `keyOf`.
    std::optional<Credential> credential;
    /// A listener takes those alone whose key it knows. Empty: everybody, in plain text. Outlived
    /// by what it needs.
    KeyOf keyOf;
    /// May be null. Outlives the channels.
    NetworkFaults* faults = nullptr;
};

/// Accepts connections until it is destroyed; accepted channels live on without it.
class ControlListener {
  public:
    virtual ~ControlListener() = default;
    /// As a connector needs it, with the real port.
    virtual std::string address() const = 0;
};

/// A connection attempt; destroying it before its callback cancels it.
class ControlConnector {
  public:
    virtual ~ControlConnector() = default;
};

using AcceptChannel = std::function<void(std::unique_ptr<ControlChannel>)>;
using ConnectedChannel = std::function<void(absl::StatusOr<std::unique_ptr<ControlChannel>>)>;

/// Listens on `address`. A Unix socket is made with mode 0600; a file left there by a process that
/// is gone is replaced, one that still answers is AlreadyExists, as is a port in use.
/// InvalidArgument for an address it cannot read. `reactor` outlives the listener and the channels.
[[nodiscard]] absl::StatusOr<std::unique_ptr<ControlListener>> listenControl(
    Reactor& reactor, const std::string& address, ChannelOptions options, AcceptChannel accept);

/// Connects to `address`; `done` is called once, never from inside this call: with the channel,
/// or with Unavailable, DeadlineExceeded or InvalidArgument naming the address. It does not retry:
/// that is the caller's decision. `done` may destroy the connector.
[[nodiscard]] std::unique_ptr<ControlConnector> connectControl(Reactor& reactor,
                                                               const std::string& address,
                                                               ChannelOptions options,
                                                               ConnectedChannel done);

/// Makes connections. Inject it; a simulation joins its processes in memory.
class Network {
  public:
    virtual ~Network() = default;
    /// Contract of listenControl().
    [[nodiscard]] virtual absl::StatusOr<std::unique_ptr<ControlListener>> listen(
        Reactor& reactor, const std::string& address, ChannelOptions options,
        AcceptChannel accept) = 0;
    /// Contract of connectControl().
    [[nodiscard]] virtual std::unique_ptr<ControlConnector> connect(Reactor& reactor,
                                                                    const std::string& address,
                                                                    ChannelOptions options,
                                                                    ConnectedChannel done) = 0;
};

/// Unix sockets and TCP; has no state.
Network& socketNetwork();

/// Two ends joined in memory, for tests; each calls back on the reactor it was given.
/// Both reactors must be run by one thread (they may be the same).
[[nodiscard]] std::pair<std::unique_ptr<ControlChannel>, std::unique_ptr<ControlChannel>>
memoryChannels(Reactor& left, Reactor& right, ChannelOptions leftOptions = {},
               ChannelOptions rightOptions = {});

}  // namespace bulkhead::runtime
