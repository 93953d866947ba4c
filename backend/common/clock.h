// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

namespace bulkhead {

/// Nanoseconds of some monotonic clock; protocol code receives it as an argument and never asks.
using MonoNs = int64_t;

constexpr MonoNs kMillisecond = 1'000'000;
constexpr MonoNs kSecond = 1'000 * kMillisecond;

/// Milliseconds, for people.
constexpr double inMs(MonoNs duration) {
    return static_cast<double>(duration) / kMillisecond;
}

/// Time as the edges see it. Inject it; pure code takes `now` instead.
class Clock {
  public:
    virtual ~Clock() = default;
    /// Monotonic, for intervals and deadlines.
    virtual MonoNs now() const = 0;
    /// Nanoseconds since the Unix epoch, for records people read.
    virtual int64_t unixNs() const = 0;
};

class SystemClock final : public Clock {
  public:
    MonoNs now() const override {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(
                   std::chrono::steady_clock::now().time_since_epoch())
            .count();
    }
    int64_t unixNs() const override {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(
                   std::chrono::system_clock::now().time_since_epoch())
            .count();
    }
};

}  // namespace bulkhead
