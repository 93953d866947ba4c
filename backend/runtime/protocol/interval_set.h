// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

namespace bulkhead::protocol {

/// Disjoint, merged half-open intervals of uint64. Insert and erase cost O(log n + touched).
class IntervalSet {
  public:
    bool empty() const { return at_.empty(); }
    uint64_t size() const { return size_; }
    const std::map<uint64_t, uint64_t>& intervals() const { return at_; }

    bool intersects(uint64_t begin, uint64_t end) const {
        if (begin >= end) return false;
        auto it = at_.lower_bound(end);
        return it != at_.begin() && std::prev(it)->second > begin;
    }

    bool contains(uint64_t begin, uint64_t end) const {
        if (begin >= end) return true;
        auto it = at_.upper_bound(begin);
        return it != at_.begin() && std::prev(it)->second >= end;
    }

    /// False, and nothing changes, when any part is in the set already.
    bool insert(uint64_t begin, uint64_t end) {
        if (begin >= end) return true;
        if (intersects(begin, end)) return false;
        size_ += end - begin;
        auto next = at_.lower_bound(begin);
        if (next != at_.end() && next->first == end) {
            end = next->second;
            next = at_.erase(next);
        }
        if (next != at_.begin()) {
            auto before = std::prev(next);
            if (before->second == begin) {
                before->second = end;
                return true;
            }
        }
        at_.emplace_hint(next, begin, end);
        return true;
    }

    /// False, and nothing changes, when any part is not in the set.
    bool erase(uint64_t begin, uint64_t end) {
        if (begin >= end) return true;
        if (!contains(begin, end)) return false;
        auto it = std::prev(at_.upper_bound(begin));
        const auto [first, last] = *it;
        at_.erase(it);
        if (first < begin) at_.emplace(first, begin);
        if (end < last) at_.emplace(end, last);
        size_ -= end - begin;
        return true;
    }

    /// Takes up to `count` values from the lowest interval.
    std::optional<std::pair<uint64_t, uint64_t>> takeLowest(uint64_t count) {
        if (at_.empty() || count == 0) return std::nullopt;
        const auto [first, last] = *at_.begin();
        const uint64_t end = first + std::min(count, last - first);
        erase(first, end);
        return std::pair{first, end};
    }

    bool operator==(const IntervalSet& other) const { return at_ == other.at_; }

  private:
    std::map<uint64_t, uint64_t> at_;
    uint64_t size_ = 0;
};

}  // namespace bulkhead::protocol
