// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace bulkhead::model {

/// The last `Capacity` things of a sequence, oldest first by index, in memory that never grows
/// beyond that. Described, so that it travels in keyframes. Any values of its fields, from hostile
/// bytes too, are safe: whoever decodes one calls `repair()` (RunState's decoder does).
template <class T, size_t Capacity>
class Ring {
  public:
    using value_type = T;
    static constexpr size_t kCapacity = Capacity;

    size_t size() const { return items_.size(); }
    bool empty() const { return items_.empty(); }
    /// Number of elements ever pushed: `total() - size()` have been forgotten.
    uint64_t total() const { return total_; }

    /// 0 is the oldest kept.
    const T& operator[](size_t i) const { return items_[at(i)]; }
    T& operator[](size_t i) { return items_[at(i)]; }
    const T& back() const { return items_[at(size() - 1)]; }
    T& back() { return items_[at(size() - 1)]; }

    /// The new last element.
    T& push(T value) { return pushBounded(std::move(value), Capacity); }

    /// Like push, with a tighter limit for this call; what is beyond it is forgotten, oldest first.
    T& pushBounded(T value, size_t limit) {
        if (limit > Capacity) limit = Capacity;
        if (limit == 0) limit = 1;
        ++total_;
        if (items_.size() > limit) shrink(limit);
        if (items_.size() < limit) {
            straighten();
            items_.push_back(std::move(value));
            return items_.back();
        }
        const size_t slot = at(0);
        items_[slot] = std::move(value);
        head_ = static_cast<uint32_t>((slot + 1) % items_.size());
        return items_[slot];
    }

    void clear() {
        items_.clear();
        head_ = 0;
    }

    /// In order, as a vector of their own.
    std::vector<T> toVector() const {
        std::vector<T> out;
        out.reserve(size());
        for (size_t i = 0; i < size(); ++i) out.push_back((*this)[i]);
        return out;
    }

    void repair() {
        straighten();
        if (items_.size() > Capacity)
            items_.erase(items_.begin(), items_.end() - static_cast<std::ptrdiff_t>(Capacity));
        if (total_ < items_.size()) total_ = items_.size();
    }

    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("items", self.items_);
        visit("head", self.head_);
        visit("total", self.total_);
    }

    /// Forward, oldest first.
    template <class Owner>
    class Iterator {
      public:
        Iterator(Owner* ring, size_t i) : ring_(ring), i_(i) {}
        decltype(auto) operator*() const { return (*ring_)[i_]; }
        Iterator& operator++() {
            ++i_;
            return *this;
        }
        bool operator!=(const Iterator& other) const { return i_ != other.i_; }

      private:
        Owner* ring_;
        size_t i_;
    };
    auto begin() const { return Iterator<const Ring>(this, 0); }
    auto end() const { return Iterator<const Ring>(this, size()); }
    auto begin() { return Iterator<Ring>(this, 0); }
    auto end() { return Iterator<Ring>(this, size()); }

  private:
    size_t at(size_t i) const { return (head_ + i) % items_.size(); }
    void straighten() {
        if (head_ == 0 || items_.empty()) {
            head_ = 0;
            return;
        }
        std::vector<T> ordered;
        ordered.reserve(items_.size() + 1);
        for (size_t i = 0; i < items_.size(); ++i) ordered.push_back(std::move(items_[at(i)]));
        items_ = std::move(ordered);
        head_ = 0;
    }
    void shrink(size_t limit) {
        straighten();
        items_.erase(items_.begin(), items_.end() - static_cast<std::ptrdiff_t>(limit));
    }

    std::vector<T> items_;
    uint32_t head_ = 0;  ///< slot of the oldest
    uint64_t total_ = 0;
};

}  // namespace bulkhead::model
