// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <random>
#include <string>

#include "backend/common/fields.h"

namespace bulkhead::testing {

/// Fills every field of a described struct with seeded random content.
class RandomFields {
  public:
    explicit RandomFields(uint32_t seed) : random_(seed) {}

    template <class T>
    void operator()(std::string_view, T& value) {
        fill(value);
    }

    template <class T>
    void fill(T& value) {
        if constexpr (std::same_as<T, bool>) {
            value = pick(2) == 1;
        } else if constexpr (std::same_as<T, double>) {
            value = std::uniform_real_distribution<double>(-1e9, 1e9)(random_);
        } else if constexpr (FieldScalar<T>) {
            value = static_cast<T>((static_cast<uint64_t>(random_()) << 32) | random_());
        } else if constexpr (std::is_enum_v<T>) {
            value = static_cast<T>(pick(static_cast<uint32_t>(EnumNames<T>::kNames.size())));
        } else if constexpr (std::same_as<T, std::string>) {
            value.clear();
            for (uint32_t i = pick(12); i > 0; --i) value += static_cast<char>('a' + pick(26));
        } else if constexpr (IsVector<T>::value) {
            value.resize(pick(4));
            for (auto& item : value) fill(item);
        } else if constexpr (IsOptional<T>::value) {
            value.reset();
            if (pick(2) == 1) fill(value.emplace());
        } else if constexpr (IsVariant<T>::value) {
            withAlternative<T>(pick(std::variant_size_v<T>),
                               [&]<size_t I>() { fill(value.template emplace<I>()); });
        } else {
            T::fields(value, *this);
        }
    }

    uint32_t pick(uint32_t below) { return static_cast<uint32_t>(random_() % below); }

  private:
    std::mt19937 random_;
};

}  // namespace bulkhead::testing
