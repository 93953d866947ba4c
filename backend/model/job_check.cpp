// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <set>

#include "backend/common/limits.h"
#include "backend/model/command_text.h"
#include "backend/model/job_file.h"
#include "backend/model/names.h"
#include "backend/model/run_views.h"

namespace bulkhead::model {
namespace {

/// The first problem found, as "key: words".
class Check {
  public:
    template <class... Parts>
    void that(bool good, std::string_view key, const Parts&... words) {
        if (good || !status_.ok()) return;
        status_ = absl::InvalidArgumentError(concat(key, ": ", words...));
    }
    bool ok() const { return status_.ok(); }
    absl::Status status() && { return std::move(status_); }

  private:
    absl::Status status_;
};

/// No text of a job has a control character but those that are programs and their variables: it
/// becomes part of messages and paths, and the system ends a path at a NUL.
class CheckText {
  public:
    explicit CheckText(Check& check) : check_(check) {}

    template <class T>
    void operator()(std::string_view name, const T& value) {
        const size_t outer = key_.size();
        key_ += concat(outer == 0 ? "" : ".", name);
        that(value, name == "command" || name == "env" || name == "model_toml");
        key_.resize(outer);
    }

  private:
    template <class T>
    void that(const T& value, bool lines) {
        if constexpr (std::same_as<T, std::string>) {
            const bool good = std::ranges::none_of(value, [&](unsigned char c) {
                return c == 0 || (!lines && (c < ' ' || c == 0x7F));
            });
            check_.that(good, key_, "expected text without control characters, found \"",
                        shortened(printable(value), 200), "\"");
        } else if constexpr (requires { value.begin(); }) {
            for (size_t i = 0; i < value.size(); ++i) {
                const size_t outer = key_.size();
                key_ += concat("[", i, "]");
                that(value[i], lines);
                key_.resize(outer);
            }
        } else if constexpr (requires { T::fields(value, *this); }) {
            T::fields(value, *this);
        }
    }

    Check& check_;
    std::string key_;
};

bool between(double value, double least, double most) {
    return std::isfinite(value) && value >= least && value <= most;
}

void checkMembers(const JobSpec& s, Check& check) {
    check.that(s.replicas >= 1, "replicas", "expected 1 to ", kMaxGroupMembers, ", found 0");
    check.that(uint64_t{s.replicas} + s.spares <= kMaxGroupMembers, "replicas + spares", "at most ",
               kMaxGroupMembers, ", the exchange's limit; found ", s.replicas, " + ", s.spares);
    check.that(s.shards >= 1 && s.shards <= kMaxGroupMembers, "shards", "expected 1 to ",
               kMaxGroupMembers, ", the limit of a replica's group; found ", s.shards);
}

void checkCounts(const JobSpec& s, Check& check) {
    constexpr uint32_t kLongest = 1 << 20;
    check.that(isFileName(s.name), "name", "expected ", kFileNameRule, ", found \"",
               shortened(s.name, 60), "\"");
    checkMembers(s, check);
    check.that(s.sequenceLength >= 1 && s.sequenceLength <= kLongest, "sequence_length",
               "expected 1 to ", kLongest, ", found ", s.sequenceLength);
    check.that(s.microBatch >= 1 && s.microBatch <= kLongest, "micro_batch", "expected 1 or more");
    check.that(s.samplesPerReplica >= 1 && s.samplesPerReplica <= kLongest, "samples_per_replica",
               "expected 1 or more");
    const uint64_t atOnce = static_cast<uint64_t>(s.shards) * s.microBatch;
    check.that(atOnce > 0 && s.samplesPerReplica % atOnce == 0, "samples_per_replica",
               "expected a multiple of shards x micro_batch = ", s.shards, " x ", s.microBatch,
               ", found ", s.samplesPerReplica);
    check.that(!s.workload.empty(), "workload", "expected the name of a plugin, or a path to one");
    check.that(!s.device.empty(), "device",
               "expected \"auto\", \"cpu\", or the name of a device plugin");
    check.that(s.bucketBytes == 0 || (s.bucketBytes >= 4096 && s.bucketBytes <= (1ull << 30)),
               "bucket_bytes", "expected 4096 to 1073741824, or 0 for the usual size, found ",
               s.bucketBytes);
    check.that(s.connections >= 1 && s.connections <= kMaxPairConnections, "connections",
               "expected 1 to ", kMaxPairConnections, ", found ", s.connections);
    check.that(s.allReduce != AllReduce::kRing || s.transport != TransportChoice::kShm,
               "all_reduce", "a ring runs over TCP, but transport is \"shm\"");
}

void checkOptimizer(const OptimizerSpec& o, Check& check) {
    check.that(between(o.learningRate, 1e-30, 1e6), "optimizer.learning_rate",
               "expected a number above 0");
    check.that(between(o.minLearningRate, 0, o.learningRate), "optimizer.min_learning_rate",
               "expected 0 up to learning_rate");
    check.that(o.warmupSteps <= o.decaySteps, "optimizer.warmup_steps",
               "expected at most decay_steps = ", o.decaySteps, ", found ", o.warmupSteps);
    check.that(between(o.beta1, 0, 1) && o.beta1 < 1, "optimizer.beta1",
               "expected 0 or more and below 1");
    check.that(between(o.beta2, 0, 1) && o.beta2 < 1, "optimizer.beta2",
               "expected 0 or more and below 1");
    check.that(between(o.epsilon, 1e-30, 1), "optimizer.epsilon", "expected a number above 0");
    check.that(between(o.weightDecay, 0, 1e6), "optimizer.weight_decay", "expected 0 or more");
    check.that(between(o.clipNorm, 0, 1e30), "optimizer.clip_norm",
               "expected 0 (no clipping) or more");
}

void checkPolicies(const JobSpec& s, Check& check) {
    const Policies& p = s.policies;
    check.that(p.minReplicas >= 1 && p.minReplicas <= s.replicas, "policies.min_replicas",
               "expected 1 up to replicas = ", s.replicas, ", found ", p.minReplicas);
    check.that(between(s.plan.drift, 0, 100), "plan.drift",
               "expected 0 (nothing is proposed) to 100");
    check.that(p.checkpointsKept >= 1, "policies.checkpoints_kept", "expected 1 or more");
    const Timeouts& t = s.timeouts;
    check.that(t.beatMs >= 1, "timeouts.beat_ms", "expected 1 or more");
    check.that(t.heartbeatMs >= 2ull * t.beatMs, "timeouts.heartbeat_ms",
               "expected at least twice beat_ms = ", t.beatMs, ", found ", t.heartbeatMs);
    check.that(t.progressMultiple >= 1, "timeouts.progress_multiple", "expected 1 or more");
    check.that(t.chunkMultiple >= 1, "timeouts.chunk_multiple", "expected 1 or more");
    check.that(t.progressFloorMs >= 1, "timeouts.progress_floor_ms", "expected 1 or more");
    check.that(t.chunkFloorMs >= 1, "timeouts.chunk_floor_ms", "expected 1 or more");
    check.that(t.startMs >= 1, "timeouts.start_ms", "expected 1 or more");
}

void checkDomains(const JobSpec& s, Check& check) {
    const bool opaque = !s.command.empty();
    check.that(!s.domains.empty(), "domains", "expected at least one table [[domains]] with name",
               opaque ? "" : " and paths");
    std::set<std::string> names;
    for (size_t i = 0; i < s.domains.size() && check.ok(); ++i) {
        const std::string key = concat("domains[", i, "]");
        check.that(!s.domains[i].name.empty(), key + ".name", "expected a name, such as \"code\"");
        check.that(names.insert(s.domains[i].name).second, key + ".name", "\"",
                   shortened(s.domains[i].name, 60), "\" is the name of another domain too");
        check.that(opaque || !s.domains[i].paths.empty(), key + ".paths",
                   "expected at least one file or folder");
        check.that(!opaque || s.domains[i].paths.empty(), key + ".paths",
                   "a job with a command reads its data itself; remove this key");
    }
}

/// Options that a program decides by itself must not be in the job as if they counted.
void checkCommand(const JobSpec& s, Check& check) {
    check.that(between(s.clipNorm, 0, 1e30), "clip_norm", "expected 0 (no clipping) or more");
    if (s.command.empty()) {
        check.that(s.clipNorm == 0, "clip_norm",
                   "is for a job with a command, and this one has none: use optimizer.clip_norm");
        check.that(s.env.empty(), "env", "is for a job with a command, and this one has none");
        check.that(s.directory.empty(), "directory",
                   "is for a job with a command, and this one has none");
        return;
    }
    constexpr std::string_view kOwn = "a job with a command has its own; remove this";
    const JobSpec untouched;
    check.that(!s.command[0].empty(), "command", "expected a program and its arguments");
    check.that(!s.directory.empty() && s.directory[0] == '/', "directory",
               "expected an absolute path, found \"", shortened(s.directory, 60), "\"");
    check.that(s.workload == untouched.workload, "workload", kOwn);
    check.that(s.modelToml.empty(), "model", kOwn);
    check.that(s.optimizer == untouched.optimizer, "optimizer", kOwn);
    for (size_t i = 0; i < s.env.size() && check.ok(); ++i) {
        const std::string key = concat("env[", i, "]");
        const size_t equals = s.env[i].find('=');
        check.that(equals != std::string::npos && equals > 0, key, "expected NAME=value, found \"",
                   shortened(s.env[i], 60), "\"");
        check.that(s.env[i].compare(0, 9, "BULKHEAD_") != 0, key,
                   "names that begin with BULKHEAD_ are what the agent tells the program");
    }
}

void checkPlacement(const JobSpec& s, Check& check) {
    if (s.placement.empty()) return;
    std::set<std::string> nodes;
    std::vector<std::string> home(s.replicas + s.spares);
    for (size_t i = 0; i < s.placement.size() && check.ok(); ++i) {
        const NodePlacement& place = s.placement[i];
        const std::string key = concat("placement[", i, "]");
        check.that(isFileName(place.node), key + ".node", "expected the name of a node");
        check.that(nodes.insert(place.node).second, key + ".node", "\"", shortened(place.node, 60),
                   "\" is listed twice");
        for (int32_t r : place.replicas) {
            const bool exists = r >= 0 && static_cast<uint32_t>(r) < s.replicas + s.spares;
            check.that(exists, key + ".replicas", "expected 0 to ", s.replicas + s.spares - 1,
                       ", found ", r);
            if (!exists) break;
            std::string& taken = home[static_cast<size_t>(r)];
            check.that(taken.empty(), key + ".replicas", "replica ", r, " is on ", taken, " too");
            taken = place.node;
        }
    }
    for (size_t r = 0; r < s.replicas && check.ok(); ++r)  // a spare may be anywhere
        check.that(!home[r].empty(), "placement", "replica ", r, " is on no node");
}

void checkFaults(const JobSpec& s, Check& check) {
    for (size_t i = 0; i < s.faults.size() && check.ok(); ++i) {
        const std::string key = concat("faults[", i, "]");
        const absl::StatusOr<FaultSpec> fault = parseFault(s.faults[i]);
        check.that(fault.ok(), key, std::string(fault.status().message()));
        if (!fault.ok()) return;
        const uint32_t started = s.replicas + s.spares;
        check.that(fault->replica < static_cast<int32_t>(started), key,
                   "expected a replica from 0 to ", started - 1, ", found ", fault->replica);
        check.that(fault->shard < static_cast<int32_t>(s.shards), key,
                   "expected a shard from 0 to ", s.shards - 1, ", found ", fault->shard);
        const bool nodeKnown =
            fault->node.empty() || s.placement.empty() ||
            std::any_of(s.placement.begin(), s.placement.end(),
                        [&](const NodePlacement& place) { return place.node == fault->node; });
        check.that(nodeKnown, key, "no node is called ", fault->node, " in [[placement]]");
    }
}

}  // namespace

absl::Status checkSize(const JobSpec& spec) {
    Check check;
    checkMembers(spec, check);
    return std::move(check).status();
}

absl::Status checkJob(const JobSpec& spec) {
    Check check;
    CheckText text(check);
    JobSpec::fields(spec, text);
    checkCounts(spec, check);
    checkOptimizer(spec.optimizer, check);
    if (check.ok()) checkPolicies(spec, check);
    if (check.ok()) checkCommand(spec, check);
    if (check.ok()) checkDomains(spec, check);
    if (check.ok()) checkPlacement(spec, check);
    if (check.ok()) checkFaults(spec, check);
    return std::move(check).status();
}

}  // namespace bulkhead::model
