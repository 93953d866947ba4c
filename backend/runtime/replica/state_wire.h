// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/codec.h"
#include "backend/common/fields.h"
#include "backend/common/types.h"
#include "backend/common/unique_fd.h"
#include "backend/runtime/transport/credential.h"
#include "backend/runtime/transport/tls_session.h"

/// The protocol by which a joiner's shard asks the same shard of a source for state. One request,
/// one answer, as often as wanted on one connection: a frame is a little-endian uint32 count of
/// header bytes, the header in the codec's form, then the payload it announces. All of it is
/// encrypted: who asks and who answers prove to each other that they know the key of this fetch.
namespace bulkhead::runtime {

constexpr uint32_t kStateWireVersion = 3;
constexpr uint32_t kMaxStateHeader = 1 << 20;

enum class StateAsk {
    kDescribe,  ///< the snapshot of `step`: size, hash, layout, last record; no payload
    kPiece,     ///< bytes [offset, offset + bytes) of the snapshot of `step`
    kDelta,     ///< [offset, offset + bytes) of the delta of `step`, as far as it goes; waits up to
                ///< `patienceMs` if it is still to come
};

}  // namespace bulkhead::runtime

namespace bulkhead {
template <>
struct EnumNames<runtime::StateAsk> {
    static constexpr std::array<std::string_view, 3> kNames = {"describe", "piece", "delta"};
};
}  // namespace bulkhead

namespace bulkhead::runtime {

struct StateRequest {
    uint32_t version = kStateWireVersion;
    int32_t shard = 0;
    uint64_t lineage = 0;
    StateAsk ask = StateAsk::kDescribe;
    uint64_t step = 0;
    uint64_t offset = 0;
    uint64_t bytes = 0;
    uint32_t patienceMs = 0;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("version", self.version);
        visit("shard", self.shard);
        visit("lineage", self.lineage);
        visit("ask", self.ask);
        visit("step", self.step);
        visit("offset", self.offset);
        visit("bytes", self.bytes);
        visit("patience_ms", self.patienceMs);
    }
};

struct StateAnswer {
    std::string error;  ///< empty: granted
    bool gone = false;  ///< with error: the step is not kept here (any more)
    uint64_t step = 0;
    uint64_t offset = 0;
    uint64_t bytes = 0;       ///< of the payload that follows
    uint64_t checksum = 0;    ///< XXH3-64 of the payload
    uint64_t totalBytes = 0;  ///< of the whole snapshot or delta
    uint64_t stateHash = 0;   ///< bulkhead_state_hash() of the whole snapshot
    uint64_t layout = 0;
    std::vector<int32_t> expertShard;
    std::optional<CommitRecord> record;  ///< the delta's, or the last one of the snapshot
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("error", self.error);
        visit("gone", self.gone);
        visit("step", self.step);
        visit("offset", self.offset);
        visit("bytes", self.bytes);
        visit("checksum", self.checksum);
        visit("total_bytes", self.totalBytes);
        visit("state_hash", self.stateHash);
        visit("layout", self.layout);
        visit("expert_shard", self.expertShard);
        visit("record", self.record);
    }
};

/// Bytes both ways, with a time limit on every wait. Destroying it closes the connection.
/// Thread: one at a time, except shutdown().
class StateStream {
  public:
    virtual ~StateStream() = default;

    /// No byte moved for so long ends a wait with DeadlineExceeded.
    virtual void setTimeout(uint32_t timeoutMs) = 0;
    virtual absl::Status sendAll(const void* data, size_t bytes) = 0;
    /// Unavailable "closed" when the peer is gone.
    virtual absl::Status receiveAll(void* data, size_t bytes) = 0;
    /// Ends every wait of the owner, now and later. Any thread.
    virtual void shutdown() = 0;

    template <class T>
    absl::Status sendHeader(const T& value) {
        const std::string header = encode(value);
        const auto size = static_cast<uint32_t>(header.size());
        if (absl::Status s = sendAll(&size, sizeof(size)); !s.ok()) return s;
        return sendAll(header.data(), header.size());
    }

    template <class T>
    absl::StatusOr<T> receiveHeader() {
        uint32_t size = 0;
        if (absl::Status s = receiveAll(&size, sizeof(size)); !s.ok()) return s;
        if (size > kMaxStateHeader) return absl::DataLossError("a header of absurd length");
        std::string header(size, '\0');
        if (absl::Status s = receiveAll(header.data(), size); !s.ok()) return s;
        return decode<T>(header);
    }
};

class StateListener {
  public:
    virtual ~StateListener() = default;
    /// The address at which joiners reach it.
    virtual std::string address() const = 0;
    /// Waits for the next one. Unavailable after shutdown(). Who it is, is proved when the first
    /// bytes are received: PermissionDenied by then.
    virtual absl::StatusOr<std::unique_ptr<StateStream>> accept() = 0;
    /// Any thread.
    virtual void shutdown() = 0;
};

/// Connects ranks for the transfer of state. Inject it; a simulation joins its processes in memory.
/// Thread: any.
class StateNetwork {
  public:
    virtual ~StateNetwork() = default;
    /// Unavailable naming the address when nobody answers within `timeoutMs`; PermissionDenied,
    /// then or when bytes are sent, when it does not know the credential.
    virtual absl::StatusOr<std::unique_ptr<StateStream>> connect(const std::string& address,
                                                                 const Credential& credential,
                                                                 uint32_t timeoutMs) = 0;
    /// So many at a time bring a joiner its state sooner than one. Each takes a thread at both
    /// ends, which encrypts and hashes.
    virtual uint32_t connections() const { return 1; }
    /// On a free port of `host`. InvalidArgument, or Unavailable naming it.
    virtual absl::StatusOr<std::unique_ptr<StateListener>> listen(const std::string& host,
                                                                  KeyOf keyOf) = 0;
};

/// TCP; addresses are "ip:port".
StateNetwork& stateSockets();

/// A blocking socket with one end of a TLS session.
class StateSocket final : public StateStream {
  public:
    /// The end that connected, and the one that listened.
    StateSocket(UniqueFd fd, const Credential& credential)
        : fd_(std::move(fd)), tls_(credential, fd_.get()) {}
    StateSocket(UniqueFd fd, KeyOf keyOf) : fd_(std::move(fd)), tls_(std::move(keyOf), fd_.get()) {}

    void setTimeout(uint32_t timeoutMs) override;
    absl::Status sendAll(const void* data, size_t bytes) override {
        return tls_.writeAll(data, bytes);
    }
    absl::Status receiveAll(void* data, size_t bytes) override { return tls_.readAll(data, bytes); }
    void shutdown() override;

  private:
    const UniqueFd fd_;
    TlsSession tls_;
};

}  // namespace bulkhead::runtime
