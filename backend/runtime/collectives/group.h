// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/clock.h"
#include "backend/common/secret.h"
#include "backend/runtime/transport/network_faults.h"
#include "backend/runtime/transport/peer_choice.h"

/// Collectives among the S ranks of one replica, in host memory.
namespace bulkhead::runtime {

struct GroupPeer {
    std::string host;  ///< equal strings: shared memory works between the two
    std::string data;  ///< "ip:port"
    std::string shm;   ///< prefix of its segment names, unique per incarnation
};

struct GroupOptions {
    std::string name;  ///< equal on all ranks, unique per replica incarnation
    Secret secret;     ///< equal on all ranks; a peer that does not know it is refused
    int32_t rank = 0;
    std::vector<GroupPeer> peers;  ///< by rank, 1..64
    PeerChoice transport = PeerChoice::kAuto;
    MonoNs timeout = 60 * kSecond;  ///< no progress for so long: DeadlineExceeded
    int listenFd = -1;             ///< as in bulkhead_group_desc; -1: binds peers[rank].data itself
    size_t roundBytes = 1u << 20;  ///< the most one rank publishes at a time
    std::function<void()> progress;   ///< may be empty; called often inside waits and transfers
    NetworkFaults* faults = nullptr;  ///< may be null; outlives the group
    const Clock* clock = nullptr;     ///< required; outlives the group
};

enum class ElementType { kF32, kBf16, kF64, kI32, kU8 };
size_t elementSize(ElementType type);

/// All ranks make the same calls in the same order. Errors of every call: Aborted (abort() was
/// called), DeadlineExceeded (nobody moved for `timeout`; names the rank), Unavailable (a rank
/// died), DataLoss, InvalidArgument (sizes that do not match). After one, every call fails
/// likewise. Threads: one at a time; abort() from any.
class Group {
  public:
    virtual ~Group() = default;
    virtual int32_t rank() const = 0;
    virtual int32_t size() const = 0;

    /// `to` holds size() times `from`, by rank.
    [[nodiscard]] virtual absl::Status allGather(std::span<const std::byte> from,
                                                 std::span<std::byte> to) = 0;
    /// to[i] = sum over ranks, in rank order, of their from[rank() * count + i]; accumulated in
    /// float (kF64: double; integers wrap).
    [[nodiscard]] virtual absl::Status reduceScatter(const void* from, void* to, size_t count,
                                                     ElementType type) = 0;
    /// Sends sendBytes[r] bytes to r, packed by rank in `from`; receives likewise into `to`.
    [[nodiscard]] virtual absl::Status allToAll(const void* from, std::span<const size_t> sendBytes,
                                                void* to, std::span<const size_t> recvBytes) = 0;
    [[nodiscard]] virtual absl::Status barrier() = 0;
    /// `message` of rank `root` becomes that of all; at most 1 MiB.
    [[nodiscard]] virtual absl::Status broadcast(std::string& message, int32_t root) = 0;

    /// Every wait of this rank ends within 10 ms with Aborted, now and later; the first reason
    /// wins.
    virtual void abort(std::string_view reason) = 0;
};

/// Collective; returns when all ranks are connected, or DeadlineExceeded naming who is missing.
[[nodiscard]] absl::StatusOr<std::unique_ptr<Group>> makeGroup(GroupOptions options);

}  // namespace bulkhead::runtime
