// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iterator>
#include <vector>

#include "backend/runtime/protocol/commit_log.h"
#include "tests/fault/job_test.h"

namespace bulkhead::runtime {

/// Jobs whose ranks are real processes that speak the protocol and train nothing.
class ScriptedJob : public fault::JobTest {
  protected:
    std::string worker() const override { return "bulkhead-scripted-worker"; }
    model::JobSpec spec(uint64_t steps, uint32_t replicas = 4) {
        model::JobSpec s = host_->tinySpec(replicas, 1, steps);
        s.timeouts.beatMs = 20;
        s.timeouts.heartbeatMs = 500;
        s.timeouts.progressFloorMs = 2000;
        return s;
    }
    std::vector<protocol::LogEntry> commitLog() const {
        std::ifstream file(host_->dir() + "/state/" + run_ + "/commit.log", std::ios::binary);
        const std::string bytes{std::istreambuf_iterator<char>(file), {}};
        auto log = protocol::decodeLog(bytes);
        return log.ok() ? log->entries : std::vector<protocol::LogEntry>{};
    }
};

}  // namespace bulkhead::runtime
