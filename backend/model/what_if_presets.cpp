// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <optional>
#include <sstream>
#include <string>

#include "backend/model/parse_number.h"
#include "backend/model/what_if.h"

namespace bulkhead::model {
namespace {

constexpr WhatIfParameter kParameters[] = {
    {"replicas", "Replicas", "", 1, 256, true, &WhatIf::replicas},
    {"spares", "Warm spare replicas", "", 0, 64, true, &WhatIf::spares},
    {"gpusPerReplica", "GPUs in a replica", "", 1, 131072, true, &WhatIf::gpusPerReplica},
    {"gpusPerNode", "GPUs in a node", "", 1, 128, true, &WhatIf::gpusPerNode},
    {"failuresPer1000NodeDays", "Failures per 1,000 node-days", "", 0, 1000, false,
     &WhatIf::failuresPer1000NodeDays},
    {"intervalS", "Time between failures, if given", "s", 0, 1e8, false, &WhatIf::intervalS},
    {"silentShare", "Share of silent failures", "", 0, 1, false, &WhatIf::silentShare},
    {"sharedShare", "Share of failures in what replicas share", "", 0, 1, false,
     &WhatIf::sharedShare},
    {"replicasPerShare", "Replicas hit by such a failure", "", 1, 256, true,
     &WhatIf::replicasPerShare},
    {"stepS", "Step", "s", 0.001, 3600, false, &WhatIf::stepS},
    {"samplesPerStep", "Samples in a step", "", 1, 1e9, true, &WhatIf::samplesPerStep},
    {"detectS", "Detection", "s", 0, 3600, false, &WhatIf::detectS},
    {"silentDetectS", "Detection of a silent failure", "s", 0, 3600, false, &WhatIf::silentDetectS},
    {"reformS", "New quorum and connections", "s", 0, 3600, false, &WhatIf::reformS},
    {"redoS", "Exchange again", "s", 0, 3600, false, &WhatIf::redoS},
    {"lostStepShare", "Part of a step lost with the replica", "", 0, 1, false,
     &WhatIf::lostStepShare},
    {"restartS", "Restart of a replica", "s", 0, 86400, false, &WhatIf::restartS},
    {"initS", "Communicators of a replica", "s", 0, 3600, false, &WhatIf::initS},
    {"stateGBPerGpu", "State per GPU", "GB", 0, 1024, false, &WhatIf::stateGBPerGpu},
    {"fetchGBps", "Fetch bandwidth per GPU", "GB/s", 0.001, 1000, false, &WhatIf::fetchGBps},
    {"replayS", "Replay of missed steps", "s", 0, 3600, false, &WhatIf::replayS},
    {"rejoinWaitS", "Others wait at a rejoin", "s", 0, 3600, false, &WhatIf::rejoinWaitS},
    {"checkpointEveryS", "Time between checkpoints", "s", 0, 1e6, false, &WhatIf::checkpointEveryS},
    {"checkpointStallS", "Stand-still for a checkpoint", "s", 0, 3600, false,
     &WhatIf::checkpointStallS},
    {"restartAllS", "Restart of the whole job", "s", 0, 86400, false, &WhatIf::restartAllS},
};

WhatIf publishedFt(double rejoinWaitS) {
    WhatIf s;
    s.spacing = FailureSpacing::kEven;
    s.intervalS = 18 * 60;
    s.detectS = 100;
    s.reformS = 60;
    s.redoS = 20;
    s.rejoinWaitS = rejoinWaitS;
    return s;
}

/// The same job, were it to restart as a whole.
WhatIf publishedSync() {
    WhatIf s = publishedFt(0);
    s.recovery = WhatIfRecovery::kRestartAll;
    return s;
}

WhatIf exponential(WhatIf s) {
    s.spacing = FailureSpacing::kExponential;
    return s;
}

WhatIf bulkhead(double spares) {
    WhatIf s;
    s.spares = spares;
    s.silentShare = 0.090;
    s.sharedShare = 0.053;
    s.detectS = 2;
    s.silentDetectS = 30;
    s.reformS = 1;
    s.redoS = 1;
    s.lostStepShare = 0.5;
    s.restartS = 580;
    s.initS = 14.5;
    s.stateGBPerGpu = 3.9;
    s.replayS = 1.6;
    s.rejoinWaitS = 0.012;
    s.checkpointEveryS = 1800;
    s.checkpointStallS = 0.2;
    return s;
}

// One of each kind: the spacing of failures is the only difference inside a pair.
const WhatIfPreset kPresets[] = {
    {"published_sync", "Synchronous, as published", 0.44, publishedSync()},
    {"published_sync_exponential", "  with exponential spacing", 0, exponential(publishedSync())},
    {"published_ft", "FT-HSDP, as published", 0.80, publishedFt(0)},
    {"published_ft_exponential", "  with exponential spacing", 0, exponential(publishedFt(0))},
    {"published_ft_rejoin", "FT-HSDP with its rejoin stall", 0.71, publishedFt(100)},
    {"published_ft_rejoin_exponential", "  with exponential spacing", 0,
     exponential(publishedFt(100))},
    {"bulkhead", "Bulkhead", 0, bulkhead(0)},
    {"bulkhead_spares", "Bulkhead, two warm spares", 0, bulkhead(2)},
};

constexpr WhatIfSource kSources[] = {
    {"", "replicas", "arXiv 2602.00277: 12 replicas at 98K GPUs"},
    {"", "gpusPerReplica", "arXiv 2602.00277: 8,192 GPUs in each"},
    {"", "gpusPerNode", "H100 servers have 8"},
    {"", "failuresPer1000NodeDays",
     "Kokolis et al., HPCA'25: 6.5 on RSC-1 (2.3 on RSC-2 and in the 32K run of arXiv 2602.00277); "
     "at 98K GPUs 6.5 gives the 18 minutes that the paper measured"},
    {"", "stepS", "arXiv 2602.00277: about 20 s at 98K GPUs"},
    {"", "samplesPerStep", "assumed: 16M tokens of 8,192, as Llama 3 405B was trained"},
    {"published", "intervalS", "arXiv 2602.00277: a failure every 18 minutes"},
    {"published", "restartAllS", "arXiv 2602.00277: 10 minutes of stall for each failure"},
    {"published", "restartS",
     "arXiv 2602.00277: 10 minutes until the replica is back, (8 + 7 x 11/12) / 18"},
    {"published", "detectS",
     "what is left of the published 3 minutes: 60 s timeout and 40 s of two faults since mended"},
    {"published", "reformS", "part of the published 3 minutes; the split is not published"},
    {"published", "redoS", "arXiv 2602.00277: the step again, about 20 s"},
    {"published_ft_rejoin", "rejoinWaitS",
     "arXiv 2602.00277: about 100 s on the first step after a rejoin, not in its 80%"},
    {"bulkhead", "silentShare", "arXiv 2602.00277, 678 failures: 61 are watchdog timeouts"},
    {"bulkhead", "sharedShare", "arXiv 2602.00277, 678 failures: 36 are of switches or cables"},
    {"bulkhead", "replicasPerShare", "assumed: a switch takes two neighbours with it"},
    {"bulkhead", "spares", "the case asked for"},
    {"bulkhead", "detectS",
     "measured 0.04 s (process exit seen by the agent, 8 processes on one host); 2 s allow a "
     "driver to tear down 80 GB and the word to cross buildings"},
    {"bulkhead", "silentDetectS",
     "measured 0.53 s at a floor of 0.5 s; here 1.5 steps, since a timeout follows what is usual"},
    {"bulkhead", "reformS",
     "measured 0.003 s for 8 ranks; each rank connects to 11 peers at any size, so 1 s is for "
     "12 leaders across buildings"},
    {"bulkhead", "redoS",
     "200-500 MB per rank, ring of 12 over 400 Gb/s at 1:2.8: 0.02-0.05 s; 1 s assumed"},
    {"bulkhead", "lostStepShare", "a failure comes anywhere in a step: half of one in the mean"},
    {"bulkhead", "restartS",
     "so that an outage is the 10 minutes of the published arithmetic with what follows"},
    {"bulkhead", "initS", "published NCCL initialisation at 8K GPUs: 14.5 s (NCCLX 4.0 s)"},
    {"bulkhead", "stateGBPerGpu", "2e12 parameters x 16 bytes / 8,192 GPUs"},
    {"bulkhead", "fetchGBps", "assumed: 8 Gb/s of a host's network for each of its GPUs"},
    {"bulkhead", "replayS", "assumed: optimizer alone over the steps missed while fetching"},
    {"bulkhead", "rejoinWaitS",
     "measured by bench/failover: 0.06% of a median step of 65 ms (its bar is 5%); here of 20 s"},
    {"bulkhead", "checkpointEveryS", "assumed; matters only when every replica is lost"},
    {"bulkhead", "checkpointStallS", "written from a snapshot behind training: 1% of a step"},
    {"bulkhead", "restartAllS", "as published for a synchronous restart at this size"},
};

constexpr std::string_view kLossNames[kTimeLosses] = {
    "detect", "reform", "redo", "rejoin", "outage", "restart", "redone work", "checkpoint"};

}  // namespace

std::span<const WhatIfParameter> whatIfParameters() {
    return kParameters;
}
std::span<const WhatIfPreset> whatIfPresets() {
    return kPresets;
}

std::string_view whatIfSource(std::string_view preset, std::string_view key) {
    std::string_view best;
    size_t longest = 0;
    for (const WhatIfSource& s : kSources) {
        if (s.key != key || !preset.starts_with(s.preset) || s.preset.size() < longest) continue;
        best = s.source;
        longest = s.preset.size();
    }
    return best;
}

std::string_view timeLossName(TimeLoss loss) {
    return kLossNames[static_cast<size_t>(loss)];
}

double failureRate(const WhatIf& s) {
    if (s.intervalS <= 0) return s.failuresPer1000NodeDays;
    const double nodes = (s.replicas + s.spares) * s.gpusPerReplica / s.gpusPerNode;
    return 86400 / s.intervalS / nodes * 1000;
}

void setWhatIf(WhatIf& scenario, const WhatIfParameter& parameter, double value) {
    for (const auto key : {&WhatIf::replicas, &WhatIf::spares, &WhatIf::gpusPerReplica,
                           &WhatIf::gpusPerNode, &WhatIf::failuresPer1000NodeDays}) {
        if (parameter.field != key) continue;
        scenario.failuresPer1000NodeDays = failureRate(scenario);
        scenario.intervalS = 0;
    }
    scenario.*parameter.field = value;
}

absl::Status setWhatIf(WhatIf& scenario, std::string_view key, std::string_view value) {
    const auto* const parameter =
        std::ranges::find(kParameters, key, [](const WhatIfParameter& p) { return p.key; });
    if (parameter == std::end(kParameters)) {
        std::string known;
        for (const WhatIfParameter& p : kParameters) known.append(" ").append(p.key);
        return absl::InvalidArgumentError(std::string(key) +
                                          " is no number of a scenario; one of:" + known);
    }
    const std::optional<double> number = parseNumber<double>(value);
    WhatIf changed = scenario;
    setWhatIf(changed, *parameter, number.value_or(std::nan("")));
    const absl::Status status = checkWhatIf(changed);
    if (status.ok()) scenario = changed;
    return status;
}

absl::Status checkWhatIf(const WhatIf& scenario) {
    for (const WhatIfParameter& p : kParameters) {
        const double value = scenario.*p.field;
        const bool inside = value >= p.min && value <= p.max;
        if (inside && !(p.whole && value != std::floor(value))) continue;
        std::ostringstream text;
        text << p.key << " is " << value << "; expected "
             << (p.whole ? "a whole number" : "a number") << " from " << p.min << " to " << p.max
             << (p.unit.empty() ? "" : " ") << p.unit;
        return absl::OutOfRangeError(text.str());
    }
    return absl::OkStatus();
}

}  // namespace bulkhead::model
