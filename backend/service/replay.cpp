// SPDX-License-Identifier: Apache-2.0
#include "backend/service/replay.h"

#include <algorithm>

namespace bulkhead::service {
namespace {

constexpr uint32_t kPage = 1000;
constexpr MonoNs kPositionEvery = 100 * kMillisecond;
constexpr MonoNs kLongestNap = 100 * kMillisecond;
constexpr double kSlowest = 0.01;
constexpr double kFastest = 10000;
/// A sample of a large fleet has megabytes.
constexpr uint64_t kPageBytes = 8 << 20;

absl::Status closed() {
    return absl::NotFoundError("the replay was closed; open the run again");
}

bool seeks(const model::ReplayControl& order) {
    return order.seekStep || order.seekTimeNs;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Replay>> Replay::open(const std::filesystem::path& file,
                                                     const std::string& run, const Clock& clock) {
    auto reader = history::RunReader::open(file);
    if (!reader.ok()) return reader.status();
    auto info = (*reader)->findRun(run);
    if (!info.ok()) return info.status();
    if (info->events == 0)
        return absl::NotFoundError("run " + info->name + " has no events yet; try again later");
    return std::unique_ptr<Replay>(new Replay(*std::move(reader), *std::move(info), clock));
}

Replay::Replay(std::unique_ptr<history::RunReader> reader, history::StoredRun info,
               const Clock& clock)
    : reader_(std::move(reader)), info_(std::move(info)), clock_(clock) {
    position_.run = info_.name;
    position_.beginNs = info_.startedNs;
    position_.endNs = info_.endedNs;
    position_.endStep = info_.lastStep;
    position_.timeNs = info_.startedNs;
    position_.paused = true;
    lastWatchedNs_ = clock_.now();
    anchor(position_.timeNs);
    feed_->reset(model::RunState());
    (void)advance(position_.timeNs);
    publish(true);
    thread_ = std::thread([this] { this->run(); });
}

Replay::~Replay() {
    end();
    thread_.join();
    feed_->end(closed());
}

void Replay::end() {
    {
        const MutexLock lock(mutex_);
        ending_ = true;
    }
    wake_.notify_all();
}

absl::StatusOr<model::ReplayPosition> Replay::control(const model::ReplayControl& order) {
    if (order.speed && !(*order.speed >= kSlowest && *order.speed <= kFastest))
        return absl::InvalidArgumentError("the speed must be between 0.01 and 10000");
    std::future<absl::StatusOr<model::ReplayPosition>> answer;
    {
        const MutexLock lock(mutex_);
        if (ending_) return closed();
        orders_.push_back({order, {}});
        answer = orders_.back().answer.get_future();
    }
    wake_.notify_all();
    return answer.get();
}

bool Replay::isOvertaken() const {
    const MutexLock lock(mutex_);
    return ending_ || std::any_of(orders_.begin(), orders_.end(),
                                  [](const Order& order) { return seeks(order.control); });
}

MonoNs Replay::unwatchedFor() const {
    const MutexLock lock(mutex_);
    if (feed_->listeners() > 0) lastWatchedNs_ = clock_.now();
    return clock_.now() - lastWatchedNs_;
}

void Replay::run() {
    MutexLock lock(mutex_);
    for (;;) {
        while (!ending_ && !orders_.empty()) {
            Order order = std::move(orders_.front());
            orders_.pop_front();
            lock.unlock();
            const absl::Status status = obey(order.control);
            if (status.ok())
                order.answer.set_value(position_);
            else
                order.answer.set_value(status);
            lock.lock();
        }
        if (ending_) {
            for (Order& order : orders_) order.answer.set_value(closed());
            orders_.clear();
            return;
        }
        if (feed_->listeners() > 0) lastWatchedNs_ = clock_.now();
        if (position_.paused) {
            wake_.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                return ending_ || !orders_.empty();
            });
            continue;
        }
        lock.unlock();
        if (absl::Status status = advance(runTime()); !status.ok()) {
            feed_->end(status);
            position_.paused = true;
        }
        publish(false);
        MonoNs nap = kLongestNap;
        if (!ahead_.empty()) {
            const double due = static_cast<double>(ahead_.front().timeNs - runTime());
            nap = std::clamp<MonoNs>(static_cast<MonoNs>(due / position_.speed), kMillisecond,
                                     kLongestNap);
        }
        lock.lock();
        wake_.wait_for(
            lock, std::chrono::nanoseconds(nap),
            [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ending_ || !orders_.empty(); });
    }
}

absl::Status Replay::obey(const model::ReplayControl& order) {
    if (!position_.paused) {
        if (absl::Status status = advance(runTime()); !status.ok()) return status;
    }
    if (seeks(order)) {
        const absl::Status status = seek(order);
        position_.loading.reset();
        if (!status.ok()) {
            publish(true);
            return status;
        }
    }
    anchor(position_.timeNs);
    if (order.speed) position_.speed = *order.speed;
    if (order.paused) {
        position_.paused = *order.paused;
        // A run that is still written may have grown since.
        if (!*order.paused && position_.atEnd) position_.atEnd = false;
    }
    publish(true);
    return absl::OkStatus();
}

absl::Status Replay::seek(const model::ReplayControl& order) {
    if (auto info = reader_->run(info_.id); info.ok()) {
        info_ = *std::move(info);
        position_.endNs = info_.endedNs;
        position_.endStep = info_.lastStep;
    }
    std::optional<int64_t> timeNs;
    uint64_t seq = 0;
    if (order.seekStep && *order.seekStep > 0) {
        const uint64_t step = *order.seekStep;
        auto at = reader_->seqOfStep(info_.id, step);
        if (absl::IsNotFound(at.status()))
            return absl::NotFoundError("run " + info_.name + " has no step " +
                                       std::to_string(step) + "; its last is " +
                                       std::to_string(info_.lastStep));
        if (!at.ok()) return at.status();
        seq = *at;
    } else {
        timeNs = order.seekStep ? info_.startedNs
                                : std::clamp(*order.seekTimeNs, info_.startedNs, info_.endedNs);
        auto at = reader_->seqAtTime(info_.id, *timeNs);
        if (!at.ok()) return at.status();
        // Clocks are set back: the last event need not be the latest.
        seq = timeNs == info_.endedNs ? info_.lastSeq : *at;
    }
    auto state = load(seq);
    if (!state.ok()) return state.status();
    position_.step = state->lastCommit ? state->lastCommit->record.step : 0;
    position_.seq = seq;
    position_.timeNs = timeNs.value_or(state->lastEventNs);
    position_.atEnd = seq >= info_.lastSeq;
    ahead_.clear();
    feed_->reset(*std::move(state));
    return absl::OkStatus();
}

absl::StatusOr<model::RunState> Replay::load(uint64_t seq) {
    publishedNs_ = clock_.now();  // a short seek tells of no progress
    auto state = reader_->stateAtSeq(info_.id, seq, [this](uint64_t done, uint64_t all) {
        position_.loading = static_cast<double>(done) / static_cast<double>(all);
        publish(false);
        return !isOvertaken();
    });
    if (absl::IsCancelled(state.status()))
        return absl::AbortedError("another move of the replay took its place");
    return state;
}

absl::Status Replay::fill() {
    if (!ahead_.empty()) return absl::OkStatus();
    history::EventFilter after;
    after.fromSeq = position_.seq + 1;
    after.limit = kPage;
    after.limitBytes = kPageBytes;
    auto events = reader_->events(info_.id, after);
    if (!events.ok()) return events.status();
    for (model::Event& event : *events) ahead_.push_back(std::move(event));
    return absl::OkStatus();
}

absl::Status Replay::advance(int64_t untilNs) {
    for (;;) {
        if (absl::Status status = fill(); !status.ok()) return status;
        if (ahead_.empty()) {
            position_.atEnd = true;
            position_.paused = true;
            position_.endNs = std::max(position_.endNs, position_.timeNs);
            position_.timeNs = position_.endNs;
            publish(true);
            return absl::OkStatus();
        }
        const model::Event& event = ahead_.front();
        if (event.timeNs > untilNs) break;
        feed_->push(event);
        position_.seq = event.seq;
        if (const auto* commit = std::get_if<model::StepCommitted>(&event.body))
            position_.step = commit->record.step;
        position_.endStep = std::max(position_.endStep, position_.step);
        ahead_.pop_front();
    }
    position_.timeNs = std::max(position_.timeNs, untilNs);
    return absl::OkStatus();
}

int64_t Replay::runTime() const {
    const double passed = static_cast<double>(clock_.now() - anchorRealNs_) * position_.speed;
    return anchorRunNs_ + static_cast<int64_t>(passed);
}

void Replay::anchor(int64_t timeNs) {
    anchorRunNs_ = timeNs;
    anchorRealNs_ = clock_.now();
}

void Replay::publish(bool always) {
    const MonoNs now = clock_.now();
    if (!always && now - publishedNs_ < kPositionEvery) return;
    publishedNs_ = now;
    feed_->setPosition(position_);
}

}  // namespace bulkhead::service
