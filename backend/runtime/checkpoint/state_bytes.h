// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

namespace bulkhead::runtime {

/// The bytes of a whole state, in memory of their own or in memory that somebody lends as long as
/// they are in use. A copy has memory of its own.
class StateBytes {
  public:
    StateBytes() = default;
    /// `loan` ends when nobody uses the memory any more.
    StateBytes(std::span<std::byte> lent, std::shared_ptr<void> loan)
        : owner_(std::move(loan)), bytes_(lent), room_(lent.size()), lent_(true) {}
    StateBytes(StateBytes&& other) noexcept { *this = std::move(other); }
    StateBytes& operator=(StateBytes&& other) noexcept {
        owner_ = std::exchange(other.owner_, nullptr);
        bytes_ = std::exchange(other.bytes_, {});
        room_ = std::exchange(other.room_, 0);
        lent_ = std::exchange(other.lent_, false);
        return *this;
    }
    StateBytes(const StateBytes& other) { *this = other; }
    StateBytes& operator=(const StateBytes& other) {
        if (this == &other) return *this;
        *this = StateBytes();
        resize(other.size());
        std::copy(other.begin(), other.end(), begin());
        return *this;
    }
    ~StateBytes() = default;

    /// Afterwards the contents are anything.
    void resize(size_t size) {
        if (size > room_) {
            *this = StateBytes();  // first, so that both are never there
            auto own = std::make_shared_for_overwrite<std::byte[]>(size);
            bytes_ = {own.get(), size};
            owner_ = std::move(own);
            room_ = size;
        }
        bytes_ = {bytes_.data(), size};
    }
    void assign(size_t size, std::byte value) {
        resize(size);
        std::fill(begin(), end(), value);
    }

    bool lent() const { return lent_; }
    std::byte* data() { return bytes_.data(); }
    const std::byte* data() const { return bytes_.data(); }
    size_t size() const { return bytes_.size(); }
    std::byte* begin() { return bytes_.data(); }
    std::byte* end() { return bytes_.data() + bytes_.size(); }
    const std::byte* begin() const { return bytes_.data(); }
    const std::byte* end() const { return bytes_.data() + bytes_.size(); }
    std::byte& operator[](size_t at) { return bytes_[at]; }

    friend bool operator==(const StateBytes& a, const StateBytes& b) {
        return std::ranges::equal(a, b);
    }

  private:
    std::shared_ptr<void> owner_;
    std::span<std::byte> bytes_;
    size_t room_ = 0;  ///< bytes there
    bool lent_ = false;
};

}  // namespace bulkhead::runtime
