// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <string>
#include <string_view>
#include <vector>

/// Words for messages: joining them, cutting them, and hints about names a person mistyped.
/// Thread: any.
namespace bulkhead::model {

/// The parts in a row; integers in decimal. (Debian's absl has a string_view of its own, so that
/// absl::StrCat takes no std::string_view.)
template <class... Parts>
[[nodiscard]] std::string concat(const Parts&... parts) {
    std::string out;
    const auto add = [&out]<class Part>(const Part& part) {
        if constexpr (std::integral<Part>)
            out += std::to_string(part);
        else
            out += std::string_view(part);
    };
    (add(parts), ...);
    return out;
}

/// "a, b, c"
template <class Words>
[[nodiscard]] std::string joined(const Words& words, std::string_view separator = ", ") {
    std::string out;
    for (const auto& word : words) {
        if (!out.empty()) out += separator;
        out += word;
    }
    return out;
}

/// The candidate nearest to `word` by edit distance; empty when none is near enough to be meant.
[[nodiscard]] std::string nearestName(std::string_view word,
                                      const std::vector<std::string_view>& candidates);

/// "; did you mean \"replicas\"?" when one is near, else "; known: a, b, c".
[[nodiscard]] std::string hintFor(std::string_view word,
                                  const std::vector<std::string_view>& candidates);

/// At most `limit` bytes of it, cut between UTF-8 characters, with an ellipsis where it was cut.
[[nodiscard]] std::string shortened(std::string_view text, size_t limit);

/// Shows control characters, those that change the direction of text, and bytes that are no UTF-8
/// as "\\x1b": a terminal takes them as orders. Newlines and tabs too, unless `lines`.
[[nodiscard]] std::string printable(std::string_view text, bool lines = false);

/// Bytes of `text` without a UTF-8 character that is cut off at its end.
[[nodiscard]] size_t wholeCharacters(std::string_view text);

/// True for a name that becomes part of a path and of messages: kFileNameRule, and no dot in front.
[[nodiscard]] bool isFileName(std::string_view name);
constexpr std::string_view kFileNameRule = "up to 64 letters, digits, dots, dashes or underscores";

}  // namespace bulkhead::model
