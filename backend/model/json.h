// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/fields.h"
#include "nlohmann/json.hpp"

/// JSON of described structs (common/fields.h), walked from the same list as the binary form:
/// field names as declared, enums by name, an optional that is absent as an absent key, a variant
/// as its alternative's object with one more key "type". A double that is not finite is the string
/// "nan", "inf" or "-inf". 64-bit integers are numbers; readers must not go through double.
/// Thread: stateless, any.
namespace bulkhead::model {

using Json = nlohmann::json;

/// Decides if an unknown key is skipped (events, which a newer writer may have written) or an
/// error (what a person typed).
enum class UnknownKeys { kIgnore, kRefuse };

namespace json_detail {

/// Where the reader is, and its first error.
class Reading {
  public:
    explicit Reading(UnknownKeys unknown) : unknown_(unknown) {}
    bool failed() const { return !status_.ok(); }
    const absl::Status& status() const { return status_; }
    bool refusesUnknown() const { return unknown_ == UnknownKeys::kRefuse; }
    void enter(std::string_view key);
    void enter(size_t index);
    void leave() { path_.pop_back(); }
    /// "at contributors[3].replica: expected a 32-bit integer, found a string"
    void fail(std::string_view expected, const Json& found);
    void failUnknownKey(std::string_view key, const std::vector<std::string_view>& known);
    void failUnknownName(std::string_view kind, std::string_view name,
                         const std::vector<std::string_view>& known);

  private:
    std::string where() const;
    std::vector<std::string> path_;
    absl::Status status_;
    UnknownKeys unknown_;
};

Json doubleToJson(double value);
bool doubleFromJson(const Json& json, double& value);

template <class T>
Json write(const T& value);

struct ObjectWriter {
    Json& object;
    template <class T>
    void operator()(std::string_view name, const T& value) {
        if constexpr (IsOptional<T>::value) {
            if (value) object[std::string(name)] = write(*value);
        } else {
            object[std::string(name)] = write(value);
        }
    }
};

template <class T>
Json write(const T& value) {
    if constexpr (std::same_as<T, double>) {
        return doubleToJson(value);
    } else if constexpr (FieldScalar<T> || std::same_as<T, std::string>) {
        return value;
    } else if constexpr (std::is_enum_v<T>) {
        return enumName(value);
    } else if constexpr (IsVector<T>::value) {
        Json array = Json::array();
        for (const auto& item : value) array.push_back(write(item));
        return array;
    } else if constexpr (IsOptional<T>::value) {
        return value ? write(*value) : Json();
    } else if constexpr (IsVariant<T>::value) {
        return std::visit(
            [](const auto& alternative) {
                Json object = write(alternative);
                object["type"] = std::remove_cvref_t<decltype(alternative)>::kType;
                return object;
            },
            value);
    } else {
        Json object = Json::object();
        ObjectWriter writer{object};
        T::fields(value, writer);
        return object;
    }
}

template <class T>
void read(const Json& json, T& value, Reading& reading);

struct ObjectReader {
    const Json& object;
    Reading& reading;
    std::vector<std::string_view> known;

    template <class T>
    void operator()(std::string_view name, T& value) {
        known.push_back(name);
        if (reading.failed()) return;
        const auto it = object.find(name);
        if (it == object.end()) return;
        reading.enter(name);
        read(*it, value, reading);
        if (!reading.failed()) reading.leave();
    }
};

template <class T>
void readObject(const Json& json, T& value, Reading& reading, bool isVariant) {
    if (!json.is_object()) return reading.fail("an object", json);
    ObjectReader reader{json, reading, {}};
    T::fields(value, reader);
    if (reading.failed() || !reading.refusesUnknown()) return;
    if (isVariant) reader.known.push_back("type");
    for (const auto& item : json.items()) {
        bool isKnown = false;
        for (std::string_view name : reader.known) isKnown = isKnown || name == item.key();
        if (!isKnown) return reading.failUnknownKey(item.key(), reader.known);
    }
}

template <class T>
void readInteger(const Json& json, T& value, Reading& reading) {
    const char* expected =
        std::is_signed_v<T>
            ? (sizeof(T) == 4 ? "a 32-bit integer" : "a 64-bit integer")
            : (sizeof(T) == 4 ? "a 32-bit integer of 0 or more" : "a 64-bit integer of 0 or more");
    if (json.is_number_unsigned()) {
        const auto number = json.get<uint64_t>();
        if (number > static_cast<uint64_t>(std::numeric_limits<T>::max()))
            return reading.fail(expected, json);
        value = static_cast<T>(number);
    } else if (json.is_number_integer()) {
        const auto number = json.get<int64_t>();
        if constexpr (std::is_unsigned_v<T>) {
            if (number < 0) return reading.fail(expected, json);
        }
        if (!std::in_range<T>(number)) return reading.fail(expected, json);
        value = static_cast<T>(number);
    } else {
        reading.fail(expected, json);
    }
}

template <class Variant>
void readVariant(const Json& json, Variant& value, Reading& reading) {
    if (!json.is_object()) return reading.fail("an object with a \"type\"", json);
    const auto type = json.find("type");
    if (type == json.end() || !type->is_string())
        return reading.fail("an object with a \"type\" that is a string", json);
    const std::string& name = type->template get_ref<const std::string&>();
    std::vector<std::string_view> known;
    bool found = false;
    [&]<size_t... I>(std::index_sequence<I...>) {
        const auto tryOne = [&]<size_t K>() {
            using Alternative = std::variant_alternative_t<K, Variant>;
            known.push_back(Alternative::kType);
            if (found || name != Alternative::kType) return;
            found = true;
            readObject(json, value.template emplace<K>(), reading, true);
        };
        (tryOne.template operator()<I>(), ...);
    }
    (std::make_index_sequence<std::variant_size_v<Variant>>());
    if (!found) reading.failUnknownName("type", name, known);
}

template <class T>
void read(const Json& json, T& value, Reading& reading) {
    if (reading.failed()) return;
    if constexpr (std::same_as<T, bool>) {
        if (!json.is_boolean()) return reading.fail("true or false", json);
        value = json.get<bool>();
    } else if constexpr (std::same_as<T, double>) {
        if (!doubleFromJson(json, value)) reading.fail("a number", json);
    } else if constexpr (FieldScalar<T>) {
        readInteger(json, value, reading);
    } else if constexpr (std::same_as<T, std::string>) {
        if (!json.is_string()) return reading.fail("a string", json);
        value = json.get<std::string>();
    } else if constexpr (std::is_enum_v<T>) {
        if (!json.is_string()) return reading.fail("a name", json);
        const std::string& name = json.get_ref<const std::string&>();
        if (const auto number = enumFromName<T>(name)) {
            value = *number;
        } else {
            reading.failUnknownName("value", name,
                                    {EnumNames<T>::kNames.begin(), EnumNames<T>::kNames.end()});
        }
    } else if constexpr (IsVector<T>::value) {
        if (!json.is_array()) return reading.fail("an array", json);
        value.clear();
        for (size_t i = 0; i < json.size() && !reading.failed(); ++i) {
            reading.enter(i);
            read(json[i], value.emplace_back(), reading);
            if (!reading.failed()) reading.leave();
        }
    } else if constexpr (IsOptional<T>::value) {
        value.reset();
        if (!json.is_null()) read(json, value.emplace(), reading);
    } else if constexpr (IsVariant<T>::value) {
        readVariant(json, value, reading);
    } else {
        readObject(json, value, reading, false);
    }
}

}  // namespace json_detail

template <class T>
[[nodiscard]] Json toJson(const T& value) {
    return json_detail::write(value);
}

/// On one line. Bytes that are not UTF-8 (a rank may print anything) become U+FFFD.
[[nodiscard]] std::string dumpJson(const Json& json);
template <class T>
[[nodiscard]] std::string toJsonText(const T& value) {
    return dumpJson(toJson(value));
}

/// Keys that are missing keep the field's default. InvalidArgument names the path of the field,
/// what was expected and what stood there.
template <class T>
[[nodiscard]] absl::StatusOr<T> fromJson(const Json& json,
                                         UnknownKeys unknown = UnknownKeys::kIgnore) {
    T value{};
    json_detail::Reading reading(unknown);
    json_detail::read(json, value, reading);
    if (reading.failed()) return reading.status();
    return value;
}

/// InvalidArgument also for text that is no JSON, naming the byte, or has a key of an object twice.
[[nodiscard]] absl::StatusOr<Json> parseJson(std::string_view text);

template <class T>
[[nodiscard]] absl::StatusOr<T> fromJsonText(std::string_view text,
                                             UnknownKeys unknown = UnknownKeys::kIgnore) {
    absl::StatusOr<Json> json = parseJson(text);
    if (!json.ok()) return json.status();
    return fromJson<T>(*json, unknown);
}

}  // namespace bulkhead::model
