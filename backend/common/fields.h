// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

/// A struct that travels names its fields once, in wire order:
///
///     struct Beat {
///         uint64_t step = 0;
///         template <class Self, class Visitor>
///         static void fields(Self& self, Visitor& visit) { visit("step", self.step); }
///     };
///
/// Each carrier of structs (the binary codec of the control channel, JSON, protobuf) walks that
/// one list, so a field can neither be forgotten nor be spelt two ways. Supported: bool, int32,
/// int64, uint32, uint64, double, std::string, named enums, described structs, std::optional,
/// std::vector and std::variant of those. A variant's alternatives each have a `kType` name.
namespace bulkhead {

namespace detail {
struct AnyVisitor {
    template <class T>
    void operator()(std::string_view, T&) {}
};
}  // namespace detail

template <class T>
concept Described = requires(T& t, detail::AnyVisitor& v) {
    std::remove_const_t<T>::fields(t, v);
};

/// Specialise with `static constexpr std::array<std::string_view, N> kNames`, indexed by value.
/// Names are lower_snake and are the API's spelling of the value.
template <class E>
struct EnumNames;

template <class E>
concept NamedEnum = std::is_enum_v<E> && requires {
    EnumNames<E>::kNames;
};

template <NamedEnum E>
constexpr std::string_view enumName(E value) {
    const auto i = static_cast<size_t>(value);
    return i < EnumNames<E>::kNames.size() ? EnumNames<E>::kNames[i] : std::string_view("?");
}

template <NamedEnum E>
constexpr std::optional<E> enumFromName(std::string_view name) {
    for (size_t i = 0; i < EnumNames<E>::kNames.size(); ++i)
        if (EnumNames<E>::kNames[i] == name) return static_cast<E>(i);
    return std::nullopt;
}

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};
template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};
template <class T>
struct IsVariant : std::false_type {};
template <class... T>
struct IsVariant<std::variant<T...>> : std::true_type {};

template <class T>
concept FieldScalar =
    std::same_as<T, bool> || std::same_as<T, int32_t> || std::same_as<T, int64_t> ||
    std::same_as<T, uint32_t> || std::same_as<T, uint64_t> || std::same_as<T, double>;

/// Calls f.template operator()<I>() for the alternative with index `index`; false if there is none.
template <class Variant, class F>
bool withAlternative(size_t index, F&& f) {
    return [&]<size_t... I>(std::index_sequence<I...>) {
        return ((I == index ? (f.template operator()<I>(), true) : false) || ...);
    }
    (std::make_index_sequence<std::variant_size_v<Variant>>());
}

}  // namespace bulkhead
