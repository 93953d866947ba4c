// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "backend/common/clock.h"

namespace bulkhead::runtime {

struct ProcessFigures {
    std::optional<double> cpuPercent;  ///< of one core since the last sample; absent the first time
    std::optional<uint64_t> rssBytes;
};

/// Processor and memory of processes and of the machine, from /proc. What cannot be read is absent,
/// never zero. Thread: one.
class ProcSampler {
  public:
    /// `procRoot` is /proc except in tests.
    explicit ProcSampler(std::string procRoot = "/proc");

    ProcessFigures sample(int32_t pid, MonoNs now);
    void forget(int32_t pid);

    struct Memory {
        std::optional<uint64_t> totalBytes;
        std::optional<uint64_t> availableBytes;
    };
    Memory memory() const;

  private:
    struct Last {
        uint64_t ticks = 0;
        MonoNs at = 0;
    };
    std::string root_;
    long ticksPerSecond_;
    long pageBytes_;
    std::map<int32_t, Last> last_;
};

}  // namespace bulkhead::runtime
