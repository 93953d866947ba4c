// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace bulkhead::planner {

/// Kinds of numbers found in npy, torch and safetensors files.
enum class Element { kBool, kU8, kI8, kU16, kI16, kU32, kI32, kU64, kI64, kF32, kF64 };

[[nodiscard]] uint64_t bytesOf(Element element);
[[nodiscard]] std::string_view nameOf(Element element);
[[nodiscard]] bool isInteger(Element element);  ///< bool is not

/// Numbers inside a file's bytes, little-endian, which it points to and must not outlive. Checked
/// once, when made; reading cannot leave the bytes. Thread: a value.
class Tensor {
  public:
    Tensor() = default;

    /// Strides and offset in elements, `strides` as long as `shape`. InvalidArgument when an
    /// element would lie outside `bytes`, or when there are more elements than `bytes` can hold
    /// (an expanded tensor), so that nobody is made to allocate what the file does not contain.
    [[nodiscard]] static absl::StatusOr<Tensor> make(Element element, std::vector<uint64_t> shape,
                                                     std::vector<uint64_t> strides, uint64_t offset,
                                                     std::span<const std::byte> bytes);

    /// Row by row without gaps; `bytes` must be just so long.
    [[nodiscard]] static absl::StatusOr<Tensor> packed(Element element, std::vector<uint64_t> shape,
                                                       std::span<const std::byte> bytes);

    Element element() const { return element_; }
    const std::vector<uint64_t>& shape() const { return shape_; }
    uint64_t size() const { return size_; }

    /// Elements [first, first + out.size()) in row-major order, as integers; those of an unsigned
    /// 64-bit tensor above 2^63 - 1 become 2^63 - 1. Only for isInteger(element()).
    void integers(uint64_t first, std::span<int64_t> out) const;

    /// The tensor of index `i` of the first axis. `shape()` is not empty and i < shape()[0].
    Tensor operator[](uint64_t i) const;

    /// "int32 [8, 26, 64]"
    std::string text() const;

  private:
    uint64_t place(uint64_t linear) const;

    Element element_ = Element::kU8;
    std::vector<uint64_t> shape_;
    std::vector<uint64_t> strides_;
    uint64_t offset_ = 0;
    uint64_t size_ = 1;
    std::span<const std::byte> bytes_;
};

/// Row-major strides of a shape. Any overflow wraps; Tensor::make refuses such shapes.
[[nodiscard]] std::vector<uint64_t> rowMajor(std::span<const uint64_t> shape);

}  // namespace bulkhead::planner
