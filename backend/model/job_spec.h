// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/common/fields.h"

/// A job as its TOML file says it, with every default filled in. Pure data; job_file.h reads it.
namespace bulkhead::model {

enum class LrPolicy { kNone, kLinear, kSqrt };
enum class BatchPolicy { kShrink, kConstant };
enum class RecoveryPolicy { kFt, kRestartAll };
enum class TransportChoice { kAuto, kShm, kTcp };
enum class WireType { kFloat32, kBfloat16 };
enum class AllReduce { kAuto, kDirect, kRing, kHierarchical };

}  // namespace bulkhead::model

namespace bulkhead {
template <>
struct EnumNames<model::LrPolicy> {
    static constexpr std::array<std::string_view, 3> kNames = {"none", "linear", "sqrt"};
};
template <>
struct EnumNames<model::BatchPolicy> {
    static constexpr std::array<std::string_view, 2> kNames = {"shrink", "constant"};
};
template <>
struct EnumNames<model::RecoveryPolicy> {
    static constexpr std::array<std::string_view, 2> kNames = {"ft", "restart_all"};
};
template <>
struct EnumNames<model::TransportChoice> {
    static constexpr std::array<std::string_view, 3> kNames = {"auto", "shm", "tcp"};
};
template <>
struct EnumNames<model::WireType> {
    static constexpr std::array<std::string_view, 2> kNames = {"float32", "bfloat16"};
};
template <>
struct EnumNames<model::AllReduce> {
    static constexpr std::array<std::string_view, 4> kNames = {"auto", "direct", "ring",
                                                               "hierarchical"};
};
}  // namespace bulkhead

namespace bulkhead::model {

/// Policies that may change while the job runs; each change is an event.
struct Policies {
    LrPolicy lr = LrPolicy::kSqrt;
    BatchPolicy batch = BatchPolicy::kShrink;
    RecoveryPolicy recovery = RecoveryPolicy::kFt;
    uint32_t minReplicas = 1;
    /// Replicas compare hashes of their states every so many steps; 0: never. None: as often as
    /// costs at most a hundredth of the steps, by what a hash and a step are seen to take.
    std::optional<uint32_t> parityEverySteps;
    uint32_t checkpointEverySteps = 50;
    uint32_t checkpointsKept = 3;
    /// Restarts of one replica within ten minutes before it is given up; 0: never give up.
    uint32_t restartLimit = 10;
    /// Bytes per second one joiner may pull in all; 0: no cap.
    uint64_t fetchBytesPerSecond = 0;
    /// Bytes of reduced gradients each source keeps while a joiner catches up; those of eight steps
    /// at least, whatever they take.
    uint64_t deltaBudgetBytes = 256ull << 20;
    bool operator==(const Policies&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("lr", self.lr);
        visit("batch", self.batch);
        visit("recovery", self.recovery);
        visit("min_replicas", self.minReplicas);
        visit("parity_every_steps", self.parityEverySteps);
        visit("checkpoint_every_steps", self.checkpointEverySteps);
        visit("checkpoints_kept", self.checkpointsKept);
        visit("restart_limit", self.restartLimit);
        visit("fetch_bytes_per_second", self.fetchBytesPerSecond);
        visit("delta_budget_bytes", self.deltaBudgetBytes);
    }
};

/// Detection bounds, milliseconds. I4's bound is computed from these.
struct Timeouts {
    uint32_t beatMs = 100;
    uint32_t heartbeatMs = 2000;      ///< no beat for so long: missed heartbeats
    uint32_t progressFloorMs = 3000;  ///< alive but stuck: at least this, else a multiple of a step
    uint32_t progressMultiple = 8;
    uint32_t chunkFloorMs = 500;  ///< exchange without progress: at least this
    uint32_t chunkMultiple = 20;
    uint32_t joinMs = 10000;     ///< start of a job: wait so long for all replicas
    uint32_t orphanMs = 600000;  ///< worker without a coordinator
    uint32_t startMs = 60000;    ///< start of a process to its first word; a program's imports
    bool operator==(const Timeouts&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("beat_ms", self.beatMs);
        visit("heartbeat_ms", self.heartbeatMs);
        visit("progress_floor_ms", self.progressFloorMs);
        visit("progress_multiple", self.progressMultiple);
        visit("chunk_floor_ms", self.chunkFloorMs);
        visit("chunk_multiple", self.chunkMultiple);
        visit("join_ms", self.joinMs);
        visit("orphan_ms", self.orphanMs);
        visit("start_ms", self.startMs);
    }
};

struct OptimizerSpec {
    double learningRate = 3e-3;
    double minLearningRate = 3e-4;
    uint64_t warmupSteps = 20;
    uint64_t decaySteps = 2000;  ///< cosine from learningRate to minLearningRate, warm-up included
    double beta1 = 0.9;
    double beta2 = 0.95;
    double epsilon = 1e-8;
    double weightDecay = 0.1;
    double clipNorm = 1.0;  ///< 0: no clipping
    bool operator==(const OptimizerSpec&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("learning_rate", self.learningRate);
        visit("min_learning_rate", self.minLearningRate);
        visit("warmup_steps", self.warmupSteps);
        visit("decay_steps", self.decaySteps);
        visit("beta1", self.beta1);
        visit("beta2", self.beta2);
        visit("epsilon", self.epsilon);
        visit("weight_decay", self.weightDecay);
        visit("clip_norm", self.clipNorm);
    }
};

/// One domain of training text: a file, or a folder whose text files are read in name order. A job
/// with a command has only the names: what a sample's index stands for, its program knows.
struct DomainSpec {
    std::string name;
    std::vector<std::string> paths;  ///< absolute after reading
    bool operator==(const DomainSpec&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("name", self.name);
        visit("paths", self.paths);
    }
};

/// Maps replicas to nodes. Empty node list in the file: one local node.
struct NodePlacement {
    std::string node;
    std::vector<int32_t> replicas;
    bool operator==(const NodePlacement&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("node", self.node);
        visit("replicas", self.replicas);
    }
};

/// When the backend proposes to lay experts out anew. It never moves them by itself.
struct PlanSpec {
    /// So much more, as a part, than was predicted of the plan in use: remote copies, or tokens of
    /// the busiest shard. 0: nothing is proposed.
    double drift = 0.1;
    uint64_t cooldownSteps = 500;  ///< at least so many from a proposal or move to the next
    bool operator==(const PlanSpec&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("drift", self.drift);
        visit("cooldown_steps", self.cooldownSteps);
    }
};

struct JobSpec {
    std::string name;
    uint32_t replicas = 4;
    uint32_t shards = 2;
    uint32_t spares = 0;  ///< replicas beyond those, kept caught up: who is lost is replaced
    uint64_t steps = 0;   ///< stop with a checkpoint after so many; 0: until told
    uint64_t seed = 1;
    /// The program of a rank and its arguments, in place of bulkhead-worker with a workload: it
    /// drives the replica library itself (docs/python.md). Found by the agent's PATH, or from
    /// `directory`. Empty: the workload.
    std::vector<std::string> command;
    std::vector<std::string> env;        ///< NAME=value, for the command, over the agent's own
    std::string directory;               ///< the command's; absolute after reading
    std::string workload = "llama_moe";  ///< plugin name, or path of a .so
    std::string device = "cpu";
    bool shareGpu = false;           ///< ranks need not have a GPU each, where there are too few
    std::string modelToml;           ///< the [model] table, as TOML text for the plugin
    uint32_t sequenceLength = 128;   ///< tokens per sample
    uint32_t samplesPerReplica = 4;  ///< per step, all shards together
    uint32_t microBatch = 1;         ///< samples per shard and forward/backward
    std::vector<DomainSpec> domains;
    /// Text up to this size is copied into the run's folder when the job starts, so that editing
    /// the original cannot hurt it; larger text is read where it is. 0: never copied.
    uint64_t dataCopyBytes = 32ull << 20;
    OptimizerSpec optimizer;
    /// The most that the norm of a command's mean gradient may be, over all its shards; a longer
    /// one is scaled to it before the update. 0: no clipping. A workload has optimizer.clipNorm.
    double clipNorm = 0;
    Policies policies;
    Timeouts timeouts;
    TransportChoice transport = TransportChoice::kAuto;
    WireType wire = WireType::kFloat32;  ///< gradients as they travel between replicas
    AllReduce allReduce = AllReduce::kAuto;
    uint32_t connections = 1;  ///< TCP connections between two ranks of an exchange
    uint64_t bucketBytes = 0;  ///< of the gradient, exchanged at a time; 0: as the device needs
    std::vector<NodePlacement> placement;
    PlanSpec plan;
    std::string checkpointDir;        ///< absolute after reading
    std::vector<std::string> faults;  ///< as in fault.h, e.g. kill:replica=2@step=50
    bool allowFaults = false;         ///< faults and campaigns may be injected while it runs
    bool encrypt = false;  ///< gradients on TCP (AES-256-GCM); else they can be read, not changed
    /// Its ranks are given GPUs on nodes that have some.
    bool mayUseGpus() const { return device != "cpu"; }
    bool takesFaults() const { return allowFaults || !faults.empty(); }
    bool operator==(const JobSpec&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("name", self.name);
        visit("replicas", self.replicas);
        visit("shards", self.shards);
        visit("spares", self.spares);
        visit("steps", self.steps);
        visit("seed", self.seed);
        visit("command", self.command);
        visit("env", self.env);
        visit("directory", self.directory);
        visit("workload", self.workload);
        visit("device", self.device);
        visit("share_gpu", self.shareGpu);
        visit("model_toml", self.modelToml);
        visit("sequence_length", self.sequenceLength);
        visit("samples_per_replica", self.samplesPerReplica);
        visit("micro_batch", self.microBatch);
        visit("domains", self.domains);
        visit("data_copy_bytes", self.dataCopyBytes);
        visit("optimizer", self.optimizer);
        visit("clip_norm", self.clipNorm);
        visit("policies", self.policies);
        visit("timeouts", self.timeouts);
        visit("transport", self.transport);
        visit("wire", self.wire);
        visit("all_reduce", self.allReduce);
        visit("connections", self.connections);
        visit("bucket_bytes", self.bucketBytes);
        visit("placement", self.placement);
        visit("plan", self.plan);
        visit("checkpoint_dir", self.checkpointDir);
        visit("faults", self.faults);
        visit("allow_faults", self.allowFaults);
        visit("encrypt", self.encrypt);
    }
};

}  // namespace bulkhead::model
