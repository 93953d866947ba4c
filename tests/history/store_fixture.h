// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "backend/common/clock.h"
#include "backend/history/run_store.h"
#include "tests/model/random_events.h"

namespace bulkhead::history {

/// A clock that stands where the test put it.
class FixedClock final : public Clock {
  public:
    MonoNs now() const override { return 0; }
    int64_t unixNs() const override { return 1'700'000'000'000'000'000; }
};

/// A folder of the test's own, gone afterwards.
class StoreTest : public testing::Test {
  protected:
    void SetUp() override {
        folder_ = std::filesystem::path(testing::TempDir()) /
                  ("history_" + std::to_string(getpid()) + "_" +
                   testing::UnitTest::GetInstance()->current_test_info()->name());
        std::filesystem::remove_all(folder_);
        std::filesystem::create_directories(folder_);
        file_ = folder_ / "runs.db";
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }

    std::unique_ptr<RunWriter> writer(std::string_view name = "demo", WriterOptions options = {}) {
        auto made = RunWriter::create(file_, name, clock_, std::move(options));
        EXPECT_TRUE(made.ok()) << made.status();
        return made.ok() ? *std::move(made) : nullptr;
    }
    std::unique_ptr<RunReader> reader() {
        auto opened = RunReader::open(file_);
        EXPECT_TRUE(opened.ok()) << opened.status();
        return opened.ok() ? *std::move(opened) : nullptr;
    }

    FixedClock clock_;
    std::filesystem::path folder_;
    std::filesystem::path file_;
};

/// A run as a job tells it: events that refer to each other.
inline std::vector<model::Event> someEvents(uint64_t seed, uint64_t count) {
    model::RandomEvents random(seed, false);
    std::vector<model::Event> events;
    for (uint64_t seq = 1; seq <= count; ++seq) events.push_back(random.event(seq));
    return events;
}

template <class Body>
model::Event eventAt(uint64_t seq, int64_t timeNs, Body body) {
    model::Event event;
    event.seq = seq;
    event.timeNs = timeNs;
    event.body = std::move(body);
    return event;
}

}  // namespace bulkhead::history
