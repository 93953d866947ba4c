// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "backend/common/fields.h"
#include "backend/common/secret.h"

/// The facts of a job that the machines need. The drivers fill it from model::JobSpec; protocol/
/// does not look there, so that the simulator and the tests can do without job files.
namespace bulkhead::protocol {

/// So many contributors tie when one of them has another state and one is lost before that is seen;
/// of more a majority is left, and nobody needs to keep a state for judging a tie.
constexpr size_t kMostThatTie = 3;

/// A value of Policies::parityEverySteps: the coordinator chooses it by what a hash takes.
inline constexpr uint32_t kParityAuto = ~0u;

enum class LrPolicy { kNone, kLinear, kSqrt };
enum class BatchPolicy { kShrink, kConstant };
enum class RecoveryPolicy { kFt, kRestartAll };

/// May change while the job runs.
struct Policies {
    LrPolicy lr = LrPolicy::kSqrt;
    BatchPolicy batch = BatchPolicy::kShrink;
    RecoveryPolicy recovery = RecoveryPolicy::kFt;
    uint32_t minReplicas = 1;
    uint32_t parityEverySteps = 1;       ///< 0: never; or kParityAuto
    uint32_t checkpointEverySteps = 50;  ///< 0: only when asked for
    uint32_t restartLimit = 10;          ///< restarts within restartWindowMs; 0: never give up
    uint64_t fetchBytesPerSecond = 0;    ///< 0: no cap
    uint32_t checkpointsKept = 3;        ///< of so many steps; 0 counts as 1
    bool operator==(const Policies&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("lr", self.lr);
        visit("batch", self.batch);
        visit("recovery", self.recovery);
        visit("min_replicas", self.minReplicas);
        visit("parity_every_steps", self.parityEverySteps);
        visit("checkpoint_every_steps", self.checkpointEverySteps);
        visit("restart_limit", self.restartLimit);
        visit("fetch_bytes_per_second", self.fetchBytesPerSecond);
    }
};

/// Milliseconds.
struct Timeouts {
    uint32_t beatMs = 100;
    uint32_t heartbeatMs = 2000;
    uint32_t progressFloorMs = 3000;
    uint32_t progressMultiple = 8;  ///< of the observed step time
    uint32_t chunkFloorMs = 500;
    uint32_t chunkMultiple = 20;  ///< of the observed exchange time
    uint32_t joinMs = 10000;      ///< start of a job or of a coordinator: wait so long for all
    uint32_t startMs = 60000;    ///< from Start to the last rank's Hello, and from formed to Report
    uint32_t fetchMs = 60000;    ///< a fetch or replay without progress
    uint32_t orphanMs = 600000;  ///< a rank without a coordinator
    uint32_t backoffFirstMs = 100;  ///< doubles with every restart in the window
    uint32_t backoffMaxMs = 30000;
    uint32_t restartWindowMs = 600000;
    uint32_t stopMs = 10000;  ///< orderly stop until StopReplica kills
    /// Evidence against half of the contributors or more, two at least, or against the only one
    /// that holds what no checkpoint has, pauses the job until agents confirm it or the suspects
    /// are heard again. After this much silence, with no word either way, they are taken for lost:
    /// two hung replicas of four would else hold the job for ever. 0: never. A stop with a
    /// checkpoint waits for the only holder until its agent confirms its end, or a stop without a
    /// checkpoint is ordered.
    uint32_t massPauseMs = 30000;
    bool operator==(const Timeouts&) const = default;
};

struct Optimizer {
    double learningRate = 3e-3;
    double minLearningRate = 3e-4;
    uint64_t warmupSteps = 20;
    uint64_t decaySteps = 2000;
    double beta1 = 0.9;
    double beta2 = 0.95;
    double clipNorm = 1.0;  ///< 0: no clipping
    bool operator==(const Optimizer&) const = default;
};

struct Options {
    uint32_t replicas = 4;
    uint32_t shards = 2;
    /// Replicas beyond those, kept caught up: whoever is lost is replaced at the next quorum.
    uint32_t spares = 0;
    uint64_t steps = 0;  ///< stop with a checkpoint after this step; 0: until told
    Secret secret;       ///< of the run; keys of exchanges and of fetches are derived from it
    uint32_t sequenceLength = 128;   ///< tokens per sample
    uint32_t samplesPerReplica = 4;  ///< per step, all shards together
    uint32_t domains = 1;
    std::string run;  ///< names the run in every term of its log; empty: the log does not say
    /// Likewise the secret that its ranks know, by a fingerprint; empty: the log does not say.
    std::string secretId;
    std::vector<double> domainWeights;  ///< share of fresh samples by domain; empty: equal shares
    uint64_t corpusHash = 0;            ///< expected of every Hello; 0: the first one sets it
    std::optional<Optimizer> optimizer = Optimizer{};  ///< none: the program has its own
    double clipNorm = 0;  ///< of such a program's mean gradient; 0: no clipping
    Policies policies;
    Timeouts timeouts;
};

}  // namespace bulkhead::protocol

namespace bulkhead {
template <>
struct EnumNames<protocol::LrPolicy> {
    static constexpr std::array<std::string_view, 3> kNames = {"none", "linear", "sqrt"};
};
template <>
struct EnumNames<protocol::BatchPolicy> {
    static constexpr std::array<std::string_view, 2> kNames = {"shrink", "constant"};
};
template <>
struct EnumNames<protocol::RecoveryPolicy> {
    static constexpr std::array<std::string_view, 2> kNames = {"ft", "restart_all"};
};
}  // namespace bulkhead
