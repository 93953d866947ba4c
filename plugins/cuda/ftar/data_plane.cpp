// SPDX-License-Identifier: Apache-2.0
#include "plugins/cuda/ftar/data_plane.h"

#include <algorithm>
#include <set>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
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
        if (Clock::now() <= eagerUntil_) return;
        ++naps_;
        std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    /// Now and then.
    bool now() const { return naps_ % 256 == 255; }

  private:
    const Clock::time_point eagerUntil_;
    int naps_ = 0;
};

/// Never back: two threads raise fence and stop. As storeBeforeLoads().
void raiseTo(uint64_t* word, uint64_t value) {
    uint64_t now = __atomic_load_n(word, __ATOMIC_SEQ_CST);
    while (now < value && !__atomic_compare_exchange_n(word, &now, value, false, __ATOMIC_SEQ_CST,
                                                       __ATOMIC_SEQ_CST)) {
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

/// Calls the driver on a thread of its own. No mutex is held during a call.
class DataPlane::Caller {
  public:
    Caller(Machine& machine, Queue* queue)
        : machine_(machine), queue_(queue), thread_([this] { serve(); }) {}
    ~Caller() {
        {
            const absl::MutexLock lock(&mutex_);
            ending_ = true;
        }
        wake_.Signal();
        thread_.join();
    }

    /// Soon; not at all when the run is stopped before.
    void launch(uint64_t run, uint32_t blocks) {
        {
            const absl::MutexLock lock(&mutex_);
            wanted_ = run;
            blocks_ = blocks;
        }
        wake_.Signal();
    }
    /// At `due`, or when this ends.
    void unmapAt(Clock::time_point due, const Import& import) {
        {
            const absl::MutexLock lock(&mutex_);
            leaving_.emplace(due, import);
        }
        wake_.Signal();
    }
    /// Now, what unmapAt() was told of these processes; returns when it is done. Null: of all.
    void unmapNow(const std::set<uint64_t>* processes) {
        const absl::MutexLock lock(&mutex_);
        for (auto it = leaving_.begin(); it != leaving_.end();) {
            const auto next = std::next(it);
            if (processes == nullptr || processes->contains(it->second.process)) {
                auto entry = leaving_.extract(it);
                entry.key() = kAtOnce;
                leaving_.insert(std::move(entry));
            }
            it = next;
        }
        wake_.Signal();
        while (unmapping_ || leaving_.contains(kAtOnce)) unmapped_.Wait(&mutex_);
    }
    /// Nothing is unmapped any more.
    void forget() {
        const absl::MutexLock lock(&mutex_);
        leaving_.clear();
    }

    /// Has the kernel's health asked for; sick() tells it later.
    void look() {
        {
            const absl::MutexLock lock(&mutex_);
            looking_ = true;
        }
        wake_.Signal();
    }

    /// Returns why the kernel can no longer be expected to answer.
    absl::Status sick() const {
        const absl::MutexLock lock(&mutex_);
        return sick_;
    }
    /// The same, or why run `run` did not start.
    absl::Status why(uint64_t run) const {
        const absl::MutexLock lock(&mutex_);
        return settled_ == run && !refused_.ok() ? refused_ : sick_;
    }
    /// No block will enter run `run`.
    bool never(uint64_t run) const {
        const absl::MutexLock lock(&mutex_);
        return settled_ == run && !started_;
    }
    /// It is in no call.
    bool idle() const {
        const absl::MutexLock lock(&mutex_);
        return !calling_;
    }

  private:
    static constexpr Clock::time_point kAtOnce = Clock::time_point::min();

    void serve() {
        const absl::MutexLock lock(&mutex_);
        for (;;) {
            while (!ending_ && !looking_ && settled_ == wanted_ && !due()) rest();
            if (settled_ != wanted_)
                start();
            else if (due())
                unmap();
            else if (ending_)
                return;
            else
                ask();
        }
    }
    bool due() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return !leaving_.empty() && (ending_ || leaving_.begin()->first <= Clock::now());
    }
    void rest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        if (leaving_.empty()) return wake_.Wait(&mutex_);
        wake_.WaitWithTimeout(&mutex_, absl::FromChrono(leaving_.begin()->first - Clock::now()));
    }
    void unmap() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        const Machine::Block block = leaving_.extract(leaving_.begin()).mapped().block;
        unmapping_ = true;
        (void)call([&] {
            machine_.unmap(block);
            return absl::OkStatus();
        });
        unmapping_ = false;
        unmapped_.SignalAll();
    }
    void start() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        const uint64_t run = wanted_;
        const uint32_t blocks = blocks_;
        const bool stopped = loadAcquire(&queue_->control.stop) >= run;
        refused_ =
            stopped ? absl::OkStatus() : call([&] { return machine_.launch(queue_, blocks, run); });
        started_ = !stopped && refused_.ok();
        settled_ = run;
    }
    void ask() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        looking_ = false;
        sick_ = call([&] { return machine_.health(); });
    }
    /// Runs `body` without the mutex.
    template <class Body>
    absl::Status call(Body body) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        calling_ = true;
        mutex_.Unlock();
        absl::Status s = body();
        mutex_.Lock();
        calling_ = false;
        return s;
    }

    Machine& machine_;
    Queue* const queue_;
    mutable absl::Mutex mutex_;
    absl::CondVar wake_;
    uint64_t wanted_ ABSL_GUARDED_BY(mutex_) = 0;  ///< the run that is to start
    uint32_t blocks_ ABSL_GUARDED_BY(mutex_) = 0;  ///< of it
    uint64_t settled_ ABSL_GUARDED_BY(mutex_) =
        0;  ///< the last run that was started, refused or not started any more
    bool started_ ABSL_GUARDED_BY(mutex_) =
        false;  ///< and this is whether it was the first of these
    std::multimap<Clock::time_point, Import> leaving_ ABSL_GUARDED_BY(mutex_);  ///< by when
    absl::CondVar unmapped_;
    bool unmapping_ ABSL_GUARDED_BY(mutex_) = false;
    bool looking_ ABSL_GUARDED_BY(mutex_) = false;
    bool ending_ ABSL_GUARDED_BY(mutex_) = false;
    bool calling_ ABSL_GUARDED_BY(mutex_) = false;
    absl::Status refused_ ABSL_GUARDED_BY(mutex_);
    absl::Status sick_ ABSL_GUARDED_BY(mutex_);
    std::thread thread_;  ///< last, because it uses all of the above
};

DataPlane::DataPlane(std::unique_ptr<Machine> machine, Options options)
    : machine_(std::move(machine)), options_(options), blocks_(options.blocks) {}

absl::StatusOr<std::unique_ptr<DataPlane>> DataPlane::create(std::unique_ptr<Machine> machine,
                                                             Options options) {
    if (options.nearBlocks == 0) options.nearBlocks = options.blocks;
    for (const uint32_t blocks : {options.blocks, options.nearBlocks})
        if (blocks < 1 || blocks > kMaxLanes)
            return absl::InvalidArgumentError(
                absl::StrCat("blocks = ", blocks, ", expected 1 to ", kMaxLanes));
    std::unique_ptr<DataPlane> plane(new DataPlane(std::move(machine), options));
    absl::StatusOr<void*> queue = plane->machine_->allocatePinned(sizeof(Queue));
    if (!queue.ok()) return queue.status();
    plane->queue_ = static_cast<Queue*>(*queue);
    plane->queue_->control.patience =
        static_cast<uint64_t>(std::chrono::nanoseconds(options.patience).count());
    plane->caller_ = std::make_unique<Caller>(*plane->machine_, plane->queue_);
    return plane;
}

DataPlane::~DataPlane() {
    if (caller_ != nullptr) (void)leave();
    if (!lost_.ok()) {  // a kernel may still write there, and a call may never return
        if (caller_ != nullptr) caller_->forget();
        if (caller_ != nullptr && !caller_->idle()) {
            (void)caller_.release();
            (void)machine_.release();
        }
        return;
    }
    caller_.reset();
    for (void* memory : pinned_) machine_->freePinned(memory);
    if (queue_ != nullptr) machine_->freePinned(queue_);
}

absl::Status DataPlane::enter() {
    if (absl::Status s = endEpoch(); !s.ok()) return s;
    epoch_.store(epoch_.load() + 1);
    failed_ = absl::OkStatus();
    blocks_ = options_.blocks;
    open_ = true;
    meeting_ = Meeting::kNone;
    machine_->epochBegan();
    return absl::OkStatus();
}

absl::Status DataPlane::leave() {
    if (absl::Status s = endEpoch(); !s.ok()) return s;
    caller_->unmapNow(nullptr);
    for (const auto& [key, import] : imports_) machine_->unmap(import.block);
    imports_.clear();
    return absl::OkStatus();
}

absl::Status DataPlane::endEpoch() {
    if (!lost_.ok()) return lost_;
    if (!std::exchange(open_, false)) return absl::OkStatus();
    raiseTo(&queue_->control.fence, epoch_.load() + 1);
    return endKernel();
}

/// Unmaps what this epoch's peers do not name any more: once they know, they give it to others.
absl::Status DataPlane::settle() {
    std::set<uint64_t> peers;
    for (const auto& [key, import] : imports_)
        if (import.epoch == epoch_.load()) peers.insert(import.process);
    const auto old = [&](const auto& entry) {
        return entry.second.epoch != epoch_.load() && peers.contains(entry.second.process);
    };
    caller_->unmapNow(&peers);
    if (std::ranges::none_of(imports_, old)) return absl::OkStatus();
    if (absl::Status s = endKernel(); !s.ok()) return s;  // as for a mapping
    for (const auto& entry : imports_)
        if (old(entry)) machine_->unmap(entry.second.block);
    std::erase_if(imports_, old);
    return absl::OkStatus();
}

/// The owners of what nobody named in this epoch are no members, and may have been killed.
void DataPlane::dropUnreached() {
    std::erase_if(imports_, [&](const auto& entry) {
        if (entry.second.epoch == epoch_.load()) return false;
        caller_->unmapAt(Clock::now() + options_.unmapAfter, entry.second);
        return true;
    });
}

absl::StatusOr<Place> DataPlane::place(const void* memory, size_t bytes) {
    return machine_->place(memory, bytes);
}

absl::StatusOr<const void*> DataPlane::reach(const Place& place, size_t bytes) {
    if (absl::Status s = standing(); !s.ok()) return s;
    std::string key(reinterpret_cast<const char*>(place.handle.data()), place.handle.size());
    absl::StrAppend(&key, place.process, ".", place.base);
    auto it = imports_.find(key);
    const bool met = meeting_ == Meeting::kSettled;
    // A driver may wait for the GPU to be idle before it maps or frees anything; and the number of
    // blocks changes only while none runs.
    if (it == imports_.end() || blocks_ < options_.nearBlocks || (met && machine_->givesBack()))
        if (absl::Status s = endKernel(); !s.ok()) return s;
    if (met) machine_->membersMet();
    if (met) meeting_ = Meeting::kMet;
    if (meeting_ == Meeting::kNone) meeting_ = Meeting::kReached;
    if (it == imports_.end()) {
        const absl::StatusOr<Machine::Block> block = machine_->map(place);
        if (!block.ok()) return block.status();
        it = imports_.emplace(std::move(key), Import{*block, place.process, 0}).first;
    }
    it->second.epoch = epoch_.load();
    blocks_ = std::max(blocks_, options_.nearBlocks);
    const Machine::Block& block = it->second.block;
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
    gather();
    run();  // blocks come while their chunks are told
    const uint64_t chunk = chunkOf(sum.count, blocks_);
    for (uint64_t at = 0; at < sum.count; at += chunk)
        if (absl::Status s = post(partOf(sum, at, std::min(chunk, sum.count - at))); !s.ok())
            return s;
    run();
    return absl::OkStatus();
}

/// Ends a run that has nothing to do and that blocks have left: those that still serve would do
/// their part of the next sum in it, and the others begin theirs only then, in the next run. Blocks
/// that the GPU has not begun yet are not waited for longer than it takes an idle one to leave.
void DataPlane::gather() {
    if (!running_) return;
    const uint64_t run = run_.load();
    const auto hasLeft = [&](uint32_t at) { return loadAcquire(&queue_->lanes[at].left) == run; };
    uint32_t left = 0;
    for (uint32_t at = 0; at < blocks_; ++at) {
        left += hasLeft(at);
        if (loadAcquire(&queue_->lanes[at].finished) != posted_[at]) return;
    }
    if (left == 0) return;
    raiseTo(&queue_->control.stop, run);
    const Clock::time_point until = Clock::now() + options_.patience;
    for (uint32_t at = 0; at < blocks_; ++at)
        while (!hasLeft(at))
            if (Clock::now() > until) return;
    running_ = false;
}

absl::Status DataPlane::post(const Sum& sum) {
    const uint32_t at = nextLane_ % blocks_;
    nextLane_ = at + 1;
    const Clock::time_point until = Clock::now() + options_.chunkLimit;
    for (Pace pace(options_.eager); posted_[at] - collected_[at] == kSlots; pace.wait()) {
        if (absl::Status s = collect(at); !s.ok()) return giveUp(s);
        if (aborted()) return giveUp(abortedStatus());
        run();
        if (pace.now()) caller_->look();
        if (absl::Status s = caller_->why(run_.load()); !s.ok()) return giveUp(s);
        if (Clock::now() > until)
            return giveUp(absl::DeadlineExceededError("the GPU does not take another chunk"));
    }
    Lane& lane = queue_->lanes[at];
    lane.slots[posted_[at] % kSlots] = Command{epoch_.load(), sum};
    storeRelease(&lane.posted, ++posted_[at]);
    return absl::OkStatus();
}

/// Has a kernel see everything that was posted: starts one where none runs, and where a block has
/// left before it saw it. Blocks that still serve leave too: the next run begins after theirs.
void DataPlane::run() {
    const uint64_t now = run_.load();
    bool wanted = !running_;
    for (uint32_t at = 0; at < blocks_ && !wanted; ++at) {
        const Lane& lane = queue_->lanes[at];
        // In this order: a block that has left answers no more.
        wanted = loadAcquire(&lane.left) == now && loadAcquire(&lane.finished) != posted_[at];
    }
    if (!wanted) return;
    raiseTo(&queue_->control.stop, now);
    running_ = true;
    run_.store(now + 1);
    caller_->launch(now + 1, blocks_);
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
    for (uint32_t at = 0; at < blocks_; ++at) {
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
        if (*all) {
            if (meeting_ != Meeting::kReached) return absl::OkStatus();
            meeting_ = Meeting::kSettled;
            return settle();
        }
        if (aborted()) return giveUp(abortedStatus());
        run();
        if (pace.now()) caller_->look();
        if (absl::Status s = caller_->why(run_.load()); !s.ok()) return giveUp(s);
        if (Clock::now() > until)
            return giveUp(absl::DeadlineExceededError(
                absl::StrCat("the GPU did not add in ", limit.count(), " ms")));
    }
}

absl::Status DataPlane::park() {
    if (!lost_.ok()) return lost_;
    if (absl::Status s = endKernel(); !s.ok()) return s;
    if (open_ && failed_.ok() && !aborted()) dropUnreached();
    return absl::OkStatus();
}

void DataPlane::abort() {
    const uint64_t run = run_.load();  // before the epoch: no run of a later one is stopped
    const uint64_t epoch = epoch_.load();
    uint64_t now = abortedEpoch_.load();
    while (now < epoch && !abortedEpoch_.compare_exchange_weak(now, epoch)) {
    }
    raiseTo(&queue_->control.fence, epoch + 1);
    raiseTo(&queue_->control.stop, run);
}

/// Asks the kernel to end and waits until every block has left. What was told to it and not
/// answered stays in the lanes: the next run finds it stale, or does it if its epoch is still open.
/// Once the epoch is fenced, a block that has not entered need not be waited for, as long as the
/// driver may take to start it: it will find nothing to do.
absl::Status DataPlane::endKernel() {
    if (!running_) return absl::OkStatus();
    const uint64_t run = run_.load();
    raiseTo(&queue_->control.stop, run);
    const Clock::time_point until = Clock::now() + options_.endLimit;
    const bool fenced = loadAcquire(&queue_->control.fence) > epoch_.load();
    const auto hasLeft = [&](const Lane& lane) {
        const uint64_t entered = __atomic_load_n(&lane.entered, __ATOMIC_SEQ_CST);
        const uint64_t left = loadAcquire(&lane.left);
        return left == run || ((fenced || caller_->never(run)) && left == entered);
    };
    for (uint32_t at = 0; at < blocks_; ++at)
        for (Pace pace(options_.eager); !hasLeft(queue_->lanes[at]); pace.wait()) {
            if (pace.now()) caller_->look();
            // A GPU that is lost says so itself; that is the better reason.
            absl::Status why = caller_->sick();
            if (why.ok() && Clock::now() > until)
                why = absl::InternalError("the GPU does not end its kernel");
            if (why.ok()) continue;
            lost_ = absl::InternalError(absl::StrCat(why.message(), "; the rank must start again"));
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
    if (!lost_.ok()) return lost_;
    if (absl::Status s = endKernel(); !s.ok()) return s;  // as for a mapping
    absl::StatusOr<void*> memory = machine_->allocatePinned(bytes);
    if (memory.ok()) pinned_.push_back(*memory);
    return memory;
}

}  // namespace bulkhead::cuda
