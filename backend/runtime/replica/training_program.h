// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/types.h"
#include "backend/model/job_spec.h"
#include "backend/runtime/checkpoint/state_bytes.h"
#include "backend/runtime/ftar/device_plane.h"
#include "backend/runtime/protocol/messages.h"
#include "backend/runtime/transport/shared_heap.h"

namespace bulkhead::runtime {

/// Everything a training program needs to stand up its part of a replica.
struct BuildOrder {
    model::JobSpec job;
    std::vector<protocol::RankEndpoint> ranks;  ///< of this replica, by shard
    uint32_t incarnation = 0;
    Secret groupSecret;                ///< equal on all ranks of this incarnation
    bool blank = false;                ///< no need to initialise: state will be imported
    std::vector<int32_t> expertShard;  ///< empty: the default placement
    int listenFd = -1;  ///< listening on this rank's own `data` address; stays the library's
};

/// The program's figures of its own part of a step. Sums, not averages.
struct StepFigures {
    double lossSum = 0;  ///< nats
    uint64_t tokens = 0;
    std::vector<double> domainLossSum;   ///< by domain
    std::vector<uint64_t> domainTokens;  ///< by domain
    std::vector<uint64_t> expertCounts;  ///< [moeLayer][domain][expert]
    ExpertTraffic traffic;               ///< empty: there are no experts
    std::vector<RoutedSample> routed;    ///< as many as the work asks for
    std::vector<Scalar> scalars;         ///< of the user's own, at most Scalar::kMost
};

/// Sums those counts up for the rank of `shard`, but for bytes: a choice is remote when its expert
/// lies on another shard. `placement`: [moeLayer][expert]; empty: there are no experts.
ExpertTraffic trafficOf(const std::vector<uint64_t>& expertCounts, size_t domains, size_t experts,
                        const std::vector<int32_t>& placement, int32_t shard);

/// The interface of the training program to ReplicaRank: its state as bytes, its gradient as
/// floats, and the arithmetic of an update. State bytes and update are opaque to the library; equal
/// state, gradient and record must give equal state, bit for bit. Thread: all called on the thread
/// that calls ReplicaRank::next(), one at a time, never while a gradient is being computed. Every
/// error ends the rank.
class TrainingProgram {
  public:
    virtual ~TrainingProgram() = default;

    /// Builds the replica's groups and the model; initialises from job.seed unless `blank`.
    /// Collective over the replica's ranks.
    virtual absl::Status build(const BuildOrder& order) = 0;
    /// Once after build: one whole gradient and whatever else a first step touches for the first
    /// time, so that a joiner's first step takes as long as its peers', and no step waits for
    /// memory or code. A state that build() initialised is the same afterwards; what else it leaves
    /// in state and gradient does not count. Collective.
    virtual absl::Status warmUp() = 0;
    /// Of the model that stands, for the operator.
    virtual protocol::ModelDescribed describe() const = 0;

    virtual uint64_t stateBytes() const = 0;
    /// tensorTableText() of the state as it lies now, for checkpoints; null: it has no names for
    /// what is in it.
    virtual std::shared_ptr<const std::string> tensorTable() { return nullptr; }
    /// So many bytes at the state's begin are parameters, for faults that are to hit one.
    virtual uint64_t parameterBytes() const = 0;
    virtual absl::Status exportState(uint64_t offset, std::span<std::byte> to) = 0;
    /// Keeps the state as it stands, until the next call or forgetKept(), so that the update that
    /// follows can be judged. A device keeps it in its own memory. ResourceExhausted: there is no
    /// room, and nothing is kept.
    virtual absl::Status keepState() {
        kept_.resize(stateBytes());
        return exportState(0, kept_);
    }
    /// The state is again what was kept. Collective.
    virtual absl::Status restoreKept() {
        if (absl::Status s = importState(0, kept_); !s.ok()) return s;
        return imported();
    }
    virtual void forgetKept() { kept_ = {}; }
    /// The whole state as it is now, copied while the caller computes: `done` is called once, on
    /// any thread, perhaps before this returns; `to` lives until then. Whatever changes the state
    /// waits for it, as does another snapshot.
    virtual void snapshot(StateBytes* to, std::function<void(absl::Status)> done) {
        to->resize(stateBytes());
        done(exportState(0, *to));
    }
    /// Memory for a whole state that comes from elsewhere, from which importState() is fastest.
    /// Thread: any, after build().
    virtual StateBytes stateRoom(uint64_t bytes) {
        StateBytes room;
        room.resize(bytes);
        return room;
    }
    /// Returns when nothing that snapshot() or readSum() began is under way, `done` among it.
    virtual void awaitCopies() {}
    virtual absl::Status importState(uint64_t offset, std::span<const std::byte> from) = 0;
    /// After the last import of a whole state. Collective.
    virtual absl::Status imported() = 0;
    /// Exports what this replica alone holds besides the state (random generators, say), as it was
    /// when `step` had been applied and nothing of the next step was computed. Part of this
    /// replica's checkpoints; neither hashed nor given to joiners.
    virtual absl::StatusOr<std::vector<std::byte>> exportLocal(uint64_t /*step*/) {
        return std::vector<std::byte>{};
    }
    /// After imported(), of a checkpoint that this replica wrote.
    virtual absl::Status importLocal(std::span<const std::byte> /*from*/) {
        return absl::OkStatus();
    }
    /// bulkhead_state_hash() of the state bytes.
    virtual absl::StatusOr<uint64_t> stateHash() = 0;

    /// The device that exchanges gradients, if one does, known before build(); the same for all
    /// ranks of a job. Then gradient() and reduced() lie in its memory of kind PEER, which the
    /// library does not touch itself: it uses the functions below, and takes sumOfSquares() of the
    /// gradient to find what is not finite. What gradientReady() is told of must be there whoever
    /// reads it.
    virtual DevicePlane dataPlane() const { return {}; }
    /// The local gradient: summed over tokens, not divided; the same memory from build to the next
    /// layout change, untouched except while a step is computed. The library itself clears it when
    /// a joiner is to exchange nothing.
    virtual std::span<float> gradient() = 0;
    /// The span is as long as gradient(); the library writes the sum over replicas here.
    virtual std::span<float> reduced() = 0;
    /// Between host memory and `at`, a part of gradient() or reduced().
    virtual absl::Status read(std::span<const float> at, std::span<float> to) {
        std::copy(at.begin(), at.end(), to.begin());
        return absl::OkStatus();
    }
    virtual absl::Status write(std::span<const float> from, std::span<float> at) {
        std::copy(from.begin(), from.end(), at.begin());
        return absl::OkStatus();
    }
    /// All of reduced() as it is now, copied while the caller computes, as snapshot() is: whatever
    /// writes reduced() waits for awaitSum(). `to` has its length.
    virtual void readSum(std::span<float> to, std::function<void(absl::Status)> done) {
        done(read(reduced(), to));
    }
    /// Returns when no readSum() is under way and its `done` has returned.
    virtual void awaitSum() {}
    /// A readSum() that is under way ends with Cancelled, and then this returns.
    virtual void giveUpSum() {}
    /// Where both of them are, if peers can read them there; the same for all ranks of a job.
    virtual const SharedHeap* peerMemory() const { return nullptr; }
    /// Of reduced() or gradient(), in a fixed order.
    virtual absl::StatusOr<double> sumOfSquares(std::span<const float> reduced) = 0;
    /// One update of the state from `reduced`, which is reduced() or as long in host memory, as
    /// `record` says; not called when record.skip. Where it is reduced(), and the program copies it
    /// in readSum() before that returns, the update may write there.
    virtual absl::Status apply(const CommitRecord& record, std::span<const float> reduced) = 0;

    /// Current expert placement; empty when there are no experts.
    virtual absl::StatusOr<std::vector<int32_t>> expertShard() = 0;
    /// Before a state is imported: sizes follow this placement. Collective.
    virtual absl::Status adoptLayout(const std::vector<int32_t>& expertShard) = 0;
    /// Moves experts, keeps the old copies; returns the bytes this rank sent. State, gradient() and
    /// reduced() are those of the new placement from here on. Collective.
    virtual absl::StatusOr<uint64_t> moveLayout(const std::vector<int32_t>& expertShard) = 0;
    /// The move counts (`keep`: nothing changes any more), or never was: state, gradient() and
    /// reduced() are the old ones again.
    virtual absl::Status settleLayout(bool keep) = 0;

    /// From the control thread, at any time: this rank is to leave. Ends waits inside the replica
    /// (collectives) so that the training thread comes back to next().
    virtual void interrupt() = 0;

  private:
    std::vector<std::byte> kept_;
};

}  // namespace bulkhead::runtime
