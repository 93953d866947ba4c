// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "backend/common/fields.h"

/// The shape of a described type as text and as a hash: two programs whose hashes agree lay out the
/// binary codec's bytes the same way. Thread: stateless, any.
namespace bulkhead {

template <class T>
void appendShape(std::string& out);

struct ShapeVisitor {
    std::string& out;
    template <class T>
    void operator()(std::string_view name, T&) {
        out += name;
        out += ':';
        appendShape<std::remove_const_t<T>>(out);
        out += ',';
    }
};

template <class T>
void appendAlternative(std::string& out) {
    if constexpr (requires { T::kType; }) out += T::kType;
    appendShape<T>(out);
}

template <class T>
void appendShape(std::string& out) {
    if constexpr (std::same_as<T, bool>) {
        out += 'b';
    } else if constexpr (std::same_as<T, double>) {
        out += 'd';
    } else if constexpr (FieldScalar<T>) {
        out += std::is_signed_v<T> ? 'i' : 'u';
        out += std::to_string(sizeof(T));
    } else if constexpr (std::is_enum_v<T>) {
        out += "e(";
        for (std::string_view name : EnumNames<T>::kNames) {
            out += name;
            out += '|';
        }
        out += ')';
    } else if constexpr (std::same_as<T, std::string>) {
        out += 's';
    } else if constexpr (IsVector<T>::value) {
        out += '[';
        appendShape<typename T::value_type>(out);
        out += ']';
    } else if constexpr (IsOptional<T>::value) {
        out += '?';
        appendShape<typename T::value_type>(out);
    } else if constexpr (IsVariant<T>::value) {
        out += '<';
        [&]<size_t... I>(std::index_sequence<I...>) {
            (appendAlternative<std::variant_alternative_t<I, T>>(out), ...);
        }
        (std::make_index_sequence<std::variant_size_v<T>>());
        out += '>';
    } else {
        T value{};
        ShapeVisitor visitor{out};
        out += '{';
        T::fields(value, visitor);
        out += '}';
    }
}

/// FNV-1a of the shape.
template <class T>
[[nodiscard]] uint64_t shapeHash() {
    std::string shape;
    appendShape<T>(shape);
    uint64_t hash = 14695981039346656037ull;
    for (char c : shape) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
    return hash;
}

}  // namespace bulkhead
