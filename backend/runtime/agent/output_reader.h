// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/clock.h"
#include "backend/runtime/agent/process.h"

namespace bulkhead::runtime {

/// Reads the lines a rank prints from its named pipe, bounded in length and rate. The pipe is
/// opened for reading and writing, so that it survives the death of either side, and without
/// blocking, so that a rank whose agent is away loses lines instead of waiting. Thread: one.
class OutputReader {
  public:
    /// `onLine(line, droppedBefore)`. `linesPerSecond` over which lines are counted and dropped.
    using OnLine = std::function<void(std::string line, uint64_t droppedBefore)>;

    static absl::StatusOr<OutputReader> open(const std::string& pipePath, uint32_t linesPerSecond,
                                             OnLine onLine);

    /// The end for the process. Its writes wait while the pipe is full, as a program and what it
    /// starts expect; it holds 256 KiB, where the kernel lets it, for a while without an agent. (A
    /// user's pipes may hold 64 MiB by default, and there are two for a rank.)
    /// Not valid: errno says why.
    static UniqueFd openToPrint(const std::string& pipePath);

    /// To poll for readability.
    int fd() const { return fd_.get(); }

    /// Takes what is there, at most 64 KiB; false: nothing was.
    bool drain(MonoNs now);
    /// Hands out what stands without a line end, and the last line though it was one too many; at
    /// the process's end.
    void finish(MonoNs now);

  private:
    static constexpr size_t kPipeBytes = 256 << 10, kReadAtOnce = 64 << 10;

    OutputReader(UniqueFd fd, uint32_t linesPerSecond, OnLine onLine)
        : fd_(std::move(fd)), linesPerSecond_(linesPerSecond), onLine_(std::move(onLine)) {}
    void take(std::string_view bytes, MonoNs now);
    void emit(MonoNs now);

    UniqueFd fd_;
    uint32_t linesPerSecond_;
    OnLine onLine_;
    std::string line_;
    bool cut_ = false;  ///< the rest of an overlong line is skipped
    MonoNs windowStart_ = 0;
    uint32_t inWindow_ = 0;
    uint64_t dropped_ = 0;
    std::string lastDropped_;
};

}  // namespace bulkhead::runtime
