// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/clock.h"
#include "backend/common/types.h"
#include "backend/model/job_spec.h"
#include "backend/runtime/checkpoint/checkpoint.h"
#include "backend/runtime/protocol/rank_machine.h"
#include "backend/runtime/replica/rank_host.h"
#include "backend/runtime/replica/training_program.h"
#include "backend/runtime/transport/rank_secrets.h"

namespace bulkhead::runtime {

/// Sees what a rank does, for tests and simulations. On the rank's control thread, but `stands`.
struct RankProbe {
    /// The machine that decides; lives as long as the rank.
    std::function<void(const protocol::RankMachine&)> begun = nullptr;
    /// Just before the machine is told it.
    std::function<void(const protocol::RankInput&)> input = nullptr;
    /// Just before it is carried out.
    std::function<void(const protocol::RankAction&)> action = nullptr;
    /// The rank's state is this one now, by an update with `state.last` or otherwise; without its
    /// bytes. Training thread.
    std::function<void(const StateSnapshot& state, bool updated)> stands = nullptr;
};

struct RankOptions {
    std::string job;
    std::string run;  ///< its identity, for manifests; empty: not known
    model::JobSpec spec;
    std::string coordinator;  ///< "unix:/path" or "ip:port"
    /// File with the address where the coordinator is now, while there is one; empty: it stays.
    std::string controllerNote;
    RankSecrets secrets;
    RankId rank;
    uint32_t incarnation = 1;
    std::string node;     ///< equal names share memory
    std::string address;  ///< IP all of this rank's listeners bind to
    std::string runDir;
    uint64_t corpusHash = 0;
    std::string corpusNewest;  ///< Corpus::newest, for when the hash is not the others'
    std::string device;        ///< as in Hello
    uint64_t seed = 0;         ///< of random moments of injected faults; 0: from the system
    RankHost* host = &linuxRankHost();  ///< outlives the rank
    RankProbe probe;
};

enum class RankEnd { kLeft, kExpelled, kOrphaned };

/// The caller's next task.
struct Work {
    bool finished = false;
    RankEnd end = RankEnd::kLeft;  ///< with finished
    std::string why;               ///< with finished

    uint64_t step = 0;
    /// Samples of this replica, to be spread over its shards by the caller.
    std::vector<SampleRange> ranges;
    /// protocol::dealSamples() assigns them to shards.
    std::vector<uint32_t> domainShare;
    uint32_t routedTokens = 0;  ///< as in the quorum
    /// Names this gradient to gradientReady() and computed().
    uint64_t generation = 0;
};

/// One rank of a job. The caller's loop is
///
///     for (;;) {
///         Work work = *rank->next();
///         if (work.finished) break;
///         for each micro-batch: backward, calling rank->gradientReady(); rank->microBatchDone();
///         rank->computed(work.generation, figures);
///     }
///
/// next() carries out on the calling thread whatever the protocol asks between two gradients:
/// build, apply a commit, snapshot, import, replay, move experts. The exchange of buckets, votes,
/// beats, evidence, serving state and checkpoints run on threads of the library. Threads: next,
/// gradientReady, microBatchDone, computed on one thread (the training thread); start and
/// destruction on any one thread.
class ReplicaRank {
  public:
    /// Binds the rank's listeners and starts connecting. Unavailable naming the address that
    /// cannot be bound. `program` and `clock` outlive the rank.
    [[nodiscard]] static absl::StatusOr<std::unique_ptr<ReplicaRank>> start(
        RankOptions options, TrainingProgram* program, const Clock& clock);
    /// Closes connections and joins all threads; unfinished checkpoints are removed.
    ~ReplicaRank();

    /// Blocks until there is a gradient to compute or the rank is to leave. An error is the
    /// program's own (build, apply, ...): the rank cannot go on.
    [[nodiscard]] absl::StatusOr<Work> next();

    /// [begin, end) of program.gradient() is final for this step. Calls tile the gradient, in any
    /// order; buckets leave from its end on, so that the end is better told of first. Injected
    /// gradient faults are committed here.
    void gradientReady(uint64_t generation, uint64_t begin, uint64_t end);

    /// A micro-batch that took `took` is done: progress, and the place of an injected slowness.
    void microBatchDone(MonoNs took);

    /// The whole gradient of work.step stands.
    void computed(uint64_t generation, StepFigures figures);

    /// Asks the rank to leave in order, as when its machine is shut down; next() returns the end.
    /// Any thread.
    void requestLeave();

    /// Tells the coordinator, ahead of an exit with protocol::kExitHopeless, that no restart of
    /// this rank can help, and why. Any thread.
    void reportHopeless(const std::string& why);

    /// Ends an injected fault that lasts in this rank, or waits in it for its step. A program calls
    /// it on protocol::endFaultSignal(). Unknown ids are ignored. Any thread.
    void endFault(uint64_t fault);

    /// The rank was told to leave: what the caller is computing is for nothing. Any thread.
    bool leaving() const;

    /// The last step applied; for logs. Any thread.
    uint64_t appliedStep() const;

  private:
    class Impl;
    explicit ReplicaRank(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace bulkhead::runtime
