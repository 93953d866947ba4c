// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "backend/common/clock.h"
#include "backend/runtime/protocol/facts.h"

namespace bulkhead::protocol {

/// One that an earlier coordinator opened and did not close.
struct OpenIncident {
    uint64_t id = 0;
    int32_t replica = 0;
    MonoNs begin = 0;            ///< of the first symptom
    MonoNs decidedAt = 0;        ///< end of `decide`
    bool survivorsWait = false;  ///< no step was committed since
    double stallMs = 0;          ///< so far
    uint64_t samplesRedone = 0;
    size_t survivors = 0;
};

/// An incident of this "replica" is one of the job as a whole; only its survivors' side counts.
constexpr int32_t kWholeJob = -1;

/// Writes down what each loss cost and how the replica came back: one open incident per replica.
/// Survivors' phases: detect, decide, reform, reexchange. The replica's: restart, init, fetch,
/// replay, join. Every call appends the facts it makes to `out`.
class IncidentBook {
  public:
    /// Goes on with what an earlier coordinator left open; later ones count from `last` + 1.
    void resume(const std::vector<OpenIncident>& open, uint64_t last);
    /// An earlier one of the same replica is closed as "lost again".
    void open(MonoNs now, int32_t replica, uint32_t incarnation, uint64_t step, EvidenceKind cause,
              const std::string& title, MonoNs symptomAt, MonoNs evidenceAt, bool contributed,
              size_t survivors, std::vector<Fact>& out);
    /// Survivors were told the new quorum: their re-exchange begins. Counts samples redone.
    void reformed(MonoNs now, const std::vector<int32_t>& lost, uint64_t samples,
                  std::vector<Fact>& out);
    /// A step committed: ends the survivors' side. `exchangeMs` of its slowest voter.
    void committed(MonoNs now, double exchangeMs, std::vector<Fact>& out);
    /// The replica's side goes into `phase`; what ran before it ends.
    void phase(MonoNs now, int32_t replica, IncidentPhaseKind phase, std::vector<Fact>& out);
    /// Back, or out for good.
    void close(MonoNs now, int32_t replica, bool rejoined, const std::string& outcome,
               std::vector<Fact>& out);
    /// Nobody comes back any more.
    void closeAll(MonoNs now, const std::string& outcome, std::vector<Fact>& out);
    bool isOpen(int32_t replica) const { return open_.contains(replica); }

  private:
    struct Incident {
        uint64_t id = 0;
        int32_t replica = 0;
        MonoNs begin = 0;
        MonoNs decidedAt = 0;
        MonoNs reformedAt = 0;
        bool survivorsWait = false;
        double stallMs = 0;
        uint64_t samplesRedone = 0;
        size_t survivors = 0;
        IncidentPhaseKind current = IncidentPhaseKind::kRestart;
        MonoNs currentSince = 0;
        bool running = false;
    };
    void endPhase(MonoNs now, Incident& i, std::vector<Fact>& out);

    uint64_t next_ = 1;
    std::map<int32_t, Incident> open_;
};

}  // namespace bulkhead::protocol
