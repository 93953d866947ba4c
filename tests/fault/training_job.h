// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/fault/job_test.h"

namespace bulkhead::fault {

/// Jobs of real workers that train a tiny model.
class TrainingJob : public JobTest {
  protected:
    TrainingJob() { patience_ = 60 * kSecond; }
    model::JobSpec spec(uint64_t steps, uint32_t replicas = 3, uint32_t shards = 1) {
        model::JobSpec s = host_->tinySpec(replicas, shards, steps);
        s.timeouts.beatMs = 50;
        s.timeouts.heartbeatMs = 1500;
        return s;
    }
    /// After a rejoin every contributor holds the same bits: the votes' hashes were compared by the
    /// coordinator at every step, and the replica that came back contributes to steps after it.
    void expectRejoined(int32_t replica) {
        const auto closed = await<model::IncidentClosed>();
        ASSERT_TRUE(closed.has_value());
        EXPECT_THAT(closed->outcome, testing::HasSubstr("rejoined"));
        const uint64_t step = all<model::StepCommitted>().back().record.step;
        await<model::StepCommitted>([&](const model::StepCommitted& c) {
            if (c.record.step < step + 3) return false;
            for (const Contribution& k : c.record.contributors)
                if (k.replica == replica) return true;
            return false;
        });
    }
    void stopAndAudit() {
        ASSERT_TRUE(act(model::ActionKind::kStop).ok());
        expectFinishedWell();
    }
    uint64_t killAt(const std::string& phase, int32_t replica, int32_t shard) {
        model::FaultSpec fault;
        fault.kind = model::FaultKind::kKillRank;
        fault.replica = replica;
        fault.shard = shard;
        fault.atStep = host_->controller().status(run_)->step + 4;
        fault.atPhase = phase;
        return host_->controller().inject(run_, fault, 0, "", "test").value_or(0);
    }
};

}  // namespace bulkhead::fault
