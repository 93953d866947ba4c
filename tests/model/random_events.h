// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <random>

#include "backend/model/event.h"

namespace bulkhead::model {

/// Events from a seed. `hostile`: any value a type can hold, in any order; otherwise ids and sizes
/// such as a small job has, so that events refer to each other.
class RandomEvents {
  public:
    RandomEvents(uint64_t seed, bool hostile) : random_(seed), hostile_(hostile) {}

    uint64_t below(uint64_t n) { return n == 0 ? 0 : random_() % n; }
    Event event(uint64_t seq);

  private:
    struct Values;
    std::mt19937_64 random_;
    bool hostile_;
};

}  // namespace bulkhead::model
