// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/clock.h"
#include "backend/runtime/transport/abort_signal.h"
#include "backend/runtime/transport/network_faults.h"
#include "backend/runtime/transport/peer_choice.h"
#include "backend/runtime/transport/shared_heap.h"
#include "backend/runtime/transport/shm_segment.h"
#include "backend/runtime/transport/tcp_peer.h"

namespace bulkhead::runtime {

struct MeshPeer {
    int32_t id = 0;  ///< shown in the handshake: its replica, or its rank
    uint32_t incarnation = 0;
    std::string host;  ///< equal strings: shared memory works between the two
    std::string data;  ///< "ip:port"
    std::string shm;   ///< prefix of its segment names
};

struct MeshSpec {
    std::string group;      ///< name, equal at all members
    MeshIdentity identity;  ///< `group`, `members` and `token` are filled in by connect()
    Secret secret;          ///< that members alone know
    size_t self = 0;
    std::vector<MeshPeer> peers;
    PeerChoice choice = PeerChoice::kAuto;
    size_t slotBytes = 0;  ///< the most a member publishes in one round
    TcpConnection::Options tcp;
    uint32_t connections = 1;          ///< TCP, to each peer; equal at all members
    const SharedHeap* heap = nullptr;  ///< spans inside it are read in place; may be null
    int listenFd = -1;                 ///< needed when a peer with a greater index comes over TCP
    MonoNs timeout = 2 * kSecond;
};

enum class MeshFault { kReset, kTimeout, kCorrupt, kRefused };

struct MeshFailure {
    size_t peer = 0;  ///< index
    MeshFault fault = MeshFault::kTimeout;
    std::string detail;
};

/// The dependencies of a mesh; all outlive it.
struct MeshContext {
    const Clock* clock = nullptr;
    AbortSignal* abort = nullptr;
    NetworkFaults* faults = nullptr;  ///< may be null
    HeapReader* heaps = nullptr;      ///< needed where a peer has a heap
    std::function<void()> progress;   ///< may be empty; called at least every 50 ms of waiting
    std::function<void()> arrived;    ///< may be empty; called whenever bytes of a peer have come
    bool isCut() const { return faults != nullptr && faults->isCut(); }
};

/// The connections of one membership: between each two members either their shared-memory segments
/// or TCP connections, opened by the one with the greater index. Threads: one at a time.
class PeerMesh {
  public:
    /// Returns when every pair is connected. Aborted with the signal's reason; DeadlineExceeded,
    /// PermissionDenied (a peer has another secret), ResourceExhausted or InvalidArgument, with
    /// `failures` naming the peers that are not connected.
    static absl::StatusOr<std::unique_ptr<PeerMesh>> connect(MeshSpec spec,
                                                             const MeshContext& context,
                                                             std::vector<MeshFailure>& failures);

    size_t size() const { return spec_.peers.size(); }
    size_t self() const { return spec_.self; }
    const MeshSpec& spec() const { return spec_; }
    /// Null when no peer reads shared memory.
    ShmSegment* segment() const { return segment_.get(); }
    /// Exactly one of the two is non-null for every peer but oneself.
    const ShmView* view(size_t peer) const { return views_[peer].get(); }
    TcpPeer* tcp(size_t peer) const { return tcp_[peer].get(); }
    /// The peer that was connected last.
    size_t last() const { return last_; }
    /// Once all readers have mapped our segment its name goes, so that no kill leaves it behind.
    void unlinkWhenAttached();

  private:
    friend class MeshBuilder;
    PeerMesh() = default;

    MeshSpec spec_;
    std::unique_ptr<ShmSegment> segment_;
    std::vector<std::unique_ptr<ShmView>> views_;
    std::vector<std::unique_ptr<TcpPeer>> tcp_;
    size_t last_ = 0;
    bool unlinked_ = false;
};

}  // namespace bulkhead::runtime
