// SPDX-License-Identifier: Apache-2.0
#include "backend/daemon/history_sink.h"

#include <gmock/gmock.h>

#include <chrono>
#include <thread>

#include "tests/history/store_fixture.h"

namespace bulkhead::history {
namespace {

TEST_F(StoreTest, ADaemonKeepsOldRunsWhoseFolderIsThereAndThoseOfItsOwnLife) {
    SystemClock clock;
    for (const char* name : {"gone", "resumable"})  // three years ago
        ASSERT_TRUE(writer(name)->append(eventAt(1, 1, model::LineageOpened{1, 0, 1, ""})).ok());
    std::filesystem::create_directories(folder_ / "jobs" / "resumable");
    daemon::HistorySink sink(file_, folder_ / "jobs", clock);
    ASSERT_EQ(sink.open("now").value(), "now");
    sink.keepOnly(1);
    const auto reading = reader();
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (reading->findRun("gone").ok() && std::chrono::steady_clock::now() < limit)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_FALSE(reading->findRun("gone").ok());
    EXPECT_TRUE(reading->findRun("resumable").ok());
    EXPECT_TRUE(reading->findRun("now").ok());
}

}  // namespace
}  // namespace bulkhead::history
