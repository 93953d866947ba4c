// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/model/run_state.h"

/// Cards tell an operator what to know of an incident, or of a problem that stands, and what to do:
/// the same in the console and in bulkheadctl. Pure; thread: any.
namespace bulkhead::model {

enum class Problem {
    kIncident,    ///< IncidentCard::incident says which
    kNoProgress,  ///< no step is committed, and nobody was found lost for it
    kWaiting,     ///< too few replicas
    kPaused,
    kReplicaOut,  ///< held, drained or given up
    kNodeOut,     ///< lost or cordoned
    kGpu,
    kCheckpoint,  ///< the last one failed
    kInvariant,
};

/// Time from now until a replica trains again, in ms, after earlier recoveries of the same run.
struct Return {
    double leastMs = 0;
    double likelyMs = 0;
    double mostMs = 0;
    uint32_t of = 0;  ///< so many recoveries; 0: from the transfer alone, `mostMs` is not known
    bool overdue = false;  ///< it takes longer than all of them did; the figures mean nothing
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("least_ms", self.leastMs);
        visit("likely_ms", self.likelyMs);
        visit("most_ms", self.mostMs);
        visit("of", self.of);
        visit("overdue", self.overdue);
    }
};

/// Up to now, while the incident is open.
struct Cost {
    double replicaSeconds = 0;    ///< by the replica, and by the survivors while they stood still
    double gpuHours = 0;          ///< of the GPUs that the job's ranks have; 0: they have none
    double tokens = 0;            ///< not trained in that time, at the job's usual pace
    std::optional<double> money;  ///< gpuHours at Prices::gpuHour; absent: no price is set
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("replica_seconds", self.replicaSeconds);
        visit("gpu_hours", self.gpuHours);
        visit("tokens", self.tokens);
        visit("money", self.money);
    }
};

struct IncidentCard {
    Problem problem = Problem::kIncident;
    uint64_t incident = 0;  ///< 0: none
    int32_t replica = -1;   ///< -1: the job as a whole
    std::string node;       ///< of kNodeOut and kGpu
    bool open = true;
    int64_t beginNs = 0;
    int64_t endNs = 0;  ///< the last event while it is open
    std::string title;  ///< "Replica 2 lost: process exit"
    std::string happened;
    std::vector<std::string> evidence;  ///< a line each, oldest first
    std::string now;                    ///< the system's action, or how it ended
    std::optional<Return> back;         ///< absent: it is back, or nothing brings it back
    std::string backText;
    std::optional<Cost> cost;      ///< absent: not counted for this kind of problem
    std::string costText;          ///< empty without `cost`
    std::string advice;            ///< one sentence, also when there is nothing to do
    std::optional<Action> action;  ///< that `advice` recommends
    uint64_t endFault = 0;         ///< or this fault, which lasts, is to be ended
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("problem", self.problem);
        visit("incident", self.incident);
        visit("replica", self.replica);
        visit("node", self.node);
        visit("open", self.open);
        visit("begin_ns", self.beginNs);
        visit("end_ns", self.endNs);
        visit("title", self.title);
        visit("happened", self.happened);
        visit("evidence", self.evidence);
        visit("now", self.now);
        visit("back", self.back);
        visit("back_text", self.backText);
        visit("cost", self.cost);
        visit("cost_text", self.costText);
        visit("advice", self.advice);
        visit("action", self.action);
        visit("end_fault", self.endFault);
    }
};

struct Prices {
    /// The environment variable that sets `gpuHour`, for the console and bulkheadctl.
    static constexpr const char* kGpuHourVariable = "BULKHEAD_GPU_HOUR_PRICE";

    double gpuHour = 0;  ///< 0: not set
    std::string currency = "USD";
};

/// Problems that stand and are no incident: the gravest first.
[[nodiscard]] std::vector<IncidentCard> standingCards(const RunState& state, const Prices& prices);

[[nodiscard]] IncidentCard incidentCard(const RunState& state, const IncidentView& incident,
                                        const Prices& prices);

/// All of them: the standing ones, open incidents, incidents that are over, each newest first.
[[nodiscard]] std::vector<IncidentCard> incidentCards(const RunState& state,
                                                      const Prices& prices = {});

/// Number of standing problems and open incidents.
[[nodiscard]] size_t openProblems(const RunState& state);

/// The card as lines of text, for a terminal. `job` is what commands are to name; empty: none.
[[nodiscard]] std::string cardText(const IncidentCard& card, int64_t startedNs,
                                   const std::string& job);

/// "bulkheadctl restart 2 --job demo"; empty for an action that has no verb of its own.
[[nodiscard]] std::string commandLine(const Action& action, const std::string& job);

}  // namespace bulkhead::model

namespace bulkhead {
template <>
struct EnumNames<model::Problem> {
    static constexpr std::array<std::string_view, 9> kNames = {
        "incident", "no_progress", "waiting",    "paused",   "replica_out",
        "node_out", "gpu",         "checkpoint", "invariant"};
};
}  // namespace bulkhead
