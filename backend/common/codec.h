// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/fields.h"

/// Binary form of described structs, for the control channel and the commit log: fields in their
/// declared order, integers little-endian of fixed width, strings and vectors behind a uint32
/// count, an enum as uint32, an optional behind one byte, a variant behind its uint32 index.
/// It carries no names: both ends must run the same protocol version, which the handshake checks.
/// Thread: stateless, any.
namespace bulkhead {

class Encoder {
  public:
    template <class T>
    void operator()(std::string_view, const T& value) {
        put(value);
    }

    template <class T>
    void put(const T& value) {
        if constexpr (std::same_as<T, bool>) {
            out_.push_back(value ? '\1' : '\0');
        } else if constexpr (FieldScalar<T>) {
            char raw[sizeof(T)];
            std::memcpy(raw, &value, sizeof(T));
            out_.append(raw, sizeof(T));
        } else if constexpr (std::is_enum_v<T>) {
            put(static_cast<uint32_t>(value));
        } else if constexpr (std::same_as<T, std::string>) {
            put(static_cast<uint32_t>(value.size()));
            out_ += value;
        } else if constexpr (IsVector<T>::value) {
            put(static_cast<uint32_t>(value.size()));
            for (const auto& item : value) put(item);
        } else if constexpr (IsOptional<T>::value) {
            put(value.has_value());
            if (value) put(*value);
        } else if constexpr (IsVariant<T>::value) {
            put(static_cast<uint32_t>(value.index()));
            std::visit([this](const auto& alternative) { put(alternative); }, value);
        } else {
            T::fields(value, *this);
        }
    }

    std::string take() && { return std::move(out_); }

  private:
    std::string out_;
};

/// Reads hostile bytes: never past the end, never allocates more than the input could hold.
class Decoder {
  public:
    /// `mayEndEarly`: for what is stored. The input may end before a field, which then keeps its
    /// default: it was appended to the struct after those bytes were written.
    explicit Decoder(std::string_view in, bool mayEndEarly = false)
        : in_(in), mayEndEarly_(mayEndEarly) {}

    template <class T>
    void operator()(std::string_view, T& value) {
        if (mayEndEarly_ && at_ == in_.size()) return;
        get(value);
    }

    template <class T>
    void get(T& value) {
        if (failed_) return;
        if constexpr (std::same_as<T, bool>) {
            const std::string_view raw = bytes(1);
            if (failed_) return;
            if (static_cast<unsigned char>(raw[0]) > 1) return fail("a bool is neither 0 nor 1");
            value = raw[0] != 0;
        } else if constexpr (FieldScalar<T>) {
            const std::string_view raw = bytes(sizeof(T));
            if (!failed_) std::memcpy(&value, raw.data(), sizeof(T));
        } else if constexpr (std::is_enum_v<T>) {
            uint32_t number = 0;
            get(number);
            if (failed_) return;
            if (number >= EnumNames<T>::kNames.size()) return fail("an enum is out of range");
            value = static_cast<T>(number);
        } else if constexpr (std::same_as<T, std::string>) {
            uint32_t size = 0;
            get(size);
            value = std::string(bytes(size));
        } else if constexpr (IsVector<T>::value) {
            uint32_t count = 0;
            get(count);
            if (failed_) return;
            if (count > in_.size() - at_) return fail("a vector is longer than the message");
            value.clear();
            value.reserve(std::min<size_t>(count, (in_.size() - at_) / sizeof(value[0])));
            for (uint32_t i = 0; i < count && !failed_; ++i) get(value.emplace_back());
        } else if constexpr (IsOptional<T>::value) {
            bool present = false;
            get(present);
            if (failed_) return;
            value.reset();
            if (present) get(value.emplace());
        } else if constexpr (IsVariant<T>::value) {
            uint32_t index = 0;
            get(index);
            if (failed_) return;
            if (!withAlternative<T>(index, [&]<size_t I>() { get(value.template emplace<I>()); }))
                fail("a message type is unknown");
        } else {
            T::fields(value, *this);
        }
    }

    /// OK when every byte was used and nothing was out of bounds.
    absl::Status finish() const {
        if (failed_)
            return absl::InvalidArgumentError(std::string("malformed message at byte ") +
                                              std::to_string(at_) + ": " + why_);
        if (at_ != in_.size()) return absl::InvalidArgumentError("bytes left after the message");
        return absl::OkStatus();
    }

  private:
    std::string_view bytes(size_t n) {
        if (failed_ || n > in_.size() - at_) {
            fail("it ends too early");
            return {};
        }
        at_ += n;
        return in_.substr(at_ - n, n);
    }
    void fail(const char* why) {
        if (failed_) return;
        failed_ = true;
        why_ = why;
    }

    std::string_view in_;
    bool mayEndEarly_;
    size_t at_ = 0;
    bool failed_ = false;
    const char* why_ = "";
};

template <class T>
[[nodiscard]] std::string encode(const T& value) {
    Encoder e;
    e.put(value);
    return std::move(e).take();
}

/// InvalidArgument naming the byte when the input is truncated, too long or out of range.
template <class T>
[[nodiscard]] absl::StatusOr<T> decode(std::string_view bytes) {
    T value{};
    Decoder d(bytes);
    d.get(value);
    if (absl::Status s = d.finish(); !s.ok()) return s;
    return value;
}

}  // namespace bulkhead
