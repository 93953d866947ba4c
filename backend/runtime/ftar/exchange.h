// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/clock.h"
#include "backend/runtime/ftar/device_plane.h"
#include "backend/runtime/ftar/method.h"
#include "backend/runtime/transport/data_frame.h"
#include "backend/runtime/transport/network_faults.h"
#include "backend/runtime/transport/peer_choice.h"
#include "backend/runtime/transport/shared_heap.h"

/// The fault tolerant all-reduce among rank s of all contributors (docs/protocol.md, "A step" 3).
namespace bulkhead::runtime {

/// Identifies an exchange, as Quorum names it. Ordered: a later exchange of a job has a greater
/// key.
struct ExchangeKey {
    uint64_t term = 0;
    uint64_t epoch = 0;
    uint64_t step = 0;
    uint32_t attempt = 1;
    auto operator<=>(const ExchangeKey&) const = default;
};

/// A contributor's rank of our shard.
struct ExchangePeer {
    int32_t replica = 0;
    uint32_t incarnation = 0;
    std::string host;  ///< equal strings: shared memory works between the two
    std::string data;  ///< "ip:port"
    std::string shm;   ///< prefix of its segment names, unique per incarnation
    bool operator==(const ExchangePeer&) const = default;
};

struct ExchangeGroup {
    ExchangeKey key;
    Secret secret;     ///< one for each epoch; a peer that does not know it is refused
    int32_t self = 0;  ///< my index in `peers`
    std::vector<ExchangePeer> peers;  ///< ascending by replica, 1..64: the order of the reduction
    PeerChoice transport = PeerChoice::kAuto;
    WireType wire = WireType::kFloat32;
    /// kRing connects all over TCP, wherever they are, and does not go with PeerChoice::kShm.
    Algorithm algorithm = Algorithm::kAuto;
    uint32_t connections = 1;             ///< TCP, to each peer: 1 to kMaxConnections (tcp_peer.h)
    MonoNs chunkTimeout = 2 * kSecond;    ///< floor: a peer silent for less is never accused
    MonoNs connectTimeout = 2 * kSecond;  ///< for all peers together
};

/// The reason for which a peer is named.
enum class PeerFault {
    kReset,    ///< its connection broke, or the writer of its segment is gone
    kTimeout,  ///< nothing came for longer than the timeout
    kCorrupt,  ///< a frame with a wrong checksum, size or order
    kRefused,  ///< it did not accept our handshake, or showed a wrong one
};

struct FailedPeer {
    int32_t replica = 0;
    PeerFault fault = PeerFault::kTimeout;
    std::string detail;
};

/// Sums since configure() was last called.
struct ExchangeStats {
    uint64_t buckets = 0;
    uint64_t bytesSent = 0;      ///< to peers, payload only
    uint64_t bytesReceived = 0;  ///< from peers, payload only
    uint64_t staleFrames = 0;    ///< dropped
    double wallMs = 0;           ///< inside reduce()
    double waitedMs = 0;         ///< blocked for the frames of the peer it waited longest for
    int32_t waitedOn = -1;       ///< that peer's replica
    int32_t connectedLast = -1;  ///< the replica whose connection came last; -1: connections kept
};

struct ExchangeOptions {
    std::string job;
    int32_t shard = 0;
    int32_t replica = 0;
    uint32_t incarnation = 0;
    int listenFd = -1;  ///< listening on our own ExchangePeer::data; stays the caller's
    size_t chunkBytes = 256u << 10;  ///< S_chunk: payload of one TCP frame; equal at all members
    uint32_t chunksInFlight = 4;     ///< C: unacknowledged chunks per pair
    size_t roundBytes = 1u << 20;    ///< a bucket is reduced in pieces of so many per connection
    /// A piece where all peers read each other's heaps in place; see `heap`.
    size_t directBytes = 16u << 20;
    /// Protects what goes through TCP. A frame says itself which protection it has.
    Protection protection = Protection::kReadable;
    /// Where reduce() finds input and output, if not null; outlives the exchange. Then peers of one
    /// host read both in place. All members have one, or none.
    const SharedHeap* heap = nullptr;
    /// Where set, reduce() finds input and output in this device's memory of kind PEER, and it does
    /// the sums; heap and Algorithm are then not looked at. All members have one, or none.
    DevicePlane device;
    NetworkFaults* faults = nullptr;  ///< may be null; outlives the exchange
    const Clock* clock = nullptr;     ///< required; outlives the exchange
};

/// Threads: configure() and reduce() on one thread (the caller's communication thread); abort(),
/// progress(), failedPeers() and stats() on any. Every participant makes the same configure() and
/// reduce() calls in the same order.
class Exchange {
  public:
    virtual ~Exchange() = default;

    /// Makes `group` the one that reduce() works in; returns when all peers are connected. Cheap
    /// when only step or deadlines changed and nothing failed since (attempt 1 of a later step in
    /// the same term and epoch with the same peers): connections are kept. Anything else builds
    /// new ones, so all members must be configured with the same key. Clears failedPeers() and
    /// stats().
    /// InvalidArgument: a malformed group. Aborted: abort() covers this key. Unavailable or
    /// DeadlineExceeded: failedPeers() names who did not come. PermissionDenied: a peer refused
    /// our token.
    [[nodiscard]] virtual absl::Status configure(const ExchangeGroup& group) = 0;

    /// output[i] = ((g0[i] + g1[i]) + g2[i]) + ... over the peers' inputs in ascending order (with
    /// Algorithm::kHierarchical: host by host), rounded as the wire type says (method.h): the same
    /// bits at every participant, and again for the same membership. Both spans have the same
    /// length, equal at all participants, and do not overlap; `input` is never written, `output` is
    /// undefined on error. Aborted, Unavailable (a peer broke), DeadlineExceeded (a peer was
    /// silent), DataLoss (a corrupt frame), InvalidArgument; failedPeers() names who. After an
    /// error every reduce() fails until configure().
    ///
    /// With ExchangeOptions::device both lie in its memory of kind PEER, and reduce() promises:
    /// - The caller's work on `input` must be done, not merely on some stream.
    ///   What reduce() puts on the device is done when it returns ok,
    ///   so that any stream may use `output`,
    ///   and no kernel of the exchange runs between two calls.
    /// - Peers of one host read `input` until it returns ok, and afterwards still the caller's part
    ///   of `output`, which reduce() itself next writes when all have left the call before. So
    ///   `input` may be written then, `output` may only be read, and is freed only after all
    ///   members have met again (another reduce(), or a commit).
    /// - The bits are those of Algorithm::kDirect on the CPU.
    /// - On error nothing of peers is mapped here any more and `input` is whole,
    ///   but a peer may read it until its own call ends.
    ///   Internal, with the device's own line: it does not answer,
    ///   and nothing but a new process helps.
    [[nodiscard]] virtual absl::Status reduce(uint32_t bucket, std::span<const float> input,
                                              std::span<float> output) = 0;

    /// Ends every wait of exchanges with a key up to and including `upTo`, now and later; a running
    /// configure() or reduce() returns within 10 ms. The first reason wins. Inputs stay whole.
    virtual void abort(const ExchangeKey& upTo, std::string_view reason) = 0;

    /// Grows with every piece that arrives; for progress beats.
    virtual uint64_t progress() const = 0;

    virtual std::vector<FailedPeer> failedPeers() const = 0;
    virtual ExchangeStats stats() const = 0;
};

/// InvalidArgument when options are out of range.
[[nodiscard]] absl::StatusOr<std::unique_ptr<Exchange>> makeExchange(ExchangeOptions options);

}  // namespace bulkhead::runtime
