// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/import/npy.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "backend/model/names.h"
#include "backend/planner/import/refusal.h"

namespace bulkhead::planner {
namespace {

using model::concat;

constexpr size_t kLongestHeader = size_t{64} << 10;

std::optional<Element> elementOf(std::string_view descr) {
    static const std::map<std::string_view, Element> kElements = {
        {"|b1", Element::kBool}, {"|u1", Element::kU8},  {"|i1", Element::kI8},
        {"<u2", Element::kU16},  {"<i2", Element::kI16}, {"<u4", Element::kU32},
        {"<i4", Element::kI32},  {"<u8", Element::kU64}, {"<i8", Element::kI64},
        {"<f4", Element::kF32},  {"<f8", Element::kF64}, {"<u1", Element::kU8},
        {"<i1", Element::kI8},
    };
    const auto found = kElements.find(descr);
    return found == kElements.end() ? std::nullopt : std::optional(found->second);
}

/// Walks the header's dict literal: just the three keys the format has.
class Header {
  public:
    Header(std::string_view text, std::string_view file, size_t start)
        : text_(text), file_(file), start_(start) {}

    absl::Status parse() {
        if (!take('{')) return wrong("a dict");
        while (!take('}')) {
            std::string_view key;
            if (!quoted(key) || !take(':')) return wrong("a quoted key and a colon");
            if (absl::Status ok = value(key); !ok.ok()) return ok;
            if (!take(',')) {
                if (!take('}')) return wrong("a comma or the end of the dict");
                break;
            }
        }
        blanks();
        if (at_ != text_.size()) return wrong("nothing after the dict");
        if (!element_ || !fortran_ || !shaped_)
            return wrong("the keys descr, fortran_order and shape");
        return absl::OkStatus();
    }

    Element element() const { return *element_; }
    bool fortran() const { return *fortran_; }
    const std::vector<uint64_t>& shape() const { return shape_; }

  private:
    absl::Status wrong(std::string_view expected) const {
        return absl::InvalidArgumentError(
            concat(file_, ": byte ", start_ + at_, ": expected ", expected, " in the npy header"));
    }
    void blanks() {
        while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
    }
    bool take(char c) {
        blanks();
        if (at_ >= text_.size() || text_[at_] != c) return false;
        ++at_;
        return true;
    }
    bool word(std::string_view w) {
        blanks();
        if (!text_.substr(at_).starts_with(w)) return false;
        at_ += w.size();
        return true;
    }
    bool quoted(std::string_view& out) {
        blanks();
        if (at_ >= text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) return false;
        const size_t end = text_.find(text_[at_], at_ + 1);
        if (end == std::string_view::npos) return false;
        out = text_.substr(at_ + 1, end - at_ - 1);
        at_ = end + 1;
        return true;
    }
    absl::Status value(std::string_view key) {
        if (key == "descr") {
            std::string_view descr;
            if (!quoted(descr)) return wrong("a plain type (structured arrays are not read)");
            element_ = elementOf(descr);
            return element_ ? absl::OkStatus()
                            : wrong(concat("a little-endian number type, not '", descr, "',"));
        }
        if (key == "fortran_order") {
            if (word("True")) return fortran_ = true, absl::OkStatus();
            if (word("False")) return fortran_ = false, absl::OkStatus();
            return wrong("True or False");
        }
        if (key == "shape") return readShape();
        return wrong("only descr, fortran_order and shape");
    }
    absl::Status readShape() {
        if (shaped_ || !take('(')) return wrong("one shape in parentheses");
        while (!take(')')) {
            blanks();
            uint64_t length = 0;
            const auto [end, error] =
                std::from_chars(text_.data() + at_, text_.data() + text_.size(), length);
            if (error != std::errc()) return wrong("a length, a whole number of 0 or more,");
            if (shape_.size() == kMostDimensions)
                return wrong(concat("at most ", kMostDimensions, " lengths"));
            at_ = static_cast<size_t>(end - text_.data());
            shape_.push_back(length);
            if (!take(',')) {
                if (!take(')')) return wrong("a comma or )");
                break;
            }
        }
        shaped_ = true;
        return absl::OkStatus();
    }

    std::string_view text_, file_;
    size_t start_, at_ = 0;
    std::optional<Element> element_;
    std::optional<bool> fortran_;
    std::vector<uint64_t> shape_;
    bool shaped_ = false;
};

std::vector<uint64_t> columnMajor(std::span<const uint64_t> shape) {
    std::vector<uint64_t> strides(shape.size(), 1);
    for (size_t i = 1; i < shape.size(); ++i) strides[i] = strides[i - 1] * shape[i - 1];
    return strides;
}

}  // namespace

absl::StatusOr<Tensor> parseNpy(std::string_view bytes, std::string_view file) {
    const auto refuse = [&](const auto&... words) {
        return absl::InvalidArgumentError(concat(file, ": ", words...));
    };
    const auto byteAt = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
    if (!bytes.starts_with("\x93NUMPY")) return refuse("byte 0: this is no npy file");
    if (bytes.size() < 12) return refuse("byte ", bytes.size(), ": the npy header is cut off");
    const uint8_t version = byteAt(6);
    if (version < 1 || version > 3)
        return refuse("byte 6: npy version ", int{version}, ", expected 1 to 3");
    const size_t start = version == 1 ? 10 : 12;
    size_t length = byteAt(8) + (size_t{byteAt(9)} << 8);
    if (version > 1) length += (size_t{byteAt(10)} << 16) + (size_t{byteAt(11)} << 24);
    if (length > kLongestHeader || length > bytes.size() - start)
        return refuse("byte 8: an npy header of ", length, " bytes in a file of ", bytes.size());
    Header header(bytes.substr(start, length), file, start);
    if (absl::Status ok = header.parse(); !ok.ok()) return ok;

    const auto data = std::as_bytes(std::span(bytes.substr(start + length)));
    auto tensor = Tensor::packed(header.element(), header.shape(), data);
    if (tensor.ok() && header.fortran())
        tensor =
            Tensor::make(header.element(), header.shape(), columnMajor(header.shape()), 0, data);
    if (!tensor.ok())
        return refuse("byte ", start + length, ": ", std::string(tensor.status().message()));
    return tensor;
}

}  // namespace bulkhead::planner
