// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"

/// Simulates the throughput of a job of any size: a seeded event simulation of failures, stalls
/// and returns, replica by replica. The live job runs on a handful of processes; this says what
/// the same protocol is worth at a hundred thousand GPUs, and under which assumptions.
/// Pure; thread: values with one owner.
namespace bulkhead::model {

enum class WhatIfRecovery {
    kFaultTolerant,  ///< the others train on, the lost replica catches up
    kRestartAll,     ///< everybody goes back to the last checkpoint
};

enum class FailureSpacing {
    kEven,         ///< one failure an interval exactly, never of a replica that is out
    kExponential,  ///< independent failures of every node
};

/// Everything the simulation assumes. Rates are per node (server) and day, times in seconds.
struct WhatIf {
    WhatIfRecovery recovery = WhatIfRecovery::kFaultTolerant;
    FailureSpacing spacing = FailureSpacing::kExponential;

    double replicas = 12;  ///< contributing when all is well
    double spares = 0;     ///< more replicas, caught up, promoted at the next quorum
    double gpusPerReplica = 8192;
    double gpusPerNode = 8;

    double failuresPer1000NodeDays = 6.5;
    double intervalS = 0;         ///< > 0: mean time between failures, instead of the rate
    double silentShare = 0;       ///< 0..1 of the failures show no exit and no reset
    double sharedShare = 0;       ///< 0..1 of the failures are of something that replicas share
    double replicasPerShare = 2;  ///< neighbours that such a failure takes at once

    double stepS = 20;
    double samplesPerStep = 2048;  ///< of all contributors together

    double detectS = 0;        ///< failure to decision, where a process or connection ended
    double silentDetectS = 0;  ///< the same where nothing ended: a timeout
    double reformS = 0;        ///< decision to the exchange running without the lost
    double redoS = 0;          ///< the exchange (and whatever else) done once more
    double lostStepShare = 0;  ///< 0..1 of a step that the lost replica had computed, in the mean

    double restartS = 600;     ///< failure to processes running again
    double initS = 0;          ///< communicators of the replica
    double stateGBPerGpu = 0;  ///< to fetch: weights and optimizer state
    double fetchGBps = 1;      ///< per GPU
    double replayS = 0;        ///< steps missed since the snapshot, optimizer only
    double rejoinWaitS = 0;    ///< wait of the others at its return: in bench/failover
                               ///< 0.06 % of a step; in the published job 100 s

    double checkpointEveryS = 0;  ///< 0: nothing is lost when all go back
    double checkpointStallS = 0;  ///< training stands still for each
    double restartAllS = 600;     ///< failure to everybody training again from the checkpoint
};

/// The seconds of all active GPUs, as parts of 1. They add up to 1 with `effective`.
enum class TimeLoss : uint8_t {
    kDetect,      ///< nobody knows yet
    kReform,      ///< a new quorum, new connections
    kRedo,        ///< the exchange again
    kRejoin,      ///< the others wait for one that comes back
    kOutage,      ///< fewer replicas than wanted train on
    kRestart,     ///< everybody starts again, or nobody is left
    kRedoneWork,  ///< trained once, lost, trained again
    kCheckpoint,  ///< standing still to write one
};
inline constexpr size_t kTimeLosses = 8;

struct WhatIfResult {
    double effective = 0;       ///< 0..1 of the active GPUs' time: replicas x gpusPerReplica
    double perProvisioned = 0;  ///< the same of all GPUs, spares included
    double error = 0;           ///< standard error of `effective`, from 20 stretches of the run
    std::array<double, kTimeLosses> lost{};
    double failures = 0;
    double meanIntervalS = 0;  ///< days x 86,400 / failures
    double stallS = 0;         ///< mean stand-still per failure: detect, reform, redo, rejoin
    double samplesRedone = 0;
    double wholeJobLost = 0;  ///< times that no replica was left
};

/// OutOfRange naming the field, what it is and what it may be.
[[nodiscard]] absl::Status checkWhatIf(const WhatIf& scenario);

/// Same scenario, days and seed: same result. `scenario` passes checkWhatIf, days > 0. Costs
/// about a tenth of a microsecond per simulated failure and replica.
[[nodiscard]] WhatIfResult simulate(const WhatIf& scenario, double days, uint64_t seed);

/// Mean seconds between failures of this job.
[[nodiscard]] double failureIntervalS(const WhatIf& scenario);
/// Seconds from a failure until the replica contributes again.
[[nodiscard]] double outageS(const WhatIf& scenario);

/// One number of a scenario, for flags, sliders and tables.
struct WhatIfParameter {
    std::string_view key;    ///< as in WhatIf
    std::string_view label;  ///< "Restart of a replica"
    std::string_view unit;   ///< "s"; empty for a pure number
    double min = 0;
    double max = 0;
    bool whole = false;  ///< counts only
    double WhatIf::*field = nullptr;
};
std::span<const WhatIfParameter> whatIfParameters();

/// Failures per 1,000 node-days, whichever way the scenario gives them.
[[nodiscard]] double failureRate(const WhatIf& scenario);
/// Sets one number, whatever its bounds. A failure rate takes the place of a given interval, and a
/// job of another size keeps the rate that its interval meant.
void setWhatIf(WhatIf& scenario, const WhatIfParameter& parameter, double value);
/// The same from words. An unknown key (InvalidArgument), no number, or one out of range leaves the
/// scenario as it was and names what may be given.
[[nodiscard]] absl::Status setWhatIf(WhatIf& scenario, std::string_view key,
                                     std::string_view value);

/// A scenario with a name, and where each of its numbers is from.
struct WhatIfPreset {
    std::string_view name;   ///< "published_ft"
    std::string_view title;  ///< "FT-HSDP as published"
    double published = 0;    ///< the figure to compare with, 0..1; 0 when there is none
    WhatIf scenario;
};
std::span<const WhatIfPreset> whatIfPresets();

struct WhatIfSource {
    std::string_view preset;  ///< all presets whose name starts so
    std::string_view key;     ///< of WhatIfParameter
    std::string_view source;
};
/// Source of a preset's number; empty when it is 0 because nothing is assumed.
std::string_view whatIfSource(std::string_view preset, std::string_view key);

std::string_view timeLossName(TimeLoss loss);

}  // namespace bulkhead::model
