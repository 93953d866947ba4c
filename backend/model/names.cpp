// SPDX-License-Identifier: Apache-2.0
#include "backend/model/names.h"

#include <algorithm>
#include <cstddef>

namespace bulkhead::model {
namespace {

/// '-' and '_' are the same to somebody who types.
std::string folded(std::string_view word) {
    std::string out(word);
    for (char& c : out) {
        if (c == '-') c = '_';
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    }
    return out;
}

size_t editDistance(std::string_view a, std::string_view b) {
    std::vector<size_t> row(b.size() + 1);
    for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= a.size(); ++i) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b.size(); ++j) {
            const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            diagonal = row[j];
            row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
        }
    }
    return row[b.size()];
}

}  // namespace

std::string nearestName(std::string_view word, const std::vector<std::string_view>& candidates) {
    constexpr size_t kLongestWord = 64;  // nobody mistypes that; keeps hostile input cheap
    if (word.empty() || word.size() > kLongestWord) return {};
    const std::string typed = folded(word);
    std::string_view best;
    // Two letters swapped count as two.
    size_t bestDistance = (word.size() <= 3 ? 1 : std::max<size_t>(2, word.size() / 3)) + 1;
    for (std::string_view candidate : candidates) {
        const size_t distance = editDistance(typed, folded(candidate));
        if (distance < bestDistance) {
            bestDistance = distance;
            best = candidate;
        }
    }
    return std::string(best);
}

std::string hintFor(std::string_view word, const std::vector<std::string_view>& candidates) {
    const std::string near = nearestName(word, candidates);
    if (!near.empty()) return concat("; did you mean \"", near, "\"?");
    return concat("; known: ", joined(candidates));
}

std::string shortened(std::string_view text, size_t limit) {
    if (text.size() <= limit) return std::string(text);
    constexpr std::string_view kEllipsis = "\u2026";
    size_t cut = limit > kEllipsis.size() ? limit - kEllipsis.size() : 0;
    while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
    return concat(text.substr(0, cut), kEllipsis);
}

bool isFileName(std::string_view name) {
    constexpr size_t kLongest = 64;
    const auto good = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '.' || c == '_' || c == '-';
    };
    return !name.empty() && name.size() <= kLongest && name.front() != '.' &&
           std::all_of(name.begin(), name.end(), good);
}

namespace {

/// Bytes of the UTF-8 character that `text` begins with and its code point; 0 bytes: none.
std::pair<size_t, char32_t> firstCharacter(std::string_view text) {
    const auto lead = static_cast<unsigned char>(text[0]);
    const size_t size = lead < 0x80    ? 1
                        : lead >= 0xF0 ? 4
                        : lead >= 0xE0 ? 3
                        : lead >= 0xC2 ? 2
                                       : 0;
    if (size == 0 || lead > 0xF4 || text.size() < size) return {0, 0};
    char32_t code = size == 1 ? lead : lead & (0xFFu >> (size + 1));
    for (size_t i = 1; i < size; ++i) {
        const auto next = static_cast<unsigned char>(text[i]);
        if ((next & 0xC0) != 0x80) return {0, 0};
        code = code << 6 | (next & 0x3Fu);
    }
    constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
    const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
    return code < kLeast[size] || surrogate || code > 0x10FFFF ? std::pair<size_t, char32_t>{0, 0}
                                                               : std::pair(size, code);
}

bool givesOrders(char32_t code) {
    return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x61C ||
           (code >= 0x200E && code <= 0x200F) || (code >= 0x2028 && code <= 0x202E) ||
           (code >= 0x2066 && code <= 0x2069);
}

}  // namespace

size_t wholeCharacters(std::string_view text) {
    for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
        const auto byte = static_cast<unsigned char>(text[text.size() - back]);
        if ((byte & 0xC0) == 0x80) continue;
        const size_t size = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
        return size > back ? text.size() - back : text.size();
    }
    return text.size();
}

std::string printable(std::string_view text, bool lines) {
    constexpr char kHex[] = "0123456789abcdef";
    std::string out;
    for (size_t at = 0; at < text.size();) {
        const auto [size, code] = firstCharacter(text.substr(at));
        const bool kept = lines && (code == '\n' || code == '\t') && size == 1;
        if (size > 0 && (kept || !givesOrders(code))) {
            out += text.substr(at, size);
            at += size;
            continue;
        }
        for (size_t i = 0; i < std::max<size_t>(size, 1); ++i, ++at) {
            const auto byte = static_cast<unsigned char>(text[at]);
            out += "\\x";
            out += kHex[byte >> 4];
            out += kHex[byte & 0xF];
        }
    }
    return out;
}

}  // namespace bulkhead::model
