// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/agent/death_watch.h"

#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <memory>
#include <string>

#include "backend/runtime/transport/futex.h"
#include "tests/support/held_at_exit.h"

namespace bulkhead::runtime {
namespace {

/// A process that holds its life lock or misuses it, and a watch on it.
class DeathWatchTest : public testing::Test {
  protected:
    void start(const std::string& what) {
        int out[2];
        ASSERT_EQ(::pipe(out), 0);
        auto lock = LifeLock::create();
        ASSERT_TRUE(lock.ok()) << lock.status();
        lock_ = std::make_unique<LifeLock>(*std::move(lock));
        const auto pid = launch({{TEST_RANK, what}, {}, out[1], -1, lock_->fd()});
        ::close(out[1]);
        ASSERT_TRUE(pid.ok()) << pid.status();
        pid_ = *pid;
        process_ = *openProcess(pid_);
        std::string said(16, '\0');
        said.resize(static_cast<size_t>(std::max<ssize_t>(0, ::read(out[0], said.data(), 16))));
        ::close(out[0]);
        ASSERT_EQ(said, "ready\n");
    }
    ~DeathWatchTest() override {
        if (!process_.valid()) return;
        ::kill(pid_, SIGKILL);
        pollfd end{process_.get(), POLLIN, 0};
        ::poll(&end, 1, -1);
        reap(process_);
    }
    /// Watches like an agent that has not started the process.
    void watch() {
        auto lock = LifeLock::ofProcess(pid_);
        ASSERT_TRUE(lock.ok()) << lock.status();
        watch(*std::move(lock));
    }
    void watch(LifeLock lock) {
        watch_ = std::make_unique<DeathWatch>(
            std::move(lock), pid_,
            [this](std::optional<int32_t> signal) { released_.set_value(signal); });
    }
    /// The watch's answer; nullopt: the lock is free although the process lives.
    std::optional<int32_t> released() {
        if (said_.wait_for(std::chrono::seconds(20)) == std::future_status::ready)
            return said_.get();
        ADD_FAILURE() << "it did not say anything";
        return std::nullopt;
    }
    bool isHeld() const { return lock_->word() != 0 && !LifeLock::released(lock_->word()); }
    bool isGone() const {
        pollfd p{process_.get(), POLLIN, 0};
        return ::poll(&p, 1, 0) == 1;
    }
    char state() const {
        std::ifstream file("/proc/" + std::to_string(pid_) + "/stat");
        std::string line;
        std::getline(file, line);
        return line.at(line.rfind(')') + 2);
    }

    std::unique_ptr<LifeLock> lock_;
    int32_t pid_ = 0;
    UniqueFd process_;
    std::promise<std::optional<int32_t>> released_;
    std::future<std::optional<int32_t>> said_ = released_.get_future();
    std::unique_ptr<DeathWatch> watch_;
};

TEST_F(DeathWatchTest, AKillIsSeenBeforeTheProcessIsGone) {
    start("hold");
    watch();
    support::HeldAtExit held(pid_);
    ::kill(pid_, SIGKILL);
    ASSERT_TRUE(held.awaitDeath());
    EXPECT_EQ(released(), SIGKILL);
    EXPECT_FALSE(isGone());
}

TEST_F(DeathWatchTest, SomebodyWhoDiedBeforeTheWatchBeganIsSeen) {
    start("hold");
    support::HeldAtExit held(pid_);
    ::kill(pid_, SIGKILL);
    ASSERT_TRUE(held.awaitDeath());
    watch();
    EXPECT_EQ(released(), SIGKILL);
    EXPECT_FALSE(isGone());
}

TEST_F(DeathWatchTest, AStopATracerAndAForkLeaveTheLockAlone) {
    start("fork");
    EXPECT_TRUE(isHeld()) << "a child that ended let go of it";
    ::kill(pid_, SIGSTOP);
    while (state() != 'T') {
    }
    EXPECT_TRUE(isHeld());
    ::kill(pid_, SIGCONT);
    {
        const support::HeldAtExit traced(pid_);
        EXPECT_TRUE(isHeld());
    }
    EXPECT_TRUE(isHeld());
}

TEST_F(DeathWatchTest, AnExecLetsGoButIsNoDeath) {
    start("exec");
    watch(std::move(*lock_));
    EXPECT_EQ(released(), std::nullopt);
    EXPECT_FALSE(isGone());
}

TEST_F(DeathWatchTest, AThreadThatEndsAloneIsNoDeath) {
    start("thread-ends");
    EXPECT_FALSE(isHeld());
    watch();
    EXPECT_EQ(released(), std::nullopt);
    EXPECT_FALSE(isGone());
}

TEST_F(DeathWatchTest, TheDeathOfAnotherOwnerIsNoDeath) {
    start("other-owner");
    EXPECT_FALSE(isHeld());
    watch();
    EXPECT_EQ(released(), std::nullopt);
}

TEST_F(DeathWatchTest, AWatchOnGarbageEndsWithItsObject) {
    start("garbage");
    EXPECT_TRUE(isHeld()) << "by nobody at all";
    watch();
    watch_.reset();
}

TEST_F(DeathWatchTest, APageThatIsSpoiledLaterIsNoDeathAndIsLeftAlone) {
    start("hold");
    watch();
    void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, lock_->fd(), 0);
    ASSERT_NE(page, MAP_FAILED);
    auto& word = *static_cast<std::atomic<uint32_t>*>(page);
    for (uint32_t n = 1;
         n < 10000 && said_.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready;
         ++n) {
        word = n;
        futexWakeAll(word);
    }
    EXPECT_EQ(released(), std::nullopt);
    ::munmap(page, 4096);
}

TEST_F(DeathWatchTest, ThePageCannotBeCutShort) {
    start("cut");
    EXPECT_TRUE(isHeld());
}

TEST_F(DeathWatchTest, ALockIsTakenOnce) {
    start("twice");
    EXPECT_TRUE(isHeld());
}

TEST_F(DeathWatchTest, AProcessWithoutALockIsSaidToHaveNone) {
    EXPECT_TRUE(absl::IsNotFound(LifeLock::ofProcess(::getpid()).status()));
    const auto pid = launch({{"/bin/sleep", "100"}, {}, -1, -1});
    ASSERT_TRUE(pid.ok());
    EXPECT_TRUE(absl::IsNotFound(LifeLock::ofProcess(*pid).status()));
    pid_ = *pid;
    process_ = *openProcess(pid_);
}

}  // namespace
}  // namespace bulkhead::runtime
