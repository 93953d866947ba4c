// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "backend/common/unique_fd.h"
#include "backend/runtime/transport/data_frame.h"
#include "backend/runtime/transport/frame_seal.h"

namespace bulkhead::runtime {

/// Labels a round's messages; both ends must agree on it.
struct RoundTag {
    uint64_t step = 0;
    uint32_t attempt = 0;
    uint32_t bucket = 0;
    bool operator==(const RoundTag&) const = default;
};

/// One established data-plane connection. In every round each end sends one message, cut into
/// chunk frames of which at most `chunksInFlight` are unacknowledged, and receives one straight
/// into its destination, a frame's header and payload in one call: nothing is copied but by the
/// socket (MSG_ZEROCOPY pins pages and tells of it per call; over loopback the kernel copies all
/// the same), and what came in a data frame's place. Never blocks: `advance` does what can be done
/// now. A peer that is a round ahead waits in its socket. Threads: one at a time.
class TcpConnection {
  public:
    struct Options {
        size_t chunkBytes = 256u << 10;
        uint32_t chunksInFlight = 4;
        Protection protection = Protection::kReadable;  ///< of the payloads we send
    };
    /// `sending` and `receiving`: keys of the two directions.
    TcpConnection(UniqueFd fd, const MeshIdentity& identity, uint32_t myIncarnation,
                  uint32_t peerIncarnation, const Secret& sending, const Secret& receiving,
                  const Options& options);

    /// Starts the next round; `out` and `in` stay valid until done(). Rounds count up at both ends.
    void begin(const RoundTag& tag, bool more, std::span<const std::byte> out,
               std::span<std::byte> in);

    /// Sends what can be sent and, where poll() found it `readable`, takes what has come.
    /// Unavailable: the connection broke. DataLoss: a frame that was changed on the way, of the
    /// wrong size or out of order. Stale frames are dropped and counted.
    [[nodiscard]] absl::Status advance(bool readable);

    bool done() const { return sendDone() && received_; }
    bool received() const { return received_; }
    /// The peer's `more` of this round; valid once received().
    bool peerWantsMore() const { return peerMore_; }
    /// POLLIN and POLLOUT as far as advance() could use them; 0 when done.
    short wanted() const;

    int fd() const { return fd_.get(); }
    uint64_t staleFrames() const { return stale_; }
    /// Grows with every byte that moves either way.
    uint64_t moved() const { return moved_; }
    /// Closes with a reset, as an injected fault does.
    void breakOff();

  private:
    enum class Parsed { kNeedMore, kGotSome, kParked };

    bool sendDone() const { return allFramed_ && !framing_ && controlAt_ == control_.size(); }
    bool creditBlocked() const { return sentFrames_ - ackedFrames_ >= options_.chunksInFlight; }
    absl::Status write();
    void frameNext();
    void queueAckIfDue();
    absl::Status read();
    absl::Status readHeader(Parsed& parsed);
    absl::Status onHeader(Parsed& parsed);
    absl::Status acceptData();
    absl::Status readPayload(Parsed& parsed);
    absl::Status finishFrame();
    /// The destination of the payload of the awaited frame.
    std::span<std::byte> expected() const;
    /// Into `to`, then into `ahead`. Bytes moved, 0 when nothing has come.
    absl::StatusOr<size_t> receive(std::span<std::byte> to, std::span<std::byte> ahead = {});
    bool isStale(const FrameHeader& header) const;
    bool isOfThisRound(const FrameHeader& header) const;

    UniqueFd fd_;
    const MeshIdentity identity_;
    const uint32_t myIncarnation_;
    const uint32_t peerIncarnation_;
    const Options options_;
    FrameSeal sealing_, opening_;

    RoundTag tag_;
    bool more_ = false;
    uint64_t sequence_ = 0;
    uint64_t moved_ = 0;
    uint64_t stale_ = 0;

    std::span<const std::byte> out_;
    size_t outFramed_ = 0;   // bytes of out_ that are in frames already
    bool allFramed_ = true;  // the last frame of the message was begun
    bool framing_ = false;   // a data frame is partly written
    FrameHeader outHeader_;
    size_t outHeaderAt_ = 0;
    std::span<const std::byte> outPayload_;
    uint64_t sentFrames_ = 0;
    uint64_t ackedFrames_ = 0;
    std::vector<std::byte> control_;  // an ack frame on its way out
    size_t controlAt_ = 0;

    std::span<std::byte> in_;
    size_t inAt_ = 0;
    bool received_ = true;
    bool peerMore_ = false;
    bool parked_ = false;     // inHeader_ belongs to the next round
    bool inPayload_ = false;  // inHeader_ is complete, its payload is being read
    bool dropping_ = false;   // the payload is of a stale frame
    FrameHeader inHeader_;
    size_t inHeaderAt_ = 0;
    size_t inPayloadAt_ = 0;
    std::vector<std::byte> early_;  // taken off the socket behind another frame than expected
    uint64_t consumed_ = 0;
    uint64_t consumedTold_ = 0;
};

}  // namespace bulkhead::runtime
