// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/unique_fd.h"

namespace bulkhead::runtime {

/// The descriptor by which a process inherits its life lock, and the environment variable that says
/// that it did.
constexpr int kLifeLockFd = 3;
constexpr const char* kLifeLockVariable = "BULKHEAD_LIFE_LOCK";

/// A robust futex (set_robust_list(2)) in a sealed page of memory. A process takes it once and
/// holds it as long as it lives. The kernel releases it when the process begins to end, before it
/// gives back the memory, and so long before sockets and pidfds tell of the end. One process writes
/// the page and one waits for it: the kernel wakes one. Thread: any; nothing changes after the
/// creation.
class LifeLock {
  public:
    /// A page that no process has held. Unavailable when the kernel gives none.
    static absl::StatusOr<LifeLock> create();
    /// The page that process `pid` has as kLifeLockFd. NotFound: it has none; Unavailable.
    static absl::StatusOr<LifeLock> ofProcess(int32_t pid);

    /// To hand down to the process that shall hold it.
    int fd() const { return fd_.get(); }
    /// 0: not taken yet. Read only and never unmapped before the object goes: the page cannot be
    /// cut short. What stands in it is only as good as who writes it.
    const std::atomic<uint32_t>& word() const { return *word_; }
    /// `word` says that the thread that held the lock has ended.
    static bool released(uint32_t word);

    LifeLock(LifeLock&& other) noexcept
        : fd_(std::move(other.fd_)), word_(std::exchange(other.word_, nullptr)) {}
    ~LifeLock();

  private:
    LifeLock(UniqueFd fd, const std::atomic<uint32_t>* word) : fd_(std::move(fd)), word_(word) {}
    static absl::StatusOr<LifeLock> map(UniqueFd fd);

    UniqueFd fd_;
    const std::atomic<uint32_t>* word_ = nullptr;
};

/// Takes the lock that the process has inherited, until its end or an exec: a thread that never
/// returns holds it. Children do not inherit it. Ok when none was inherited; FailedPrecondition
/// when kLifeLockFd is no life lock or was taken before. Once, before other threads use the
/// environment.
[[nodiscard]] absl::Status holdLifeLock();

}  // namespace bulkhead::runtime
