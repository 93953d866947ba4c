// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/data/counts.h"

#include <cassert>
#include <numeric>

namespace bulkhead::planner {

uint64_t Counts::total(uint32_t layer) const {
    const auto cells = row(layer);
    return std::accumulate(cells.begin(), cells.end(), uint64_t{0});
}

uint64_t Counts::total() const {
    return std::accumulate(values_.begin(), values_.end(), uint64_t{0});
}

Counts& Counts::operator+=(const Counts& other) {
    assert(layers_ == other.layers_ && experts_ == other.experts_);
    for (size_t i = 0; i < values_.size(); ++i) values_[i] += other.values_[i];
    return *this;
}

}  // namespace bulkhead::planner
