// SPDX-License-Identifier: Apache-2.0
#include "backend/history/written_json.h"

#include <simdjson.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "backend/common/fields.h"

namespace bulkhead::history {
namespace {

using simdjson::dom::element;

template <class T>
bool read(const element& from, T& value);

/// The members of an object, each of which must be read, and once: whatever they are, no key is
/// unknown or there twice.
class Members {
  public:
    explicit Members(const simdjson::dom::object& from) {
        for (const auto& [key, value] : from) members_.push_back({key, value});
    }
    /// The search begins where the member stood in the object before: `places` has a place for each
    /// field of a struct, in the order of its list.
    const element* find(std::string_view name, std::vector<size_t>& places) {
        if (at_ == places.size()) places.push_back(0);
        size_t& place = places[at_++];
        if (place >= members_.size() || members_[place].key != name)
            for (place = 0; place < members_.size() && members_[place].key != name;) ++place;
        return place < members_.size() ? &members_[place].value : nullptr;
    }
    size_t size() const { return members_.size(); }

  private:
    struct Member {
        std::string_view key;
        element value;
    };
    absl::InlinedVector<Member, 16> members_;
    size_t at_ = 0;
};

struct FieldReader {
    Members members;
    std::vector<size_t>& places;
    size_t read = 0;
    bool good = true;

    template <class T>
    void operator()(std::string_view name, T& value) {
        const element* from = members.find(name, places);
        if (!good || from == nullptr) return;
        ++read;
        good = history::read(*from, value);
    }
};

template <class T>
bool readObject(const simdjson::dom::object& from, T& value, size_t otherKeys = 0) {
    static thread_local std::vector<size_t> places;
    FieldReader reader{Members(from), places};
    T::fields(value, reader);
    return reader.good && reader.read + otherKeys == reader.members.size();
}

template <class Variant>
bool readVariant(const simdjson::dom::object& from, Variant& value) {
    std::string_view type;
    if (from["type"].get(type) != simdjson::SUCCESS) return false;
    return [&]<size_t... I>(std::index_sequence<I...>) {
        bool good = false;
        (void)((std::variant_alternative_t<I, Variant>::kType == type &&
                (good = readObject(from, value.template emplace<I>(), 1), true)) ||
               ...);
        return good;
    }
    (std::make_index_sequence<std::variant_size_v<Variant>>());
}

template <class T>
bool read(const element& from, T& value) {
    if constexpr (FieldScalar<T> && sizeof(T) == 4) {
        std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t> wide = 0;
        if (from.get(wide) != simdjson::SUCCESS || !std::in_range<T>(wide)) return false;
        value = static_cast<T>(wide);
        return true;
    } else if constexpr (FieldScalar<T>) {
        return from.get(value) == simdjson::SUCCESS;
    } else if constexpr (std::same_as<T, std::string>) {
        std::string_view text;
        if (from.get(text) != simdjson::SUCCESS) return false;
        value = text;
        return true;
    } else if constexpr (std::is_enum_v<T>) {
        std::string_view name;
        if (from.get(name) != simdjson::SUCCESS) return false;
        const auto known = enumFromName<T>(name);
        if (known) value = *known;
        return known.has_value();
    } else if constexpr (IsVector<T>::value) {
        simdjson::dom::array array;
        if (from.get(array) != simdjson::SUCCESS) return false;
        value.clear();
        value.reserve(array.size());
        for (const element item : array)
            if (!read(item, value.emplace_back())) return false;
        return true;
    } else if constexpr (IsOptional<T>::value) {
        return read(from, value.emplace());
    } else {
        simdjson::dom::object object;
        if (from.get(object) != simdjson::SUCCESS) return false;
        if constexpr (IsVariant<T>::value)
            return readVariant(object, value);
        else
            return readObject(object, value);
    }
}

}  // namespace

std::optional<model::EventBody> bodyAsWritten(std::string& json) {
    // The parser keeps several times as many bytes as the largest text it has read.
    constexpr size_t kMostBytes = 64u << 20;
    static thread_local simdjson::dom::parser parser(kMostBytes);
    json.reserve(json.size() + simdjson::SIMDJSON_PADDING);
    element whole;
    if (parser.parse(json).get(whole) != simdjson::SUCCESS) return std::nullopt;
    std::optional<model::EventBody> body(std::in_place);
    if (!read(whole, *body)) body.reset();
    return body;
}

}  // namespace bulkhead::history
