// SPDX-License-Identifier: Apache-2.0
#include "backend/cli/follow.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <string_view>

#include "backend/cli/text.h"
#include "backend/model/event_json.h"

namespace bulkhead::cli {
namespace {

constexpr std::array kEnds = {SIGINT, SIGTERM, SIGHUP};

std::atomic<int> interrupts{0};

void noteInterrupt(int) {
    ++interrupts;
}

}  // namespace

Interrupts::Interrupts(bool secondEnds) {
    interrupts = 0;
    struct sigaction action {};
    action.sa_handler = noteInterrupt;
    if (secondEnds) action.sa_flags = SA_RESETHAND;
    for (size_t i = 0; i < kEnds.size(); ++i) ::sigaction(kEnds[i], &action, &before_[i]);
    // nohup means it.
    if (before_[2].sa_handler == SIG_IGN) ::sigaction(kEnds[2], &before_[2], nullptr);
}
Interrupts::~Interrupts() {
    for (size_t i = 0; i < kEnds.size(); ++i) ::sigaction(kEnds[i], &before_[i], nullptr);
}
int Interrupts::count() const {
    return interrupts;
}

namespace {

/// The default action was put back before it began.
void sayInterrupted(int signal) {
    constexpr std::string_view kText = "interrupted; nothing was written\n";
    (void)!::write(STDERR_FILENO, kText.data(), kText.size());
    ::raise(signal);
}

constexpr std::array<int, 2> kSaid{SIGINT, SIGTERM};

}  // namespace

SayInterrupted::SayInterrupted() {
    struct sigaction action {};
    action.sa_handler = sayInterrupted;
    action.sa_flags = SA_RESETHAND | SA_RESTART;
    for (size_t i = 0; i < kSaid.size(); ++i) {
        ::sigaction(kSaid[i], &action, &before_[i]);
        if (before_[i].sa_handler == SIG_IGN) ::sigaction(kSaid[i], &before_[i], nullptr);
    }
}

SayInterrupted::~SayInterrupted() {
    for (size_t i = 0; i < kSaid.size(); ++i) ::sigaction(kSaid[i], &before_[i], nullptr);
}

Follower::Follower(client::Client& client, client::WatchTarget target, bool json, Shows shows)
    : json_(json), shows_(shows) {
    client::WatchHandlers handlers;
    handlers.onSnapshot = [this](client::StatePtr state) {
        const MutexLock lock(mutex_);
        state_ = *state;
        seen_ = true;
        connected_ = true;
        changed_.notify_all();
    };
    handlers.onEvents = [this](std::vector<model::Event> events) {
        const MutexLock lock(mutex_);
        for (const model::Event& event : events) {
            model::apply(state_, event);
            if (shows_ == Shows::kEveryEvent || isNotable(event))
                print(json_ ? model::toJsonText(event) : eventLine(event));
        }
        if (state_.finished) changed_.notify_all();
    };
    handlers.onPosition = [this](model::ReplayPosition position) {
        const MutexLock lock(mutex_);
        over_ = position.atEnd;
        changed_.notify_all();
    };
    handlers.onDisconnected = [this](client::Failure failure, client::SteadyTime) {
        const MutexLock lock(mutex_);
        if (!failure.retryable) {
            failure_ = std::move(failure);
            over_ = true;
        } else if (connected_) {
            std::fprintf(stderr, "bulkheadctl: %s: %s / It is tried again.\n",
                         failure.title.c_str(), failure.cause.c_str());
        }
        connected_ = false;
        changed_.notify_all();
    };
    watch_ = client.watch(std::move(target), std::move(handlers));
}

Follower::~Follower() {
    watch_.reset();
}

void Follower::awaitFirst() {
    MutexLock lock(mutex_);
    changed_.wait(lock,
                  [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return seen_ || failure_; });
}

bool Follower::tick() {
    MutexLock lock(mutex_);
    const auto isOver = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return over_ || state_.finished.has_value();
    };
    const bool over = changed_.wait_for(lock, std::chrono::seconds(1), isOver);
    if (seen_ && connected_ && (shows_ == Shows::kSummary))
        print(json_ ? summaryJson(state_) : summaryLine(state_));
    return over;
}

model::RunState Follower::state() const {
    const MutexLock lock(mutex_);
    return state_;
}

std::optional<client::Failure> Follower::failure() const {
    const MutexLock lock(mutex_);
    return failure_;
}

void Follower::print(const std::string& line) {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
}

}  // namespace bulkhead::cli
