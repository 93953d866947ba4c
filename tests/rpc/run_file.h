// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "backend/common/clock.h"
#include "backend/history/run_store.h"

namespace bulkhead::testing {

constexpr int64_t kRunBeginNs = 1'000'000'000'000;
constexpr int64_t kStepNs = 100 * kMillisecond;

/// The events of a run of two replicas: one start, then `steps` commits 100 ms apart that consume
/// one domain's samples in order.
inline std::vector<model::Event> madeUpRun(uint64_t steps) {
    std::vector<model::Event> events;
    const auto add = [&](int64_t timeNs, model::EventBody body) {
        model::Event event;
        event.seq = events.size() + 1;
        event.timeNs = timeNs;
        event.body = std::move(body);
        events.push_back(std::move(event));
    };
    model::RunStarted started;
    started.spec.name = "demo";
    started.spec.replicas = 2;
    started.spec.shards = 1;
    started.host = "here";
    add(kRunBeginNs, started);
    for (uint64_t step = 1; step <= steps; ++step) {
        model::StepCommitted commit;
        commit.record.step = step;
        commit.record.lineage = 1;
        commit.record.samples = 8;
        for (int32_t replica = 0; replica < 2; ++replica) {
            const uint64_t begin = (step - 1) * 8 + static_cast<uint64_t>(replica) * 4;
            commit.record.contributors.push_back({replica, 1, {{0, begin, begin + 4}}});
        }
        commit.loss = 5.0 / static_cast<double>(step);
        add(kRunBeginNs + static_cast<int64_t>(step) * kStepNs, commit);
    }
    model::RunFinished finished;
    finished.step = steps;
    add(kRunBeginNs + static_cast<int64_t>(steps + 1) * kStepNs, finished);
    return events;
}

inline void writeRun(const std::string& file, const std::vector<model::Event>& events,
                     const Clock& clock) {
    auto writer = history::RunWriter::create(file, "demo", clock);
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (const model::Event& event : events) ASSERT_TRUE((*writer)->append(event).ok());
    ASSERT_TRUE((*writer)->flush().ok());
}

}  // namespace bulkhead::testing
