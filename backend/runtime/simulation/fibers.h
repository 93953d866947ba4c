// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ucontext.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "backend/common/threads.h"
#include "backend/runtime/simulation/event_queue.h"
#include "backend/runtime/simulation/rng.h"

namespace bulkhead::simulation {

/// The threads of one simulated process, all on the thread of the simulation: each has a stack of
/// its own, and the seed says which one goes on whenever one waits or passes. Some go on later
/// than they could, as on a busy machine.
class Fibers final : public ThreadHost {
  public:
    /// The exception that unwinds the stacks of a killed process.
    struct Killed {};

    /// Converts a time of the process's clock to the first moment that shows it.
    using ToGlobal = std::function<MonoNs(MonoNs local)>;
    Fibers(EventQueue& events, const MonoNs& now, const Clock& clock, ToGlobal toGlobal,
           uint64_t seed);
    /// kill() and unwind() come first if there are threads.
    ~Fibers() override;

    /// SIGSTOP and SIGCONT.
    void stop() { stopped_ = true; }
    void goOn();
    /// SIGKILL: no thread goes on but to unwind, the calling one included.
    void kill() { ending_ = true; }
    /// Unwinds the stacks of the killed process, the youngest thread's first. Not from its threads.
    void unwind();
    /// The calling thread destroys what the process is made of: it is not unwound in the course of
    /// that.
    void tearDown();
    /// Unwinds the calling thread of a killed process, if it is one of its threads.
    void leaveIfKilled() const;

    MonoNs now() const override { return clock_.now(); }
    uint64_t start(std::function<void()> body) override;
    void join(uint64_t thread) override;
    void pass() override;
    void park(const void* on, MonoNs atMost, bool unwinds = true) override;
    void wake(const void* on, bool all) override;
    bool ending() const override { return ending_; }

  private:
    struct Fiber;
    Fiber* find(uint64_t thread) const;
    void ready(Fiber& fiber);
    void schedule();
    void run();
    void expire();
    void armTimer(MonoNs at);
    void enter(Fiber& fiber);
    void leave();
    static void begin(uint32_t high, uint32_t low);

    EventQueue& events_;
    const MonoNs& now_;
    const Clock& clock_;
    const ToGlobal toGlobal_;
    Rng rng_;
    std::vector<std::unique_ptr<Fiber>> fibers_;  ///< by age
    std::vector<Fiber*> runnable_;
    Fiber* current_ = nullptr;
    ucontext_t loop_;
    const void* loopStack_ = nullptr;  ///< for the address sanitizer
    size_t loopStackBytes_ = 0;
    uint64_t started_ = 0;
    bool scheduled_ = false;
    bool stopped_ = false;
    bool ending_ = false;
    MonoNs timerAt_ = 0;  ///< 0: none is armed
    const std::shared_ptr<char> life_ = std::make_shared<char>();
};

}  // namespace bulkhead::simulation
