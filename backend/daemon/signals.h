// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>

namespace bulkhead::daemon {

/// Signals as readable bytes. Handlers instead of a blocked mask, because a mask would be inherited
/// by every rank an agent starts. One at a time in a process.
class Signals {
  public:
    explicit Signals(std::initializer_list<int> numbers);
    ~Signals();
    Signals(const Signals&) = delete;
    Signals& operator=(const Signals&) = delete;

    /// The next signal, or 0 when none came within `ms` (-1: waits for ever).
    int next(int ms);

  private:
    int read_ = -1;
};

}  // namespace bulkhead::daemon
