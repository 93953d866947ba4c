// SPDX-License-Identifier: Apache-2.0
#include "plugins/cuda/ftar/data_plane.h"

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "plugins/cuda/ftar/order.h"

namespace bulkhead::cuda {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kLeastChunk = 16u
                                 << 10;  // elements: below that a command costs more than it does
constexpr uint64_t kChunkGrain = 1024;   // keeps later chunks as aligned as the first

/// Looks without pause at first, then sleeps: a kernel's answer mostly takes microseconds.
class Pace {
  public:
    explicit Pace(std::chrono::microseconds eager) : eagerUntil_(Clock::now() + eager) {}
    void wait() {
        ++looks_;
        if (Clock::now() > eagerUntil_) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    /// Now and then.
    bool now() const { return looks_ % 256 == 255; }

  private:
    const Clock::time_point eagerUntil_;
    int looks_ = 0;
};

/// Never back: two threads raise the fence.
void raiseTo(uint64_t* word, uint64_t value) {
    uint64_t now = loadAcquire(word);
    while (now < value && !__atomic_compare_exchange_n(word, &now, value, false, __ATOMIC_ACQ_REL,
                                                       __ATOMIC_ACQUIRE)) {
    }
}

uint64_t chunkOf(uint64_t count, uint32_t blocks) {
    const uint64_t even = count / (4 * blocks);
    const uint64_t whole = (even + kChunkGrain - 1) / kChunkGrain * kChunkGrain;
    return std::clamp(whole, kLeastChunk, kChunk);
}

/// The sources and target of `sum` from element `at` on.
Sum partOf(const Sum& sum, uint64_t at, uint64_t count) {
    Sum part = sum;
    part.count = count;
    part.to += at * (sum.narrowTo ? sizeof(Bf16) : sizeof(float));
    for (uint32_t s = 0; s < sum.sources; ++s)
        part.from[s] += at * ((sum.narrow >> s) & 1u ? sizeof(Bf16) : sizeof(float));
    return part;
}

absl::Status abortedStatus() {
    return absl::AbortedError("the exchange on the GPU was aborted");
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataPlane>> DataPlane::create(std::unique_ptr<Machine> machine,
                                                             Options options) {
    if (options.blocks < 1 || options.blocks > kMaxLanes)
        return absl::InvalidArgumentError(
            absl::StrCat("blocks = ", options.blocks, ", expected 1 to ", kMaxLanes));
    std::unique_ptr<DataPlane> plane(new DataPlane(std::move(machine), options));
    absl::StatusOr<void*> queue = plane->machine_->allocatePinned(sizeof(Queue));
    if (!queue.ok()) return queue.status();
    plane->queue_ = static_cast<Queue*>(*queue);
    return plane;
}

DataPlane::~DataPlane() {
    (void)leave();
    if (!lost_.ok()) return;  // a kernel may still write there
    for (void* memory : pinned_) machine_->freePinned(memory);
    if (queue_ != nullptr) machine_->freePinned(queue_);
}

absl::Status DataPlane::enter() {
    if (absl::Status s = leave(); !s.ok()) return s;
    epoch_.store(epoch_.load() + 1);
    failed_ = absl::OkStatus();
    open_ = true;
    return absl::OkStatus();
}

absl::Status DataPlane::leave() {
    if (!lost_.ok()) return lost_;
    if (!open_) return absl::OkStatus();
    open_ = false;
    raiseTo(&queue_->control.fence, epoch_.load() + 1);
    if (absl::Status s = endKernel(); !s.ok()) return s;
    for (const auto& [key, block] : imports_) machine_->unmap(block);
    imports_.clear();
    return absl::OkStatus();
}

absl::StatusOr<Place> DataPlane::place(const void* memory, size_t bytes) {
    return machine_->place(memory, bytes);
}

absl::StatusOr<const void*> DataPlane::reach(const Place& place, size_t bytes) {
    if (absl::Status s = standing(); !s.ok()) return s;
    std::string key(reinterpret_cast<const char*>(place.handle.data()), place.handle.size());
    absl::StrAppend(&key, place.process, ".", place.base);
    auto it = imports_.find(key);
    if (it == imports_.end()) {
        // A driver may wait for the GPU to be idle before it maps anything.
        if (absl::Status s = endKernel(); !s.ok()) return s;
        const absl::StatusOr<Machine::Block> block = machine_->map(place);
        if (!block.ok()) return block.status();
        it = imports_.emplace(std::move(key), *block).first;
    }
    const Machine::Block& block = it->second;
    if (place.offset > block.bytes || bytes > block.bytes - place.offset)
        return absl::InvalidArgumentError(absl::StrCat("a peer offers ", bytes, " bytes at ",
                                                       place.offset, " of a block of ", block.bytes,
                                                       "; its memory is not as it says"));
    return block.base + place.offset;
}

absl::Status DataPlane::submit(const Sum& sum) {
    if (absl::Status s = standing(); !s.ok()) return s;
    Command trial{epoch_.load(), sum};
    trial.sum.count = 0;
    if (judge(trial, 0) != Outcome::kDone)
        return absl::InvalidArgumentError(absl::StrCat(
            "a sum needs a target and 1 to ", kMaxSources,
            " sources, each aligned to its elements; found ", sum.sources, " sources"));
    if (absl::Status s = start(); !s.ok()) return s;
    const uint64_t chunk = chunkOf(sum.count, options_.blocks);
    for (uint64_t at = 0; at < sum.count; at += chunk)
        if (absl::Status s = post(partOf(sum, at, std::min(chunk, sum.count - at))); !s.ok())
            return s;
    return absl::OkStatus();
}

absl::Status DataPlane::post(const Sum& sum) {
    const uint32_t at = nextLane_;
    nextLane_ = (nextLane_ + 1) % options_.blocks;
    const Clock::time_point until = Clock::now() + options_.chunkLimit;
    for (Pace pace(options_.eager); posted_[at] - collected_[at] == kSlots; pace.wait()) {
        if (absl::Status s = collect(at); !s.ok()) return giveUp(s);
        if (aborted()) return giveUp(abortedStatus());
        if (absl::Status s = pace.now() ? machine_->health() : absl::OkStatus(); !s.ok())
            return giveUp(s);
        if (Clock::now() > until)
            return giveUp(absl::DeadlineExceededError("the GPU does not take another chunk"));
    }
    Lane& lane = queue_->lanes[at];
    lane.slots[posted_[at] % kSlots] = Command{epoch_.load(), sum};
    storeRelease(&lane.posted, ++posted_[at]);
    return absl::OkStatus();
}

absl::Status DataPlane::start() {
    if (running_) return absl::OkStatus();
    ++run_;
    running_ = true;
    absl::Status s = machine_->launch(queue_, options_.blocks, run_);
    // A kernel that was not started has not touched anything, and nothing has to be waited for.
    if (!s.ok()) running_ = false;
    return s;
}

/// Reads the answers of a lane. A command of a closed epoch that is answered now was dropped then.
absl::Status DataPlane::collect(uint32_t at) {
    const Lane& lane = queue_->lanes[at];
    const uint64_t finished = loadAcquire(&lane.finished);
    if (finished < collected_[at] || finished > posted_[at])
        return absl::InternalError(absl::StrCat("the GPU's answers make no sense: block ", at,
                                                " has done ", finished, " of ", posted_[at]));
    absl::Status status;
    for (; collected_[at] < finished; ++collected_[at]) {
        const uint64_t slot = collected_[at] % kSlots;
        if (lane.slots[slot].epoch != epoch_.load() || !status.ok()) continue;
        if (lane.outcome[slot] == Outcome::kStale) status = abortedStatus();
        if (lane.outcome[slot] == Outcome::kRefused)
            status = absl::InternalError("the GPU refused a chunk as malformed");
    }
    return status;
}

absl::StatusOr<bool> DataPlane::collectAll() {
    bool all = true;
    absl::Status status;
    for (uint32_t at = 0; at < options_.blocks; ++at) {
        status.Update(collect(at));
        all = all && collected_[at] == posted_[at];
    }
    if (!status.ok()) return status;
    return all;
}

absl::Status DataPlane::finish(std::chrono::milliseconds limit) {
    if (absl::Status s = standing(); !s.ok()) return s;
    const Clock::time_point until = Clock::now() + limit;
    for (Pace pace(options_.eager);; pace.wait()) {
        const absl::StatusOr<bool> all = collectAll();
        if (!all.ok()) return giveUp(all.status());
        if (*all) return absl::OkStatus();
        if (aborted()) return giveUp(abortedStatus());
        if (absl::Status s = pace.now() ? machine_->health() : absl::OkStatus(); !s.ok())
            return giveUp(s);
        if (Clock::now() > until)
            return giveUp(absl::DeadlineExceededError(
                absl::StrCat("the GPU did not add in ", limit.count(), " ms")));
    }
}

absl::Status DataPlane::park() {
    return lost_.ok() ? endKernel() : lost_;
}

void DataPlane::abort() {
    const uint64_t epoch = epoch_.load();
    uint64_t now = abortedEpoch_.load();
    while (now < epoch && !abortedEpoch_.compare_exchange_weak(now, epoch)) {
    }
    raiseTo(&queue_->control.fence, epoch + 1);
}

/// Asks the kernel to end and waits until every block has left. What was told to it and not
/// answered stays in the lanes: the next run finds it stale, or does it if its epoch is still open.
absl::Status DataPlane::endKernel() {
    if (!running_) return absl::OkStatus();
    storeRelease(&queue_->control.stop, run_);
    const Clock::time_point until = Clock::now() + options_.endLimit;
    for (uint32_t at = 0; at < options_.blocks; ++at)
        for (Pace pace(options_.eager); loadAcquire(&queue_->lanes[at].left) != run_; pace.wait()) {
            const bool late = Clock::now() > until;
            // A GPU that is lost says so itself; that is the better reason.
            absl::Status health = late || pace.now() ? machine_->health() : absl::OkStatus();
            if (health.ok() && late)
                health = absl::InternalError("the GPU does not end its kernel");
            if (health.ok()) continue;
            lost_ =
                absl::InternalError(absl::StrCat(health.message(), "; the rank must start again"));
            return lost_;
        }
    running_ = false;
    return absl::OkStatus();
}

absl::Status DataPlane::standing() const {
    if (!lost_.ok()) return lost_;
    if (!open_) return absl::FailedPreconditionError("no epoch is open on the GPU");
    if (!failed_.ok()) return failed_;
    return aborted() ? abortedStatus() : absl::OkStatus();
}

/// The epoch has failed: nothing of it goes on, whoever may still tell the kernel something.
absl::Status DataPlane::giveUp(absl::Status why) {
    raiseTo(&queue_->control.fence, epoch_.load() + 1);
    failed_ = std::move(why);
    if (absl::Status s = endKernel(); !s.ok()) return s;
    return failed_;
}

absl::StatusOr<void*> DataPlane::allocatePinned(size_t bytes) {
    if (absl::Status s = park(); !s.ok()) return s;  // as for a mapping
    absl::StatusOr<void*> memory = machine_->allocatePinned(bytes);
    if (memory.ok()) pinned_.push_back(*memory);
    return memory;
}

}  // namespace bulkhead::cuda
