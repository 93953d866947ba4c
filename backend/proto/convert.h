// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/fields.h"

/// Described structs to messages of the same field names and back, by reflection. Enums travel by
/// number; a variant is a oneof of its name whose fields are the alternatives' kType names; a field
/// with presence that is not set leaves the struct's default in place.
///
/// The pairing of a struct with a message is checked by rpc_convert_test over every field. A field
/// the message does not have ends the program: that is a defect of the build, not of the input.
/// Thread: stateless, any.
namespace bulkhead::proto {

namespace detail {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

/// The field of that name; ends the program when there is none.
const FieldDescriptor* fieldNamed(const Message& message, std::string_view name);

// One call for each kind, singular; `add` appends to a repeated field instead.
void put(Message& m, const FieldDescriptor* f, bool add, bool value);
void put(Message& m, const FieldDescriptor* f, bool add, int32_t value);
void put(Message& m, const FieldDescriptor* f, bool add, int64_t value);
void put(Message& m, const FieldDescriptor* f, bool add, uint32_t value);
void put(Message& m, const FieldDescriptor* f, bool add, uint64_t value);
void put(Message& m, const FieldDescriptor* f, bool add, double value);
void put(Message& m, const FieldDescriptor* f, bool add, const std::string& value);
void putEnum(Message& m, const FieldDescriptor* f, bool add, int value);
Message& child(Message& m, const FieldDescriptor* f, bool add);

// `at` -1: singular.
void get(const Message& m, const FieldDescriptor* f, int at, bool& value);
void get(const Message& m, const FieldDescriptor* f, int at, int32_t& value);
void get(const Message& m, const FieldDescriptor* f, int at, int64_t& value);
void get(const Message& m, const FieldDescriptor* f, int at, uint32_t& value);
void get(const Message& m, const FieldDescriptor* f, int at, uint64_t& value);
void get(const Message& m, const FieldDescriptor* f, int at, double& value);
void get(const Message& m, const FieldDescriptor* f, int at, std::string& value);
int getEnum(const Message& m, const FieldDescriptor* f, int at);
const Message& child(const Message& m, const FieldDescriptor* f, int at);
/// Elements of a repeated field.
int count(const Message& m, const FieldDescriptor* f);
/// False only for a field with presence that is not set.
bool present(const Message& m, const FieldDescriptor* f);
/// The set field of the oneof of that name, or nullptr.
const FieldDescriptor* setField(const Message& m, std::string_view oneof);

absl::Status enumOutOfRange(const FieldDescriptor* f, int value);
absl::Status nothingSet(const Message& m, std::string_view oneof);

class Writer {
  public:
    explicit Writer(Message& message) : message_(message) {}

    template <class T>
    void operator()(std::string_view name, const T& value) {
        if constexpr (IsVariant<T>::value) {
            std::visit(
                [this](const auto& alternative) {
                    using A = std::remove_cvref_t<decltype(alternative)>;
                    one(fieldNamed(message_, A::kType), false, alternative);
                },
                value);
        } else if constexpr (IsOptional<T>::value) {
            if (value) one(fieldNamed(message_, name), false, *value);
        } else if constexpr (IsVector<T>::value) {
            const FieldDescriptor* f = fieldNamed(message_, name);
            for (const auto& item : value) one(f, true, item);
        } else {
            one(fieldNamed(message_, name), false, value);
        }
    }

  private:
    template <class T>
    void one(const FieldDescriptor* f, bool add, const T& value) {
        if constexpr (std::is_enum_v<T>) {
            putEnum(message_, f, add, static_cast<int>(value));
        } else if constexpr (FieldScalar<T> || std::same_as<T, std::string>) {
            put(message_, f, add, value);
        } else {
            Writer inner(child(message_, f, add));
            T::fields(value, inner);
        }
    }

    Message& message_;
};

class Reader {
  public:
    Reader(const Message& message, absl::Status& status) : message_(message), status_(status) {}

    template <class T>
    void operator()(std::string_view name, T& value) {
        if (!status_.ok()) return;
        if constexpr (IsVariant<T>::value) {
            const FieldDescriptor* f = setField(message_, name);
            if (f == nullptr) {
                status_ = nothingSet(message_, name);
                return;
            }
            alternative(f, value, std::make_index_sequence<std::variant_size_v<T>>());
        } else if constexpr (IsVector<T>::value) {
            const FieldDescriptor* f = fieldNamed(message_, name);
            const int n = count(message_, f);
            value.clear();
            value.reserve(static_cast<size_t>(n));
            for (int i = 0; i < n && status_.ok(); ++i) one(f, i, value.emplace_back());
        } else {
            const FieldDescriptor* f = fieldNamed(message_, name);
            if (!present(message_, f)) return;
            if constexpr (IsOptional<T>::value)
                one(f, -1, value.emplace());
            else
                one(f, -1, value);
        }
    }

  private:
    template <class V, size_t... I>
    void alternative(const FieldDescriptor* f, V& value, std::index_sequence<I...>) {
        (void)((f->name() == std::variant_alternative_t<I, V>::kType &&
                (one(f, -1, value.template emplace<I>()), true)) ||
               ...);
    }

    template <class T>
    void one(const FieldDescriptor* f, int at, T& value) {
        if constexpr (std::is_enum_v<T>) {
            const int number = getEnum(message_, f, at);
            if (number < 0 || static_cast<size_t>(number) >= EnumNames<T>::kNames.size())
                status_ = enumOutOfRange(f, number);
            else
                value = static_cast<T>(number);
        } else if constexpr (FieldScalar<T> || std::same_as<T, std::string>) {
            get(message_, f, at, value);
        } else {
            Reader inner(child(message_, f, at), status_);
            T::fields(value, inner);
        }
    }

    const Message& message_;
    absl::Status& status_;
};

}  // namespace detail

/// Fills `message`, which must be empty.
template <Described T>
void toMessage(const T& value, google::protobuf::Message& message) {
    detail::Writer writer(message);
    T::fields(value, writer);
}

/// InvalidArgument naming the field when an enum is out of range or a oneof is empty.
template <Described T>
[[nodiscard]] absl::StatusOr<T> fromMessage(const google::protobuf::Message& message) {
    T value{};
    absl::Status status;
    detail::Reader reader(message, status);
    T::fields(value, reader);
    if (!status.ok()) return status;
    return value;
}

}  // namespace bulkhead::proto
