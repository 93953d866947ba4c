// SPDX-License-Identifier: Apache-2.0
#include "backend/model/what_if.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <random>
#include <utility>
#include <vector>

namespace bulkhead::model {
namespace {

constexpr double kDayS = 86400;
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr size_t kStretches = 20;

size_t at(TimeLoss loss) {
    return static_cast<size_t>(loss);
}

/// Time spent by purpose, in seconds of the whole job (all active GPUs at once).
struct Account {
    double useful = 0;
    std::array<double, kTimeLosses> lost{};
};

/// A stretch in which everybody stands still, for one reason.
struct Stall {
    TimeLoss reason;
    double seconds;
};

/// One run.
class Simulation {
  public:
    Simulation(const WhatIf& scenario, double days, uint64_t seed)
        : s_(scenario),
          end_(days * kDayS),
          interval_(failureIntervalS(scenario)),
          active_(static_cast<size_t>(scenario.replicas)),
          replicas_(active_ + static_cast<size_t>(scenario.spares)),
          rng_(seed) {
        for (size_t i = active_; i < replicas_.size(); ++i) replicas_[i].role = Role::kStandsBy;
    }

    WhatIfResult run();

  private:
    enum class Role { kContributes, kStandsBy, kOut };
    struct Replica {
        Role role = Role::kContributes;
        double backAt = kNever;  ///< while out
    };

    size_t count(Role role) const {
        return static_cast<size_t>(std::ranges::count(replicas_, role, &Replica::role));
    }
    double uniform() { return std::uniform_real_distribution<double>(0, 1)(rng_); }
    double nextFailureAfter(double t);
    void advance(double to);
    void train(double seconds);
    void fail(double now);
    void lose(Replica& victim, double now);
    void comeBack(Replica& replica);
    void restartAll();
    void waitForSomebody(double now);
    void standStill(TimeLoss reason, double seconds) {
        if (seconds > 0) stalls_.push_back({reason, seconds});
    }
    /// Seconds of the whole job that counted as useful and were not; no more than there were.
    void takeBack(TimeLoss reason, double seconds) {
        seconds = std::min(seconds, account_.useful);
        account_.useful -= seconds;
        account_.lost[at(reason)] += seconds;
    }
    void redoSinceCheckpoint();
    WhatIfResult result(const std::vector<double>& stretches) const;

    const WhatIf& s_;
    const double end_;
    const double interval_;
    const size_t active_;
    std::vector<Replica> replicas_;
    std::mt19937_64 rng_;
    std::deque<Stall> stalls_;
    Account account_;
    double now_ = 0;
    double sinceCheckpoint_ = 0;  ///< useful seconds that no checkpoint holds yet
    double untilCheckpoint_ = 0;
    double failures_ = 0;
    double wholeJobLost_ = 0;
};

double Simulation::nextFailureAfter(double t) {
    if (!std::isfinite(interval_)) return kNever;
    if (s_.spacing == FailureSpacing::kEven) return t + interval_;
    return t + std::exponential_distribution<double>(1 / interval_)(rng_);
}

/// Lets `seconds` pass in which nothing stands still: training, unless nobody is left.
void Simulation::train(double seconds) {
    const auto contributors = static_cast<double>(count(Role::kContributes));
    const double share = contributors / static_cast<double>(active_);
    account_.useful += seconds * share;
    account_.lost[at(share > 0 ? TimeLoss::kOutage : TimeLoss::kRestart)] += seconds * (1 - share);
    sinceCheckpoint_ += seconds * share;
}

void Simulation::advance(double to) {
    while (now_ < to) {
        double left = to - now_;
        if (!stalls_.empty()) {
            Stall& stall = stalls_.front();
            const double spent = std::min(left, stall.seconds);
            account_.lost[at(stall.reason)] += spent;
            now_ += spent;
            stall.seconds -= spent;
            if (stall.seconds <= 0) stalls_.pop_front();
            continue;
        }
        const bool checkpoints = s_.checkpointEveryS > 0 && count(Role::kContributes) > 0;
        if (checkpoints) left = std::min(left, untilCheckpoint_);
        train(left);
        // Adding a remainder smaller than now_ can resolve would never arrive.
        now_ = left == to - now_ ? to : now_ + left;
        if (!checkpoints) continue;
        untilCheckpoint_ -= left;
        if (untilCheckpoint_ > 0) continue;
        untilCheckpoint_ = s_.checkpointEveryS;
        sinceCheckpoint_ = 0;
        standStill(TimeLoss::kCheckpoint, s_.checkpointStallS);
    }
}

void Simulation::redoSinceCheckpoint() {
    if (s_.checkpointEveryS > 0) takeBack(TimeLoss::kRedoneWork, sinceCheckpoint_);
    sinceCheckpoint_ = 0;
    untilCheckpoint_ = s_.checkpointEveryS;
}

void Simulation::restartAll() {
    redoSinceCheckpoint();
    stalls_.clear();
    standStill(TimeLoss::kRestart, s_.restartAllS);
}

/// The last replica is gone: the first to come back has to load the checkpoint too.
void Simulation::waitForSomebody(double now) {
    wholeJobLost_ += 1;
    redoSinceCheckpoint();
    stalls_.clear();
    for (Replica& r : replicas_) r.backAt = std::max(r.backAt, now + s_.restartAllS);
}

void Simulation::lose(Replica& victim, double now) {
    const Role role = std::exchange(victim.role, Role::kOut);
    victim.backAt = now + outageS(s_);  // a replacement that dies starts again
    if (role != Role::kContributes) return;
    // Recovery from an earlier failure starts again with this one.
    std::erase_if(stalls_, [](const Stall& s) { return s.reason != TimeLoss::kCheckpoint; });
    const bool silent = uniform() < s_.silentShare;
    standStill(TimeLoss::kDetect, silent ? s_.silentDetectS : s_.detectS);
    standStill(TimeLoss::kReform, s_.reformS);
    standStill(TimeLoss::kRedo, s_.redoS);
    const double stepOfOne = s_.stepS / static_cast<double>(active_);
    takeBack(TimeLoss::kRedoneWork, s_.lostStepShare * stepOfOne);
    const auto spare = std::ranges::find(replicas_, Role::kStandsBy, &Replica::role);
    if (spare != replicas_.end()) {
        spare->role = Role::kContributes;
        takeBack(TimeLoss::kOutage, stepOfOne);  // the step that commits without the lost
    } else if (count(Role::kContributes) == 0) {
        waitForSomebody(now);
    }
}

void Simulation::fail(double now) {
    failures_ += 1;
    if (s_.recovery == WhatIfRecovery::kRestartAll) return restartAll();
    const size_t all = replicas_.size();
    size_t victim = static_cast<size_t>(uniform() * static_cast<double>(all));
    if (s_.spacing == FailureSpacing::kEven && count(Role::kOut) < all)
        while (replicas_[victim].role == Role::kOut) victim = (victim + 1) % all;
    const bool shared = uniform() < s_.sharedShare;
    const size_t hit = shared ? std::min(all, static_cast<size_t>(s_.replicasPerShare)) : 1;
    for (size_t i = 0; i < hit; ++i) lose(replicas_[(victim + i) % all], now);
}

void Simulation::comeBack(Replica& replica) {
    const size_t contributors = count(Role::kContributes);
    replica.backAt = kNever;
    replica.role = contributors < active_ ? Role::kContributes : Role::kStandsBy;
    if (replica.role == Role::kContributes && contributors > 0)
        standStill(TimeLoss::kRejoin, s_.rejoinWaitS);
}

WhatIfResult Simulation::run() {
    untilCheckpoint_ = s_.checkpointEveryS;
    std::vector<double> stretches;
    double usefulBefore = 0;
    double failure = nextFailureAfter(0);
    while (now_ < end_) {
        const double stretchEnd =
            end_ * static_cast<double>(stretches.size() + 1) / static_cast<double>(kStretches);
        const auto first = std::ranges::min_element(replicas_, {}, &Replica::backAt);
        const double next = std::min({failure, first->backAt, stretchEnd, end_});
        advance(next);
        if (next == first->backAt) {
            comeBack(*first);
        } else if (next == failure) {
            fail(next);
            failure = nextFailureAfter(next);
        } else {
            stretches.push_back((account_.useful - usefulBefore) * kStretches / end_);
            usefulBefore = account_.useful;
        }
    }
    return result(stretches);
}

WhatIfResult Simulation::result(const std::vector<double>& stretches) const {
    WhatIfResult r;
    r.effective = account_.useful / end_;
    r.perProvisioned =
        r.effective * static_cast<double>(active_) / static_cast<double>(replicas_.size());
    for (size_t i = 0; i < kTimeLosses; ++i) r.lost[i] = account_.lost[i] / end_;
    double squares = 0;
    for (const double part : stretches) squares += (part - r.effective) * (part - r.effective);
    const auto n = static_cast<double>(std::max<size_t>(2, stretches.size()));
    r.error = std::sqrt(squares / (n * (n - 1)));
    r.failures = failures_;
    r.meanIntervalS = failures_ > 0 ? end_ / failures_ : kNever;
    const double stood = account_.lost[at(TimeLoss::kDetect)] +
                         account_.lost[at(TimeLoss::kReform)] + account_.lost[at(TimeLoss::kRedo)] +
                         account_.lost[at(TimeLoss::kRejoin)];
    r.stallS = failures_ > 0 ? stood / failures_ : 0;
    r.samplesRedone = account_.lost[at(TimeLoss::kRedoneWork)] / s_.stepS * s_.samplesPerStep;
    r.wholeJobLost = wholeJobLost_;
    return r;
}

}  // namespace

double failureIntervalS(const WhatIf& s) {
    if (s.intervalS > 0) return s.intervalS;
    const double nodes = (s.replicas + s.spares) * s.gpusPerReplica / s.gpusPerNode;
    const double perDay = nodes * s.failuresPer1000NodeDays / 1000;
    return perDay > 0 ? kDayS / perDay : kNever;
}

double outageS(const WhatIf& s) {
    return s.restartS + s.initS + s.stateGBPerGpu / s.fetchGBps + s.replayS;
}

WhatIfResult simulate(const WhatIf& scenario, double days, uint64_t seed) {
    return Simulation(scenario, days, seed).run();
}

}  // namespace bulkhead::model
