// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

/// Whole sequences in memory that never grows beyond `Capacity` elements: where Ring (ring.h)
/// forgets what is oldest, these keep the range and lose detail. `T::absorb(const T& next)` makes
/// one element of two neighbours. Described, so that they travel in keyframes; any values of their
/// fields are safe after `repair()`, which whoever decodes one calls.
namespace bulkhead::model {

/// Elements of equal weight: each but the last stands for `width()` that were pushed, a power of
/// two that doubles whenever the memory is full.
template <class T, size_t Capacity>
class Thinned {
    static_assert(Capacity % 2 == 0);

  public:
    using value_type = T;

    size_t size() const { return items_.size(); }
    bool empty() const { return items_.empty(); }
    uint64_t width() const { return width_; }
    const T& operator[](size_t i) const { return items_[i]; }
    const T& back() const { return items_.back(); }
    auto begin() const { return items_.begin(); }
    auto end() const { return items_.end(); }

    void push(T value) {
        if (!items_.empty() && filled_ < width_) {
            items_.back().absorb(value);
            ++filled_;
            return;
        }
        if (items_.size() == Capacity) halve();
        items_.push_back(std::move(value));
        filled_ = 1;
    }

    /// Takes out the last ones for which `gone` holds.
    template <class Gone>
    void dropLastWhile(Gone gone) {
        while (!items_.empty() && gone(std::as_const(items_.back()))) {
            items_.pop_back();
            filled_ = width_;
        }
    }

    void clear() {
        items_.clear();
        width_ = 1;
        filled_ = 0;
    }

    /// Takes out each one for which `gone` holds.
    template <class Gone>
    void dropIf(Gone gone) {
        std::erase_if(items_, gone);
    }

    void repair() {
        if (items_.size() > Capacity) items_.resize(Capacity);
        width_ = std::max<uint64_t>(width_, 1);
        filled_ = std::min(filled_, width_);
    }

    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("items", self.items_);
        visit("width", self.width_);
        visit("filled", self.filled_);
    }

  private:
    void halve() {
        for (size_t i = 0; i + 1 < items_.size(); i += 2) {
            items_[i].absorb(items_[i + 1]);
            if (i > 0) items_[i / 2] = std::move(items_[i]);
        }
        items_.resize(Capacity / 2);
        if (__builtin_mul_overflow(width_, uint64_t{2}, &width_)) width_ = UINT64_MAX;
    }

    std::vector<T> items_;
    uint64_t width_ = 1;
    uint64_t filled_ = 0;  ///< that the last element stands for
};

/// Stretches of time with `beginNs` and `endNs` that follow each other. When the memory is full,
/// the two neighbours that last shortest together become one; the last `kExact` stay as they are.
template <class T, size_t Capacity>
class Lane {
  public:
    using value_type = T;
    static constexpr size_t kExact = Capacity / 8;

    size_t size() const { return items_.size(); }
    bool empty() const { return items_.empty(); }
    const T& operator[](size_t i) const { return items_[i]; }
    const T& back() const { return items_.back(); }
    T& back() { return items_.back(); }
    auto begin() const { return items_.begin(); }
    auto end() const { return items_.end(); }

    void push(T value) {
        if (items_.size() == Capacity) mergeShortest();
        items_.push_back(std::move(value));
    }

    void repair() {
        if (items_.size() > Capacity)
            items_.erase(items_.begin(), items_.end() - static_cast<std::ptrdiff_t>(Capacity));
    }

    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("items", self.items_);
    }

  private:
    /// Clocks of hostile streams go anywhere: no difference of them may overflow.
    static uint64_t length(const T& first, const T& second) {
        return second.endNs <= first.beginNs
                   ? 0
                   : static_cast<uint64_t>(second.endNs) - static_cast<uint64_t>(first.beginNs);
    }
    void mergeShortest() {
        size_t best = 0;
        for (size_t i = 1; i + 1 + kExact < items_.size(); ++i)
            if (length(items_[i], items_[i + 1]) < length(items_[best], items_[best + 1])) best = i;
        items_[best].absorb(items_[best + 1]);
        items_.erase(items_.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }

    std::vector<T> items_;
};

}  // namespace bulkhead::model
