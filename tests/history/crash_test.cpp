// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>

#include "absl/base/thread_annotations.h"
#include "backend/common/threads.h"
#include "tests/history/store_fixture.h"

namespace bulkhead::history {
namespace {

using testing::HasSubstr;
using Crash = StoreTest;

/// Writes until it is killed; each durable seq goes down the pipe. Never returns.
[[noreturn]] void writeForever(const std::filesystem::path& file, int64_t run, uint64_t seed,
                               int pipe) {
    FixedClock clock;
    WriterOptions options;
    options.flushMs = 1;
    options.batchEvents = 16;
    options.keyframeEvents = 40;
    auto made = run == 0 ? RunWriter::create(file, "killed", clock, options)
                         : RunWriter::resume(file, run, clock, options);
    if (!made.ok()) _exit(3);
    model::RandomEvents random(seed, false);
    uint64_t told = 0;
    for (uint64_t seq = (*made)->lastSeq() + 1;; ++seq) {
        model::Event event = random.event(seq);
        if (!(*made)->append(event).ok()) _exit(4);
        if (seq % 64 == 0 && !(*made)->flush(60'000).ok()) _exit(5);
        const uint64_t durable = (*made)->durableSeq();
        if (durable == told) continue;
        told = durable;
        if (write(pipe, &told, sizeof(told)) != sizeof(told)) _exit(6);
    }
}

/// Kills the child after `reports` reports; returns the last seq that it reported as durable.
uint64_t killAfter(const std::filesystem::path& file, int64_t run, uint64_t seed, int reports) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        writeForever(file, run, seed, ends[1]);
    }
    close(ends[1]);
    uint64_t durable = 0;
    uint64_t told = 0;
    for (int i = 0; i < reports; ++i) {
        if (read(ends[0], &told, sizeof(told)) != sizeof(told)) break;
        durable = told;
    }
    kill(child, SIGKILL);
    while (read(ends[0], &told, sizeof(told)) == sizeof(told)) durable = told;
    close(ends[0]);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself: " << WEXITSTATUS(status);
    return durable;
}

TEST_F(Crash, losesNothingThatWasDurableWhenKilledAtAnyMoment) {
    std::mt19937 random(11);
    int64_t run = 0;
    for (uint64_t round = 1; round <= 12; ++round) {
        const uint64_t durable = killAfter(file_, run, round, 1 + static_cast<int>(random() % 25));
        run = 1;
        auto reading = reader();
        ASSERT_NE(reading, nullptr);
        const auto info = reading->run(run);
        ASSERT_TRUE(info.ok()) << info.status();
        EXPECT_GE(info->lastSeq, durable);
        EXPECT_EQ(
            info->phase == "finished" || info->phase == "failed" || info->phase == "interrupted",
            true)
            << info->phase;
        const absl::Status verified = reading->verify(run);
        ASSERT_TRUE(verified.ok()) << "round " << round << ": " << verified;
    }
    EXPECT_TRUE(RunWriter::resume(file_, run, clock_).ok());
}

/// Appends with batches that are never due; each accepted seq goes down the pipe. Never returns.
[[noreturn]] void acceptForever(const std::filesystem::path& file, int64_t run, int pipe) {
    FixedClock clock;
    WriterOptions options;
    options.flushMs = 60'000;
    options.batchEvents = 1 << 20;
    auto made = run == 0 ? RunWriter::create(file, "killed", clock, options)
                         : RunWriter::resume(file, run, clock, options);
    if (!made.ok()) _exit(3);
    model::RandomEvents random(5, false);
    for (uint64_t seq = (*made)->lastSeq() + 1;; ++seq) {
        if (!(*made)->append(random.event(seq)).ok()) _exit(4);
        if (write(pipe, &seq, sizeof(seq)) != sizeof(seq)) _exit(6);
    }
}

TEST_F(Crash, losesNothingThatWasAcceptedAlthoughItsBatchWasNotDue) {
    uint64_t accepted = 0;
    for (int round = 0; round < 5; ++round) {
        int ends[2];
        ASSERT_EQ(pipe(ends), 0);
        const pid_t child = fork();
        if (child == 0) {
            close(ends[0]);
            acceptForever(file_, round == 0 ? 0 : 1, ends[1]);
        }
        close(ends[1]);
        uint64_t told = 0;
        for (int i = 0; i < 30 + 7 * round; ++i)
            ASSERT_EQ(read(ends[0], &told, sizeof(told)), static_cast<ssize_t>(sizeof(told)));
        kill(child, SIGKILL);
        while (read(ends[0], &told, sizeof(told)) == sizeof(told)) {
        }
        close(ends[0]);
        ASSERT_EQ(waitpid(child, nullptr, 0), child);
        EXPECT_GT(told, accepted) << "a number was given out twice";
        accepted = told;
    }
    auto writer = RunWriter::resume(file_, 1, clock_);
    ASSERT_TRUE(writer.ok()) << writer.status();
    EXPECT_GE((*writer)->lastSeq(), accepted);
    EXPECT_LE((*writer)->lastSeq(), accepted + 1) << "at most one was accepted and not told";
    writer->reset();
    auto reading = reader();
    ASSERT_NE(reading, nullptr);
    const absl::Status verified = reading->verify(1);
    EXPECT_TRUE(verified.ok()) << verified;
    EXPECT_EQ(reading->run(1)->missing, 0u);
    EXPECT_FALSE(std::filesystem::exists(file_.string() + "-tail-1-a")) << "it was closed in order";
}

TEST_F(Crash, canBeReadWhileAnotherProcessWrites) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        writeForever(file_, 0, 21, ends[1]);
    }
    close(ends[1]);
    uint64_t durable = 0;
    ASSERT_EQ(read(ends[0], &durable, sizeof(durable)), static_cast<ssize_t>(sizeof(durable)));
    auto reading = reader();
    for (int i = 0; i < 5; ++i) {
        ASSERT_EQ(read(ends[0], &durable, sizeof(durable)), static_cast<ssize_t>(sizeof(durable)));
        const auto info = reading->run(1);
        ASSERT_TRUE(info.ok()) << info.status();
        EXPECT_GE(info->lastSeq, durable);
        const auto state = reading->stateAtSeq(1, durable);
        ASSERT_TRUE(state.ok()) << state.status();
        EXPECT_EQ(state->seq, durable);
    }
    kill(child, SIGKILL);
    close(ends[0]);
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
    EXPECT_TRUE(reading->verify(1).ok());
}

/// Makes every file end at `bytes` for this process, as a full disk would.
class SizeLimit {
  public:
    explicit SizeLimit(rlim_t bytes) {
        before_ = signal(SIGXFSZ, SIG_IGN);
        getrlimit(RLIMIT_FSIZE, &old_);
        rlimit tight = old_;
        tight.rlim_cur = bytes;
        setrlimit(RLIMIT_FSIZE, &tight);
    }
    ~SizeLimit() { lift(); }
    void lift() {
        setrlimit(RLIMIT_FSIZE, &old_);
        signal(SIGXFSZ, before_);
    }

  private:
    rlimit old_{};
    sighandler_t before_ = SIG_DFL;
};

/// Health reports, to be waited for.
class Health {
  public:
    void set(const absl::Status& status) {
        const MutexLock guard(mutex_);
        reports_.push_back(status);
        changed_.notify_all();
    }
    absl::Status waitFor(size_t count) {
        MutexLock lock(mutex_);
        changed_.wait_for(
            lock, std::chrono::seconds(60),
            [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return reports_.size() >= count; });
        return reports_.size() >= count ? reports_[count - 1]
                                        : absl::DeadlineExceededError("no report");
    }

  private:
    Mutex mutex_;
    ConditionVariable changed_;
    std::vector<absl::Status> reports_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(Crash, keepsWhatItAcceptedWhileTheDiskFails) {
    Health health;
    WriterOptions options;
    options.retryMs = 5;
    options.onHealth = [&](const absl::Status& status) { health.set(status); };
    auto writing = writer("demo", options);
    ASSERT_TRUE(writing->append(eventAt(1, 1, model::RunStarted{})).ok());
    ASSERT_TRUE(writing->flush().ok());
    {
        SizeLimit full(1);
        for (uint64_t seq = 2; seq <= 300; ++seq)
            ASSERT_TRUE(
                writing->append(eventAt(seq, 1, model::RankOutput{{0, 0}, 1, false, "line"})).ok());
        EXPECT_FALSE(health.waitFor(1).ok());
        EXPECT_FALSE(writing->health().ok());
        EXPECT_EQ(writing->flush(1).code(), absl::StatusCode::kDeadlineExceeded);
    }
    EXPECT_TRUE(health.waitFor(2).ok());
    ASSERT_TRUE(writing->flush(60'000).ok());
    EXPECT_EQ(writing->durableSeq(), 300u);
    const absl::Status verified = reader()->verify(writing->runId());
    EXPECT_TRUE(verified.ok()) << verified;
    EXPECT_EQ(writing->info().missing, 0u);
}

TEST_F(Crash, tellsOfAGapWhenTheBufferOverflowed) {
    Health health;
    WriterOptions options;
    options.retryMs = 5;
    options.batchEvents = 8;
    options.bufferEvents = 32;
    options.onHealth = [&](const absl::Status& status) { health.set(status); };
    auto writing = writer("demo", options);
    ASSERT_TRUE(writing->append(eventAt(1, 1, model::RunStarted{})).ok());
    ASSERT_TRUE(writing->flush().ok());
    const auto line = [](uint64_t seq) {
        return eventAt(seq, 1, model::RankOutput{{0, 0}, 1, false, "line"});
    };
    uint64_t seq = 1;
    uint64_t firstLost = 0;
    {
        SizeLimit full(1);
        ASSERT_TRUE(writing->append(line(++seq)).ok());
        ASSERT_FALSE(health.waitFor(1).ok());
        while (seq < 200) {
            const absl::Status status = writing->append(line(++seq));
            if (status.ok()) continue;
            EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
            if (firstLost == 0) firstLost = seq;
        }
    }
    ASSERT_NE(firstLost, 0u);
    ASSERT_TRUE(writing->flush(60'000).ok());
    ASSERT_TRUE(writing->append(line(++seq)).ok());
    ASSERT_TRUE(writing->flush(60'000).ok());
    EXPECT_EQ(writing->info().missing, 200 - firstLost + 1);
    EventFilter errors;
    errors.minSeverity = model::Severity::kError;
    auto reading = reader();
    const auto told = reading->events(writing->runId(), errors);
    ASSERT_TRUE(told.ok()) << told.status();
    ASSERT_EQ(told->size(), 1u);
    EXPECT_EQ(told->front().seq, 200u);
    const auto& gap = std::get<model::InvariantBroken>(told->front().body);
    EXPECT_EQ(gap.invariant, "history");
    EXPECT_THAT(gap.detail,
                HasSubstr("events " + std::to_string(firstLost) + " to 200 are missing"));
    const absl::Status verified = reading->verify(writing->runId());
    EXPECT_TRUE(verified.ok()) << verified;
}

}  // namespace
}  // namespace bulkhead::history
