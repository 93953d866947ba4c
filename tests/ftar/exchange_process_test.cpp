// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#include "backend/runtime/ftar/exchange.h"
#include "tests/ftar/exchange_group.h"

namespace bulkhead::runtime {
namespace {

using testing::gradient;
using testing::Ranks;
using testing::sameBits;
using testing::Wiring;

constexpr size_t kCount = 150'001;

/// The report of a rank's process to the test; lies in memory that all of them share.
struct Report {
    std::atomic<uint32_t> buckets;   // reduced so far
    std::atomic<uint32_t> failed;    // 1: reduce() returned an error
    std::atomic<uint32_t> go;        // set by the test: the survivors' group may form
    std::atomic<uint32_t> finished;  // 1 + the checks that went wrong
    int32_t accused[8];
    uint32_t accusedCount;
    uint32_t fault;
    bool inputWhole;
    bool sumRight;
    char why[256];
};

void nap() {
    const timespec ms{0, 1'000'000};
    ::nanosleep(&ms, nullptr);
}

/// Ranks as real processes; the test kills or stops one of them.
class ExchangeProcessTest : public ::testing::TestWithParam<Wiring> {
  protected:
    static constexpr size_t kRanks = 4;
    static constexpr size_t kVictim = 1;

    ExchangeProcessTest() : ranks_(kRanks, GetParam()) {
        void* at = ::mmap(nullptr, sizeof(Report) * kRanks, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        reports_ = static_cast<Report*>(at);
    }
    ~ExchangeProcessTest() override {
        for (pid_t child : children_) {
            ::kill(child, SIGKILL);
            ::waitpid(child, nullptr, 0);
        }
        ::munmap(reports_, sizeof(Report) * kRanks);
    }

    void start(MonoNs chunkTimeout) {
        for (size_t i = 0; i < kRanks; ++i) {
            const pid_t child = ::fork();
            if (child == 0) {
                rank(i, chunkTimeout);
                ::_exit(0);
            }
            children_.push_back(child);
        }
    }

    /// Reduces for ever; after the first error waits for `go` and reduces among the survivors.
    void rank(size_t i, MonoNs chunkTimeout) {
        Report& report = reports_[i];
        auto exchange = makeExchange(ranks_.options(i)).value();
        ExchangeGroup group = ranks_.group(ranks_.all(), i, {1, 1, 1, 1});
        group.chunkTimeout = chunkTimeout;
        absl::Status status = exchange->configure(group);
        const std::vector<float> input = gradient(i, 1, 0, kCount);
        std::vector<float> output(kCount);
        while (status.ok()) {
            status = ranks_.reduce(i, *exchange, report.buckets, input, output);
            if (status.ok()) ++report.buckets;
        }
        report.inputWhole = sameBits(input, gradient(i, 1, 0, kCount));
        for (const FailedPeer& peer : exchange->failedPeers()) {
            report.accused[report.accusedCount++] = peer.replica;
            report.fault = static_cast<uint32_t>(peer.fault);
        }
        std::strncpy(report.why, status.ToString().c_str(), sizeof report.why - 1);
        report.failed = 1;
        while (report.go == 0) nap();
        const std::vector<size_t> survivors{0, 2, 3};
        status = exchange->configure(ranks_.group(survivors, i, {1, 2, 1, 2}));
        if (status.ok()) status = ranks_.reduce(i, *exchange, 0, input, output);
        report.sumRight = status.ok() && sameBits(output, ranks_.sum(survivors, 1, 0, kCount));
        report.finished = 1;
    }

    template <class Condition>
    void untilAll(const std::vector<size_t>& who, Condition condition) {
        for (int tries = 0; tries < 60'000; ++tries) {
            bool all = true;
            for (size_t i : who) all = all && condition(reports_[i]);
            if (all) return;
            nap();
        }
        FAIL() << "the ranks did not get there";
    }

    void expectSurvivorsGoOn(PeerFault fault) {
        const std::vector<size_t> survivors{0, 2, 3};
        untilAll(survivors, [](const Report& r) { return r.failed != 0; });
        bool named = false;
        for (size_t i : survivors) {
            const Report& report = reports_[i];
            EXPECT_TRUE(report.inputWhole);
            ASSERT_GE(report.accusedCount, 1u) << report.why;
            for (uint32_t a = 0; a < report.accusedCount; ++a)
                named = named || (report.accused[a] == ranks_.replica(kVictim) &&
                                  report.fault == static_cast<uint32_t>(fault));
        }
        EXPECT_TRUE(named) << reports_[0].why << " | " << reports_[2].why << " | "
                           << reports_[3].why;
        for (size_t i : survivors) reports_[i].go = 1;
        untilAll(survivors, [](const Report& r) { return r.finished != 0; });
        for (size_t i : survivors) EXPECT_TRUE(reports_[i].sumRight);
    }

    Ranks ranks_;
    Report* reports_ = nullptr;
    std::vector<pid_t> children_;
};

TEST_P(ExchangeProcessTest, AKilledRankIsNamedAndTheSurvivorsSumOnWithoutIt) {
    start(3 * kSecond);
    untilAll({0, 1, 2, 3}, [](const Report& r) { return r.buckets >= 5; });
    ::kill(children_[kVictim], SIGKILL);
    expectSurvivorsGoOn(PeerFault::kReset);
}

TEST_P(ExchangeProcessTest, AStoppedRankTimesOutAndTheSurvivorsSumOnWithoutIt) {
    start(400 * kMillisecond);
    untilAll({0, 1, 2, 3}, [](const Report& r) { return r.buckets >= 5; });
    ::kill(children_[kVictim], SIGSTOP);
    expectSurvivorsGoOn(PeerFault::kTimeout);
}

TEST_P(ExchangeProcessTest, WhatAKillLeavesBehindIsRemovedByPrefix) {
    start(3 * kSecond);
    untilAll({0, 1, 2, 3}, [](const Report& r) { return r.buckets >= 5; });
    for (pid_t child : children_) ::kill(child, SIGKILL);
    for (pid_t child : children_) ::waitpid(child, nullptr, 0);
    children_.clear();
    EXPECT_EQ(removeSegments(ranks_.prefix()), 0u) << "names go once everybody is attached";
}

INSTANTIATE_TEST_SUITE_P(Wirings, ExchangeProcessTest, testing::kWirings,
                         [](const auto& info) { return testing::wiringName(info.param); });

}  // namespace
}  // namespace bulkhead::runtime
