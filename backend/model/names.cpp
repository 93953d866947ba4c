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

}  // namespace bulkhead::model
