// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/import/tensor.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "backend/model/names.h"

namespace bulkhead::planner {
namespace {

using model::concat;

/// a * b, or nothing on overflow.
bool times(uint64_t a, uint64_t b, uint64_t& out) {
    return !__builtin_mul_overflow(a, b, &out);
}

template <class T>
void copyOut(const std::byte* from, uint64_t stride, std::span<int64_t> out) {
    for (size_t i = 0; i < out.size(); ++i) {
        T value;
        std::memcpy(&value, from + i * stride * sizeof(T), sizeof(T));
        if constexpr (std::is_same_v<T, uint64_t>)
            out[i] = static_cast<int64_t>(
                std::min<uint64_t>(value, std::numeric_limits<int64_t>::max()));
        else
            out[i] = static_cast<int64_t>(value);
    }
}

void copyRun(Element element, const std::byte* from, uint64_t stride, std::span<int64_t> out) {
    switch (element) {
        case Element::kU8:
            return copyOut<uint8_t>(from, stride, out);
        case Element::kI8:
            return copyOut<int8_t>(from, stride, out);
        case Element::kU16:
            return copyOut<uint16_t>(from, stride, out);
        case Element::kI16:
            return copyOut<int16_t>(from, stride, out);
        case Element::kU32:
            return copyOut<uint32_t>(from, stride, out);
        case Element::kI32:
            return copyOut<int32_t>(from, stride, out);
        case Element::kU64:
            return copyOut<uint64_t>(from, stride, out);
        case Element::kI64:
            return copyOut<int64_t>(from, stride, out);
        case Element::kBool:
        case Element::kF32:
        case Element::kF64:
            break;
    }
    std::fill(out.begin(), out.end(), 0);
}

}  // namespace

uint64_t bytesOf(Element element) {
    switch (element) {
        case Element::kBool:
        case Element::kU8:
        case Element::kI8:
            return 1;
        case Element::kU16:
        case Element::kI16:
            return 2;
        case Element::kU32:
        case Element::kI32:
        case Element::kF32:
            return 4;
        case Element::kU64:
        case Element::kI64:
        case Element::kF64:
            break;
    }
    return 8;
}

std::string_view nameOf(Element element) {
    constexpr std::string_view kNames[] = {"bool",  "uint8",   "int8",   "uint16",
                                           "int16", "uint32",  "int32",  "uint64",
                                           "int64", "float32", "float64"};
    return kNames[static_cast<size_t>(element)];
}

bool isInteger(Element element) {
    return element != Element::kBool && element != Element::kF32 && element != Element::kF64;
}

std::vector<uint64_t> rowMajor(std::span<const uint64_t> shape) {
    std::vector<uint64_t> strides(shape.size(), 1);
    for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
    return strides;
}

absl::StatusOr<Tensor> Tensor::make(Element element, std::vector<uint64_t> shape,
                                    std::vector<uint64_t> strides, uint64_t offset,
                                    std::span<const std::byte> bytes) {
    const uint64_t held = bytes.size() / bytesOf(element);
    Tensor out;
    out.element_ = element;
    out.shape_ = std::move(shape);
    out.strides_ = std::move(strides);
    out.offset_ = offset;
    out.bytes_ = bytes;
    if (out.strides_.size() != out.shape_.size())
        return absl::InvalidArgumentError(
            concat(out.shape_.size(), " dimensions with ", out.strides_.size(), " strides"));
    const auto outside = [&] {
        return absl::InvalidArgumentError(concat("a tensor ", out.text(), " does not fit into the ",
                                                 bytes.size(), " bytes it is said to lie in"));
    };
    // A zero anywhere makes it empty; the other lengths must still multiply to a sane number.
    bool empty = false;
    uint64_t last = offset, elements = 1;
    for (size_t i = 0; i < out.shape_.size(); ++i) {
        const uint64_t length = out.shape_[i];
        empty = empty || length == 0;
        if (!times(elements, std::max<uint64_t>(length, 1), elements)) return outside();
        uint64_t reach = 0;
        if (length > 0 && !times(length - 1, out.strides_[i], reach)) return outside();
        if (__builtin_add_overflow(last, reach, &last)) return outside();
    }
    out.size_ = empty ? 0 : elements;
    if (out.size_ > 0 && (out.size_ > held || last >= held)) return outside();
    return out;
}

absl::StatusOr<Tensor> Tensor::packed(Element element, std::vector<uint64_t> shape,
                                      std::span<const std::byte> bytes) {
    std::vector<uint64_t> strides = rowMajor(shape);
    auto out = make(element, std::move(shape), std::move(strides), 0, bytes);
    if (out.ok() && out->size_ * bytesOf(element) != bytes.size())
        return absl::InvalidArgumentError(concat("a tensor ", out->text(), " has ",
                                                 out->size_ * bytesOf(element), " bytes, found ",
                                                 bytes.size()));
    return out;
}

uint64_t Tensor::place(uint64_t linear) const {
    uint64_t at = offset_;
    for (size_t i = shape_.size(); i-- > 0;) {
        at += (linear % shape_[i]) * strides_[i];
        linear /= shape_[i];
    }
    return at;
}

void Tensor::integers(uint64_t first, std::span<int64_t> out) const {
    const uint64_t inner = shape_.empty() ? 1 : shape_.back();
    const uint64_t stride = shape_.empty() ? 1 : strides_.back();
    for (size_t done = 0; done < out.size();) {
        const uint64_t at = first + done;
        const auto run =
            static_cast<size_t>(std::min<uint64_t>(inner - at % inner, out.size() - done));
        copyRun(element_, bytes_.data() + place(at) * bytesOf(element_), stride,
                out.subspan(done, run));
        done += run;
    }
}

Tensor Tensor::operator[](uint64_t i) const {
    Tensor out = *this;
    out.offset_ += i * strides_[0];
    out.shape_.erase(out.shape_.begin());
    out.strides_.erase(out.strides_.begin());
    out.size_ = shape_[0] == 0 ? 0 : size_ / shape_[0];
    return out;
}

std::string Tensor::text() const {
    std::string out = concat(nameOf(element_), " [");
    for (size_t i = 0; i < shape_.size(); ++i) out += concat(i > 0 ? ", " : "", shape_[i]);
    return out + "]";
}

}  // namespace bulkhead::planner
