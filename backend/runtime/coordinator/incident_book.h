// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "backend/model/command.h"
#include "backend/model/event.h"

namespace bulkhead::runtime {

/// What one committed step tells about the survivors of a loss. All times Unix nanoseconds.
struct StepTiming {
    uint64_t step = 0;
    uint32_t attempt = 1;
    int64_t committedNs = 0;
    int64_t lastVoteNs = 0;
    /// Begin of the exchange that was committed, of the survivor that began it last.
    int64_t exchangeBeginNs = 0;
    /// When the slowest survivor had finished its own backward pass.
    int64_t computeEndNs = 0;
    std::vector<int32_t> contributors;
    uint64_t samples = 0;
};

/// Keeps what an incident leaves behind: phases with real times, on the survivors' side (detect,
/// decide, re-form, re-exchange) and on the replica's (restart, init, fetch, replay, join), what
/// survivors waited, and what it cost. One incident per replica and loss; a disturbance that costs
/// nobody's membership (a NaN computed again elsewhere) is one too and closes with its step.
/// Thread: one. Takes every time as an argument.
class IncidentBook {
  public:
    using Emit = std::function<void(model::EventBody, model::Severity)>;

    /// `replicas`: of the job, for the cost in replica-seconds.
    IncidentBook(uint32_t replicas, Emit emit) : replicas_(replicas), emit_(std::move(emit)) {}

    /// A fault took effect. `hit`: the replicas it may cost (a node has several).
    void faultTookEffect(uint64_t fault, const model::FaultSpec& spec, std::vector<int32_t> hit,
                         int64_t ns);

    /// Somebody saw something; the first evidence of a replica since its last loss ends "detect".
    void evidence(int32_t replica, int64_t ns);

    /// The coordinator decided that the replica is out. A second decision about the same
    /// incarnation is ignored.
    void lost(int32_t replica, uint32_t incarnation, uint64_t step, model::EvidenceKind cause,
              const std::string& title, int64_t ns);

    /// Something went wrong and nobody had to leave.
    void disturbed(int32_t replica, uint32_t incarnation, uint64_t step, model::EvidenceKind cause,
                   const std::string& title, int64_t ns);

    /// Samples whose gradients were computed for nothing, because the replica left the sum.
    void samplesReturned(int32_t replica, uint64_t samples);

    /// The replica's way back, or that it will not come (drained, held, failed).
    void replicaState(int32_t replica, uint32_t incarnation, model::ReplicaState state, int64_t ns);

    void committed(const StepTiming& timing);

    /// Closes what is open: the run ends.
    void close(const std::string& outcome, int64_t ns);

    /// How long survivors waited in all, nanoseconds: not training time.
    int64_t stalledNs() const { return stalledNs_; }

  private:
    struct Fault {
        uint64_t id = 0;
        model::FaultSpec spec;
        std::vector<int32_t> hit;
        int64_t ns = 0;
    };
    struct Incident {
        uint64_t id = 0;
        uint32_t incarnation = 0;
        uint64_t step = 0;
        bool disturbance = false;
        int64_t beginNs = 0;  ///< of the fault, or the first evidence
        int64_t decidedNs = 0;
        int64_t sideBeginNs = 0;  ///< begin of the replica's current phase
        std::optional<model::IncidentPhaseKind> side;
        bool reformed = false;
        double stallMs = 0;
        uint64_t samplesRedone = 0;
    };

    Incident& open(int32_t replica, uint32_t incarnation, uint64_t step, model::EvidenceKind cause,
                   const std::string& title, int64_t ns);
    std::optional<Fault> takeFault(int32_t replica, int64_t ns);
    void phase(const Incident& incident, model::IncidentPhaseKind kind, int64_t begin, int64_t end);
    void enterSide(Incident& incident, std::optional<model::IncidentPhaseKind> next, int64_t ns);
    void reform(Incident& incident, const StepTiming& timing);
    void finish(int32_t replica, const std::string& outcome, bool rejoined, int64_t ns);

    uint32_t replicas_;
    Emit emit_;
    uint64_t nextId_ = 1;
    std::vector<Fault> faults_;
    std::map<int32_t, int64_t> firstEvidence_;
    std::map<int32_t, Incident> open_;  ///< by replica
    int64_t stalledNs_ = 0;
    uint64_t lastStalledStep_ = 0;
};

}  // namespace bulkhead::runtime
