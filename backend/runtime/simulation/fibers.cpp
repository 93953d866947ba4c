// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/simulation/fibers.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace bulkhead::simulation {
namespace {

constexpr size_t kStackBytes = 256 << 10;
/// Probability that a thread that could take a lock lets another one go first.
constexpr double kPasses = 0.1;
/// Probability that a thread continues later than it could, and its longest delay.
constexpr double kLate = 0.05;
constexpr double kLateMs = 2;

/// A stack above a page that nobody may touch; given back to be used again.
class Stack {
  public:
    Stack() {
        auto& free = pool();
        if (!free.empty()) {
            memory_ = free.back();
            free.pop_back();
            return;
        }
        memory_ = ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory_ == MAP_FAILED) throw std::bad_alloc();
        ::mprotect(memory_, static_cast<size_t>(::getpagesize()), PROT_NONE);
    }
    ~Stack() { pool().push_back(memory_); }
    Stack(const Stack&) = delete;
    Stack& operator=(const Stack&) = delete;
    char* begin() const { return static_cast<char*>(memory_) + ::getpagesize(); }
    static size_t bytes() { return kStackBytes - static_cast<size_t>(::getpagesize()); }

  private:
    static std::vector<void*>& pool() {
        static std::vector<void*> stacks;
        return stacks;
    }
    void* memory_;
};

void beginSwitch([[maybe_unused]] void** fake, [[maybe_unused]] const void* stack,
                 [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(fake, stack, bytes);
#endif
}

void endSwitch([[maybe_unused]] void* fake, [[maybe_unused]] const void** from,
               [[maybe_unused]] size_t* bytes) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, from, bytes);
#endif
}

}  // namespace

struct Fibers::Fiber {
    enum class State { kNew, kReady, kParked, kOver };
    uint64_t id = 0;
    std::function<void()> body;
    Stack stack;
    ucontext_t context;
    void* fake = nullptr;  ///< of the address sanitizer
    State state = State::kNew;
    const void* on = nullptr;
    MonoNs until = 0;  ///< 0: no limit
    bool begun = false;
    bool tearsDown = false;
};

Fibers::Fibers(EventQueue& events, const MonoNs& now, const Clock& clock, ToGlobal toGlobal,
               uint64_t seed)
    : events_(events), now_(now), clock_(clock), toGlobal_(std::move(toGlobal)), rng_(seed) {}

Fibers::~Fibers() = default;

uint64_t Fibers::start(std::function<void()> body) {
    if (ending_) return 0;
    auto made = std::make_unique<Fiber>();
    Fiber& fiber = *made;
    fiber.id = ++started_;
    fiber.body = std::move(body);
    fibers_.push_back(std::move(made));
    ready(fiber);
    return fiber.id;
}

Fibers::Fiber* Fibers::find(uint64_t thread) const {
    for (const auto& fiber : fibers_)
        if (fiber->id == thread) return fiber.get();
    return nullptr;
}

void Fibers::join(uint64_t thread) {
    for (const Fiber* other = find(thread); other != nullptr && !ending_; other = find(thread))
        park(other, kForEver, false);
    leaveIfKilled();
}

void Fibers::pass() {
    if (ending_ || current_ == nullptr || !rng_.chance(kPasses)) return;
    current_->until = 0;
    ready(*current_);
    leave();
}

void Fibers::park(const void* on, MonoNs atMost, bool unwinds) {
    Fiber& fiber = *current_;
    if (!ending_) {
        fiber.on = on;
        fiber.state = Fiber::State::kParked;
        fiber.until =
            atMost == kForEver ? 0 : toGlobal_(clock_.now() + std::max<MonoNs>(atMost, 1));
        if (fiber.until != 0) armTimer(fiber.until);
        leave();
        fiber.on = nullptr;
    }
    if (unwinds) leaveIfKilled();
}

void Fibers::leaveIfKilled() const {
    if (ending_ && current_ != nullptr && !current_->tearsDown && std::uncaught_exceptions() == 0)
        throw Killed{};
}

void Fibers::tearDown() {
    current_->tearsDown = true;
}

void Fibers::wake(const void* on, bool all) {
    std::vector<Fiber*> waiting;
    for (const auto& fiber : fibers_)
        if (fiber->state == Fiber::State::kParked && fiber->on == on)
            waiting.push_back(fiber.get());
    if (waiting.empty()) return;
    if (!all) waiting = {waiting[rng_.below(waiting.size())]};
    for (Fiber* fiber : waiting) ready(*fiber);
}

void Fibers::ready(Fiber& fiber) {
    fiber.state = Fiber::State::kReady;
    if (!rng_.chance(kLate)) {
        runnable_.push_back(&fiber);
        return schedule();
    }
    fiber.state = Fiber::State::kParked;
    fiber.on = &fiber;
    fiber.until = now_ + rng_.between(0, kLateMs) + 1;
    armTimer(fiber.until);
}

void Fibers::armTimer(MonoNs at) {
    if (timerAt_ != 0 && timerAt_ <= at) return;
    timerAt_ = at;
    events_.at(std::max(at, now_), [this, at, life = std::weak_ptr<char>(life_)] {
        if (!life.expired() && timerAt_ == at) expire();
    });
}

void Fibers::expire() {
    timerAt_ = 0;
    MonoNs next = 0;
    for (const auto& fiber : fibers_) {
        if (fiber->state != Fiber::State::kParked || fiber->until == 0) continue;
        if (fiber->until <= now_) {
            fiber->until = 0;
            fiber->state = Fiber::State::kReady;
            runnable_.push_back(fiber.get());
        } else if (next == 0 || fiber->until < next) {
            next = fiber->until;
        }
    }
    if (next != 0) armTimer(next);
    run();
}

void Fibers::schedule() {
    if (scheduled_ || current_ != nullptr) return;
    scheduled_ = true;
    events_.at(now_, [this, life = std::weak_ptr<char>(life_)] {
        if (life.expired()) return;
        scheduled_ = false;
        run();
    });
}

void Fibers::goOn() {
    if (!std::exchange(stopped_, false) || runnable_.empty()) return;
    schedule();
}

void Fibers::run() {
    while (!runnable_.empty() && !stopped_ && !ending_) {
        const size_t chosen = rng_.below(runnable_.size());
        Fiber* fiber = std::exchange(runnable_[chosen], runnable_.back());
        runnable_.pop_back();
        enter(*fiber);
    }
}

void Fibers::unwind() {
    kill();
    runnable_.clear();
    while (!fibers_.empty()) {
        Fiber& youngest = *fibers_.back();
        if (youngest.begun)
            enter(youngest);
        else
            fibers_.pop_back();
    }
}

void Fibers::enter(Fiber& fiber) {
    if (!std::exchange(fiber.begun, true)) {
        ::getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.begin();
        fiber.context.uc_stack.ss_size = Stack::bytes();
        fiber.context.uc_link = nullptr;
        const auto self = reinterpret_cast<uintptr_t>(this);
        ::makecontext(&fiber.context, reinterpret_cast<void (*)()>(&Fibers::begin), 2,
                      static_cast<uint32_t>(self >> 32), static_cast<uint32_t>(self));
    }
    current_ = &fiber;
    threadHost = this;
    void* fake = nullptr;
    beginSwitch(&fake, fiber.stack.begin(), Stack::bytes());
    ::swapcontext(&loop_, &fiber.context);
    endSwitch(fake, nullptr, nullptr);
    threadHost = nullptr;
    current_ = nullptr;
    if (fiber.state != Fiber::State::kOver) return;
    wake(&fiber, true);
    std::erase_if(fibers_, [&](const auto& f) { return f.get() == &fiber; });
}

void Fibers::leave() {
    Fiber& fiber = *current_;
    beginSwitch(fiber.state == Fiber::State::kOver ? nullptr : &fiber.fake, loopStack_,
                loopStackBytes_);
    ::swapcontext(&fiber.context, &loop_);
    endSwitch(fiber.fake, &loopStack_, &loopStackBytes_);
}

/// makecontext() hands over nothing but ints.
void Fibers::begin(uint32_t high, uint32_t low) {
    auto* self = reinterpret_cast<Fibers*>((static_cast<uintptr_t>(high) << 32) | low);
    endSwitch(nullptr, &self->loopStack_, &self->loopStackBytes_);
    Fiber& fiber = *self->current_;
    try {
        fiber.body();
    } catch (const Killed&) {
    }
    fiber.tearsDown = true;
    fiber.body = nullptr;  // destroys its captures while it still is a thread
    fiber.state = Fiber::State::kOver;
    self->leave();
}

}  // namespace bulkhead::simulation
