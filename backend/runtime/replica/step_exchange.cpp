// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/step_exchange.h"

#include <algorithm>
#include <utility>

namespace bulkhead::runtime {
namespace {

double ms(MonoNs from, MonoNs to) {
    return static_cast<double>(to - from) / kMillisecond;
}

}  // namespace

uint64_t bucketBytesFor(uint64_t asked, bool onDevice) {
    if (asked != 0) return asked;
    return onDevice ? 64 << 20 : 1 << 20;
}

StepExchange::StepExchange(std::unique_ptr<Exchange> exchange, uint64_t bucketBytes,
                           const Clock& clock, Done done)
    : exchange_(std::move(exchange)),
      bucketFloats_(std::max<uint64_t>(1, bucketBytes / sizeof(float))),
      clock_(clock),
      done_(std::move(done)),
      thread_([this] { run(); }) {}

StepExchange::~StepExchange() {
    ExchangeKey last;
    last.term = last.epoch = last.step = ~0ull;
    last.attempt = ~0u;
    abort(last, "the rank leaves");
    {
        const MutexLock lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void StepExchange::bind(std::span<const float> gradient, std::span<float> reduced) {
    const MutexLock lock(mutex_);
    gradient_ = gradient;
    reduced_ = reduced;
    nothingReady();
}

void StepExchange::nothingReady() {
    lacking_.assign((gradient_.size() + bucketFloats_ - 1) / bucketFloats_, bucketFloats_);
    if (const uint64_t rest = gradient_.size() % bucketFloats_; rest > 0) lacking_.back() = rest;
    lackingBuckets_ = lacking_.size();
}

uint64_t StepExchange::restart() {
    const MutexLock lock(mutex_);
    nothingReady();
    firstAt_ = wholeAt_ = 0;
    poison_.reset();
    return ++generation_;
}

uint64_t StepExchange::generation() const {
    const MutexLock lock(mutex_);
    return generation_;
}

void StepExchange::ready(uint64_t generation, uint64_t begin, uint64_t end) {
    {
        const MutexLock lock(mutex_);
        if (generation != generation_) return;
        // Buckets count from the end: the one of float i holds all that are as far from there.
        const uint64_t size = gradient_.size();
        for (uint64_t last = std::min(end, size); last > begin;) {
            const uint64_t bucket = (size - last) / bucketFloats_;
            const uint64_t first = size - std::min(size, (bucket + 1) * bucketFloats_);
            const uint64_t from = std::max(begin, first);
            uint64_t& lacks = lacking_[bucket];
            if (lacks > 0 && lacks <= last - from) --lackingBuckets_;
            lacks -= std::min(lacks, last - from);
            last = from;
        }
        const MonoNs now = clock_.now();
        if (firstAt_ == 0 && !lacking_.empty() && lacking_.front() == 0) firstAt_ = now;
        if (lackingBuckets_ == 0) wholeAt_ = now;
    }
    changed_.notify_all();
}

void StepExchange::poison(uint64_t generation, const std::string& why) {
    {
        const MutexLock lock(mutex_);
        if (generation != generation_) return;
        poison_ = why;
    }
    changed_.notify_all();
}

void StepExchange::begin(const protocol::ExchangeId& id, ExchangeGroup group) {
    {
        const MutexLock lock(mutex_);
        queue_.push_back({id, std::move(group), generation_});
    }
    changed_.notify_all();
}

void StepExchange::abort(const ExchangeKey& key, const std::string& why) {
    {
        const MutexLock lock(mutex_);
        if (abortedUpTo_ < key) {
            abortedUpTo_ = key;
            abortReason_ = why;
        }
    }
    exchange_->abort(key, why);
    changed_.notify_all();
}

void StepExchange::endReading(const std::string& why) {
    std::optional<ExchangeKey> newest;
    {
        const MutexLock lock(mutex_);
        if (lackingBuckets_ == lacking_.size()) return;  // none of it is ready: all wait for it
        newest = queue_.empty() ? running_ : std::optional(queue_.back().group.key);
    }
    if (!newest) return;
    abort(*newest, why);
    MutexLock lock(mutex_);
    changed_.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return !running_ && queue_.empty();
    });
}

void StepExchange::run() {
    for (;;) {
        MutexLock lock(mutex_);
        changed_.wait(lock, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
            return stopping_ || !queue_.empty();
        });
        if (queue_.empty()) return;
        const Job job = std::move(queue_.front());
        queue_.erase(queue_.begin());
        running_ = job.group.key;
        lock.unlock();
        done_(perform(job));
        lock.lock();
        running_.reset();
        lock.unlock();
        changed_.notify_all();
    }
}

ExchangeResult StepExchange::perform(const Job& job) {
    ExchangeResult result;
    result.id = job.id;
    const MonoNs begun = clock_.now();
    result.status = exchange_->configure(job.group);
    const MonoNs connected = clock_.now();
    if (result.status.ok()) result.status = reduceAll(job, &result);
    result.complete = result.status.ok();
    result.failedPeers = exchange_->failedPeers();
    result.stats = exchange_->stats();
    addConnecting(begun, connected, &result.stats);
    const MutexLock lock(mutex_);
    result.poisoned = !result.complete && poison_ && job.generation == generation_;
    return result;
}

/// A bucket that was ready before the connections stood waited for them: for the last to connect.
void StepExchange::addConnecting(MonoNs begun, MonoNs connected, ExchangeStats* stats) const {
    if (stats->connectedLast < 0) return;
    const MutexLock lock(mutex_);
    if (firstAt_ == 0 || firstAt_ >= connected) return;
    double waited = ms(std::max(begun, firstAt_), connected);
    if (stats->waitedOn == stats->connectedLast) waited += stats->waitedMs;
    if (waited <= stats->waitedMs) return;
    stats->waitedMs = waited;
    stats->waitedOn = stats->connectedLast;
}

absl::Status StepExchange::reduceAll(const Job& job, ExchangeResult* result) {
    std::span<const float> gradient;
    std::span<float> reduced;
    {
        const MutexLock lock(mutex_);
        gradient = gradient_;
        reduced = reduced_;
    }
    MonoNs started = 0;
    uint32_t bucket = 0;
    for (uint64_t end = gradient.size(); end > 0;) {
        const uint64_t begin = end > bucketFloats_ ? end - bucketFloats_ : 0;
        if (absl::Status s = awaitBucket(job, bucket); !s.ok()) return s;
        if (started == 0) started = clock_.now();
        const absl::Status s = exchange_->reduce(bucket, gradient.subspan(begin, end - begin),
                                                 reduced.subspan(begin, end - begin));
        if (!s.ok()) return s;
        ++bucket;
        ++buckets_;
        end = begin;
    }
    const MonoNs now = clock_.now();
    const MutexLock lock(mutex_);
    result->exchangeMs = ms(started, now);
    result->exposedMs = ms(std::max(started, wholeAt_), now);
    return absl::OkStatus();
}

absl::Status StepExchange::awaitBucket(const Job& job, uint32_t bucket) {
    MutexLock lock(mutex_);
    changed_.wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || poison_ || job.generation != generation_ ||
               job.group.key <= abortedUpTo_ || lacking_[bucket] == 0;
    });
    if (job.group.key <= abortedUpTo_) return absl::AbortedError(abortReason_);
    if (job.generation != generation_)
        return absl::AbortedError("its gradient was given up for another");
    if (poison_) return absl::FailedPreconditionError(*poison_);
    if (stopping_) return absl::AbortedError("the rank leaves");
    return absl::OkStatus();
}

}  // namespace bulkhead::runtime
