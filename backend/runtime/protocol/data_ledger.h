// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/fields.h"
#include "backend/common/types.h"
#include "backend/runtime/protocol/interval_set.h"

namespace bulkhead::protocol {

/// Open lease: what one replica was given for one step.
struct LeaseState {
    uint64_t step = 0;
    int32_t replica = 0;
    std::vector<SampleRange> ranges;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("step", self.step);
        visit("replica", self.replica);
        visit("ranges", self.ranges);
    }
};

/// The ledger as it is stored: in checkpoints (encode() of it is Commit::dataPosition) and in the
/// commit log. Ranges are merged and ascending.
struct LedgerState {
    std::vector<uint64_t> highWater;  ///< by domain: samples below it were handed out at some time
    std::vector<SampleRange> committed;
    std::vector<SampleRange> pooled;
    std::vector<SampleRange> quarantined;
    std::vector<LeaseState> leases;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("high_water", self.highWater);
        visit("committed", self.committed);
        visit("pooled", self.pooled);
        visit("quarantined", self.quarantined);
        visit("leases", self.leases);
    }
};

/// Exactly-once data of one lineage (I2): per domain, committed, leased, pooled and quarantined
/// samples partition [0, high water). Deterministic: the same calls give the same ranges. What was
/// pooled is leased first; fresh samples go to the domain that is furthest behind its share.
/// Thread: none of its own; externally serialised.
class DataLedger {
  public:
    /// `weights` by domain, positive; empty: equal shares of `domains`.
    explicit DataLedger(uint32_t domains, std::vector<double> weights = {});

    /// InvalidArgument when the state is not a partition, or has other domains.
    static absl::StatusOr<DataLedger> restore(const LedgerState& state,
                                              std::vector<double> weights);

    /// `samples` samples for (step, replica). AlreadyExists when it holds a lease for that step.
    absl::StatusOr<std::vector<SampleRange>> lease(uint64_t step, int32_t replica,
                                                   uint64_t samples);
    /// Exactly these for (step, replica): gradients over them are there already.
    /// FailedPrecondition, and nothing changes, unless all of them are pooled or beyond the high
    /// water mark.
    absl::Status leaseExactly(uint64_t step, int32_t replica,
                              const std::vector<SampleRange>& ranges);
    /// Two leases of a step change hands (non-finite: the other computes it). NotFound without
    /// both.
    absl::Status swapLeases(uint64_t step, int32_t a, int32_t b);
    /// Back to the pool: the quorum of `step` was void, or the replica is out of its sum. Returns
    /// the samples returned, 0 without a lease.
    uint64_t giveBack(uint64_t step, int32_t replica);
    uint64_t giveBackStep(uint64_t step);
    uint64_t giveBackAll();
    /// The commit record consumes exactly the leases of its step; any other lease of that step goes
    /// back to the pool. FailedPrecondition, and nothing changes, when the record's ranges are not
    /// what was leased.
    absl::Status commit(const CommitRecord& record);
    /// Serves replays of a log: moves the record's ranges to committed from the pool or from beyond
    /// the high water mark; what lies between becomes pooled. FailedPrecondition when a sample was
    /// committed already.
    absl::Status replayCommit(const CommitRecord& record);
    /// A lease, or a part of one, is not to be trained on. The rest of that lease stays.
    absl::Status quarantine(const SampleRange& range);
    /// Quarantines what of it is pooled or beyond the high water mark: a range that was quarantined
    /// in a lineage that was left.
    void withhold(const SampleRange& range);
    /// Raises the high water mark to the range's end; what lies between becomes pooled.
    void widen(const SampleRange& range);

    const std::vector<SampleRange>* leased(uint64_t step, int32_t replica) const;

    /// Internal names the domain and sample where the partition is broken. O(ranges).
    absl::Status check() const;

    uint64_t committedSamples() const;
    uint64_t leasedSamples() const;
    uint64_t pooledSamples() const;
    uint64_t quarantinedSamples() const;
    const std::vector<uint64_t>& highWater() const { return highWater_; }

    LedgerState state() const;
    /// The ledger with every open lease given back: the part that a checkpoint carries.
    LedgerState settledState() const;

  private:
    struct Domain {
        IntervalSet committed, pooled, quarantined;
    };
    uint32_t nextFreshDomain() const;
    std::vector<SampleRange> take(uint64_t samples);

    std::vector<double> weights_;
    std::vector<uint64_t> highWater_;
    std::vector<Domain> domains_;
    std::map<std::pair<uint64_t, int32_t>, std::vector<SampleRange>> leases_;
};

/// Samples in `ranges`.
uint64_t sampleCount(const std::vector<SampleRange>& ranges);

}  // namespace bulkhead::protocol
