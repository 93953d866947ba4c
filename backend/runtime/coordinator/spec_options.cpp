// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/spec_options.h"

#include <algorithm>

namespace bulkhead::runtime {

protocol::Policies machinePolicies(const model::Policies& p) {
    protocol::Policies out;
    out.lr = static_cast<protocol::LrPolicy>(p.lr);
    out.batch = static_cast<protocol::BatchPolicy>(p.batch);
    out.recovery = static_cast<protocol::RecoveryPolicy>(p.recovery);
    out.minReplicas = p.minReplicas;
    out.parityEverySteps = p.parityEverySteps.value_or(protocol::kParityAuto);
    out.checkpointEverySteps = p.checkpointEverySteps;
    out.restartLimit = p.restartLimit;
    out.fetchBytesPerSecond = p.fetchBytesPerSecond;
    out.checkpointsKept = p.checkpointsKept;
    return out;
}

model::Policies modelPolicies(const protocol::Policies& known, model::Policies p) {
    p.lr = static_cast<model::LrPolicy>(known.lr);
    p.batch = static_cast<model::BatchPolicy>(known.batch);
    p.recovery = static_cast<model::RecoveryPolicy>(known.recovery);
    p.minReplicas = known.minReplicas;
    p.parityEverySteps.reset();
    if (known.parityEverySteps != protocol::kParityAuto)
        p.parityEverySteps = known.parityEverySteps;
    p.checkpointEverySteps = known.checkpointEverySteps;
    p.restartLimit = known.restartLimit;
    p.fetchBytesPerSecond = known.fetchBytesPerSecond;
    p.checkpointsKept = known.checkpointsKept;
    return p;
}

protocol::Options machineOptions(const model::JobSpec& spec, const Secret& secret) {
    protocol::Options o;
    o.replicas = spec.replicas;
    o.shards = spec.shards;
    o.spares = spec.spares;
    o.steps = spec.steps;
    o.secret = secret;
    o.sequenceLength = spec.sequenceLength;
    o.samplesPerReplica = spec.samplesPerReplica;
    o.domains = std::max<uint32_t>(1, static_cast<uint32_t>(spec.domains.size()));
    o.optimizer.reset();
    if (const model::OptimizerSpec& given = spec.optimizer; spec.command.empty())
        o.optimizer = {given.learningRate, given.minLearningRate, given.warmupSteps,
                       given.decaySteps,   given.beta1,           given.beta2,
                       given.clipNorm};
    o.clipNorm = spec.clipNorm;
    o.policies = machinePolicies(spec.policies);
    o.timeouts.beatMs = spec.timeouts.beatMs;
    o.timeouts.heartbeatMs = spec.timeouts.heartbeatMs;
    o.timeouts.progressFloorMs = spec.timeouts.progressFloorMs;
    o.timeouts.progressMultiple = spec.timeouts.progressMultiple;
    o.timeouts.chunkFloorMs = spec.timeouts.chunkFloorMs;
    o.timeouts.chunkMultiple = spec.timeouts.chunkMultiple;
    o.timeouts.joinMs = spec.timeouts.joinMs;
    o.timeouts.orphanMs = spec.timeouts.orphanMs;
    o.timeouts.startMs = spec.timeouts.startMs;
    return o;
}

}  // namespace bulkhead::runtime
