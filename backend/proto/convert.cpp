// SPDX-License-Identifier: Apache-2.0
#include "backend/proto/convert.h"

#include <google/protobuf/stubs/common.h>

#include <cstdio>
#include <cstdlib>

#include "backend/model/names.h"

namespace bulkhead::proto::detail {

const FieldDescriptor* fieldNamed(const Message& message, std::string_view name) {
    const FieldDescriptor* f = message.GetDescriptor()->FindFieldByName(std::string(name));
    if (f == nullptr) {
        std::fprintf(stderr, "bulkhead.v1: message %s has no field %.*s\n",
                     message.GetDescriptor()->full_name().c_str(), static_cast<int>(name.size()),
                     name.data());
        std::abort();
    }
    return f;
}

void put(Message& m, const FieldDescriptor* f, bool add, bool value) {
    add ? m.GetReflection()->AddBool(&m, f, value) : m.GetReflection()->SetBool(&m, f, value);
}

void put(Message& m, const FieldDescriptor* f, bool add, int32_t value) {
    add ? m.GetReflection()->AddInt32(&m, f, value) : m.GetReflection()->SetInt32(&m, f, value);
}

void put(Message& m, const FieldDescriptor* f, bool add, int64_t value) {
    add ? m.GetReflection()->AddInt64(&m, f, value) : m.GetReflection()->SetInt64(&m, f, value);
}

void put(Message& m, const FieldDescriptor* f, bool add, uint32_t value) {
    add ? m.GetReflection()->AddUInt32(&m, f, value) : m.GetReflection()->SetUInt32(&m, f, value);
}

void put(Message& m, const FieldDescriptor* f, bool add, uint64_t value) {
    add ? m.GetReflection()->AddUInt64(&m, f, value) : m.GetReflection()->SetUInt64(&m, f, value);
}

void put(Message& m, const FieldDescriptor* f, bool add, double value) {
    add ? m.GetReflection()->AddDouble(&m, f, value) : m.GetReflection()->SetDouble(&m, f, value);
}

/// Protobuf sends text that is no UTF-8, and whoever reads it has the message up to there.
void put(Message& m, const FieldDescriptor* f, bool add, const std::string& value) {
    const bool whole = f->type() == FieldDescriptor::TYPE_BYTES ||
                       google::protobuf::internal::IsStructurallyValidUTF8(
                           value.data(), static_cast<int>(value.size()));
    const std::string text = whole ? value : model::printable(value, /*lines=*/true);
    add ? m.GetReflection()->AddString(&m, f, text) : m.GetReflection()->SetString(&m, f, text);
}

void putEnum(Message& m, const FieldDescriptor* f, bool add, int value) {
    add ? m.GetReflection()->AddEnumValue(&m, f, value)
        : m.GetReflection()->SetEnumValue(&m, f, value);
}

Message& child(Message& m, const FieldDescriptor* f, bool add) {
    return add ? *m.GetReflection()->AddMessage(&m, f) : *m.GetReflection()->MutableMessage(&m, f);
}

void get(const Message& m, const FieldDescriptor* f, int at, bool& value) {
    value =
        at < 0 ? m.GetReflection()->GetBool(m, f) : m.GetReflection()->GetRepeatedBool(m, f, at);
}

void get(const Message& m, const FieldDescriptor* f, int at, int32_t& value) {
    value =
        at < 0 ? m.GetReflection()->GetInt32(m, f) : m.GetReflection()->GetRepeatedInt32(m, f, at);
}

void get(const Message& m, const FieldDescriptor* f, int at, int64_t& value) {
    value =
        at < 0 ? m.GetReflection()->GetInt64(m, f) : m.GetReflection()->GetRepeatedInt64(m, f, at);
}

void get(const Message& m, const FieldDescriptor* f, int at, uint32_t& value) {
    value = at < 0 ? m.GetReflection()->GetUInt32(m, f)
                   : m.GetReflection()->GetRepeatedUInt32(m, f, at);
}

void get(const Message& m, const FieldDescriptor* f, int at, uint64_t& value) {
    value = at < 0 ? m.GetReflection()->GetUInt64(m, f)
                   : m.GetReflection()->GetRepeatedUInt64(m, f, at);
}

void get(const Message& m, const FieldDescriptor* f, int at, double& value) {
    value = at < 0 ? m.GetReflection()->GetDouble(m, f)
                   : m.GetReflection()->GetRepeatedDouble(m, f, at);
}

void get(const Message& m, const FieldDescriptor* f, int at, std::string& value) {
    value = at < 0 ? m.GetReflection()->GetString(m, f)
                   : m.GetReflection()->GetRepeatedString(m, f, at);
}

int getEnum(const Message& m, const FieldDescriptor* f, int at) {
    return at < 0 ? m.GetReflection()->GetEnumValue(m, f)
                  : m.GetReflection()->GetRepeatedEnumValue(m, f, at);
}

const Message& child(const Message& m, const FieldDescriptor* f, int at) {
    return at < 0 ? m.GetReflection()->GetMessage(m, f)
                  : m.GetReflection()->GetRepeatedMessage(m, f, at);
}

int count(const Message& m, const FieldDescriptor* f) {
    return m.GetReflection()->FieldSize(m, f);
}

bool present(const Message& m, const FieldDescriptor* f) {
    return !f->has_presence() || m.GetReflection()->HasField(m, f);
}

const FieldDescriptor* setField(const Message& m, std::string_view oneof) {
    const auto* o = m.GetDescriptor()->FindOneofByName(std::string(oneof));
    return o == nullptr ? nullptr : m.GetReflection()->GetOneofFieldDescriptor(m, o);
}

absl::Status enumOutOfRange(const FieldDescriptor* f, int value) {
    return absl::InvalidArgumentError(f->full_name() + " has the unknown value " +
                                      std::to_string(value) +
                                      "; use one that bulkhead.v1 of this daemon names");
}

absl::Status nothingSet(const Message& m, std::string_view oneof) {
    return absl::InvalidArgumentError(m.GetDescriptor()->full_name() + "." + std::string(oneof) +
                                      " is not set, or is of a type this build does not know");
}

}  // namespace bulkhead::proto::detail
