// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/codec.h"
#include "backend/common/fields.h"
#include "backend/common/types.h"

/// How a joiner's shard asks the same shard of a source for state. One request, one answer, as
/// often as wanted on one connection: a frame is a little-endian uint32 count of header bytes, the
/// header in the codec's form, then the payload it announces.
namespace bulkhead::runtime {

constexpr uint32_t kStateWireVersion = 1;
constexpr uint32_t kMaxStateHeader = 1 << 20;

enum class StateAsk {
    kDescribe,  ///< the snapshot of `step`: size, hash, layout, last record; no payload
    kPiece,     ///< bytes [offset, offset + bytes) of the snapshot of `step`
    kDelta,     ///< the delta of `step`, whole; waits up to `patienceMs` if it is still to come
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
    uint64_t token = 0;
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
        visit("token", self.token);
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
    uint64_t totalBytes = 0;  ///< of the whole snapshot
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

/// A blocking socket with a time limit on every wait. Movable, closes itself.
/// Thread: one at a time, except shutdown().
class StateSocket {
  public:
    StateSocket() = default;
    explicit StateSocket(int fd) : fd_(fd) {}
    ~StateSocket();
    StateSocket(StateSocket&& other) noexcept;
    StateSocket& operator=(StateSocket&& other) noexcept;

    /// `address` is "ip:port". Unavailable naming it when nobody answers within `timeoutMs`.
    static absl::StatusOr<StateSocket> connect(const std::string& address, uint32_t timeoutMs);

    /// No byte moved for so long ends a wait with DeadlineExceeded.
    void setTimeout(uint32_t timeoutMs);
    absl::Status sendAll(const void* data, size_t bytes);
    /// Unavailable "closed" when the peer is gone.
    absl::Status receiveAll(void* data, size_t bytes);
    /// From any thread: ends every wait of the owner.
    void shutdown();
    bool open() const { return fd_ >= 0; }
    int fd() const { return fd_; }

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

  private:
    int fd_ = -1;
};

}  // namespace bulkhead::runtime
