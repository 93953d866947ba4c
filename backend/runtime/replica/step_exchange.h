// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "backend/common/clock.h"
#include "backend/common/threads.h"
#include "backend/runtime/ftar/exchange.h"
#include "backend/runtime/protocol/rank_machine.h"

namespace bulkhead::runtime {

struct ExchangeResult {
    protocol::ExchangeId id;
    bool complete = false;
    bool poisoned = false;  ///< not complete, and its gradient is known never to be
    absl::Status status;
    std::vector<FailedPeer> failedPeers;
    ExchangeStats stats;
    double exchangeMs = 0;  ///< from the first bucket that was ready to the last that was reduced
    double exposedMs = 0;   ///< the part of it after the whole gradient was there
};

/// Bytes of a bucket: what the job asks for, or where that is 0, what suits where the gradient is.
/// A CPU begins while the backward pass goes on, on 1 MiB. Each bucket on a device costs a kernel's
/// start and end and meetings of all ranks, some 0.1 ms: 64 MiB take two to three times that over
/// the fastest link between GPUs. The same for all ranks of a job.
uint64_t bucketBytesFor(uint64_t asked, bool onDevice);

/// The communication thread of a rank: exchanges the buckets of one step, from the end of the
/// gradient to its beginning as all members do, each when the backward pass has made it final; and
/// all of them again for a redo.
/// Every gradient has a generation, so that a piece of one that was given up is never taken for a
/// piece of the next. Threads: all functions from any; `done` is called on the communication
/// thread, once for every begin().
class StepExchange {
  public:
    using Done = std::function<void(ExchangeResult)>;

    StepExchange(std::unique_ptr<Exchange> exchange, uint64_t bucketBytes, const Clock& clock,
                 Done done);
    ~StepExchange();

    /// Gradient and sum of the model that stands now; no exchange may run.
    void bind(std::span<const float> gradient, std::span<float> reduced);

    /// A new gradient will be computed, nothing of it is ready; returns its generation.
    uint64_t restart();
    uint64_t generation() const;
    /// [begin, end) is final; calls tile the gradient, in any order. An `end` behind the gradient's
    /// is its end. Ignored when `generation` is an old one, likewise below.
    void ready(uint64_t generation, uint64_t begin, uint64_t end);
    /// The gradient will not be finished in this form (not finite): its exchanges fail.
    void poison(uint64_t generation, const std::string& why);

    /// Queues an exchange of the current generation. A running one must have been aborted before.
    void begin(const protocol::ExchangeId& id, ExchangeGroup group);
    /// Ends the exchange of `key` and all before it, at once; queued ones end likewise.
    void abort(const ExchangeKey& key, const std::string& why);

    /// The gradient's memory is about to be written for a generation that nobody waits for: ends
    /// the exchanges that may read it, and returns when none does. Not on the communication thread.
    void endReading(const std::string& why);

    uint64_t progress() const { return exchange_->progress() + buckets_; }

  private:
    struct Job {
        protocol::ExchangeId id;
        ExchangeGroup group;
        uint64_t generation = 0;
    };
    void nothingReady() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
    void run();
    ExchangeResult perform(const Job& job);
    absl::Status reduceAll(const Job& job, ExchangeResult* result);
    void addConnecting(MonoNs begun, MonoNs connected, ExchangeStats* stats) const;
    absl::Status awaitBucket(const Job& job, uint32_t bucket);

    std::unique_ptr<Exchange> exchange_;
    const uint64_t bucketFloats_;
    const Clock& clock_;
    Done done_;
    std::atomic<uint64_t> buckets_{0};

    mutable Mutex mutex_;
    ConditionVariable changed_;
    uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
    std::span<const float> gradient_ ABSL_GUARDED_BY(mutex_);
    std::span<float> reduced_ ABSL_GUARDED_BY(mutex_);
    std::vector<uint64_t> lacking_
        ABSL_GUARDED_BY(mutex_);  ///< by bucket, from the gradient's end: floats not final yet
    uint64_t lackingBuckets_ ABSL_GUARDED_BY(mutex_) = 0;
    MonoNs firstAt_ ABSL_GUARDED_BY(mutex_) = 0;  ///< when its first bucket was
    MonoNs wholeAt_ ABSL_GUARDED_BY(mutex_) = 0;  ///< when the gradient was complete
    std::optional<std::string> poison_ ABSL_GUARDED_BY(mutex_);
    std::vector<Job> queue_ ABSL_GUARDED_BY(mutex_);
    std::optional<ExchangeKey> running_ ABSL_GUARDED_BY(mutex_);
    ExchangeKey abortedUpTo_ ABSL_GUARDED_BY(mutex_);
    std::string abortReason_ ABSL_GUARDED_BY(mutex_);
    bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
    Thread thread_;
};

}  // namespace bulkhead::runtime
