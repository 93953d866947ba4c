// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "backend/common/clock.h"

namespace bulkhead::runtime {

/// The silence after which a peer is accused: a multiple of the waits seen lately, never
/// below the floor that the coordinator sets nor above a cap. Waits grow the estimate at once and
/// leave it slowly, so that one fast round does not make the next one nervous. Until
/// the first sum over new connections is done a peer may still wait for another one's. Pure.
class AdaptiveTimeout {
  public:
    static constexpr MonoNs kMultiple = 8;
    static constexpr MonoNs kCap = 120 * kSecond;

    void setFloor(MonoNs floor) { floor_ = floor; }
    void connected(MonoNs patience) { begin_ = patience; }
    void summed() { begin_ = 0; }
    void observe(MonoNs wait) { seen_ = std::max(wait, seen_ - (seen_ - wait) / 16); }
    MonoNs current() const {
        return begin_ + std::max(floor_, std::min(kCap, kMultiple * std::min(seen_, kCap)));
    }

  private:
    MonoNs floor_ = 2 * kSecond;
    MonoNs seen_ = 0;
    MonoNs begin_ = 0;  ///< more for the first sum
};

}  // namespace bulkhead::runtime
