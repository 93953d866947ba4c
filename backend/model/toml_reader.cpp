// SPDX-License-Identifier: Apache-2.0
#include "backend/model/toml_reader.h"

#include <algorithm>
#include <sstream>

namespace bulkhead::model {
namespace {

std::string found(const toml::node& node) {
    constexpr size_t kShown = 60;
    if (node.is_table()) return "a table";
    if (node.is_array()) return "an array";
    std::ostringstream out;
    node.visit([&](const auto& value) {
        if constexpr (toml::is_value<decltype(value)>) out << value;
    });
    if (const auto* text = node.as_string())
        return concat("\"", shortened(text->get(), kShown), "\"");
    return shortened(out.str(), kShown);
}

/// Index of the last character of the string that begins at `at`; the end of a line ends one that
/// has no end.
size_t endOfString(std::string_view text, size_t at) {
    const char quote = text[at];
    const std::string three(3, quote);
    const bool isLong = text.substr(at, 3) == three;
    for (size_t i = at + (isLong ? 3 : 1); i < text.size(); ++i) {
        if (quote == '"' && text[i] == '\\') {
            ++i;
        } else if (isLong && text.substr(i, 3) == three) {
            size_t end = i + 2;  // two more may belong to what is quoted
            while (end + 1 < text.size() && text[end + 1] == quote && end < i + 4) ++end;
            return end;
        } else if (!isLong && (text[i] == quote || text[i] == '\n')) {
            return i;
        }
    }
    return text.size();
}

/// "a.b.c" has three.
size_t mostKeyParts(std::string_view text) {
    size_t most = 1, parts = 1;
    for (size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (c == '"' || c == '\'') {
            i = endOfString(text, i);
        } else if (c == '.') {
            most = std::max(most, ++parts);
        } else if (c == '#') {
            i = std::min(text.find('\n', i), text.size());
            parts = 1;
        } else if (std::string_view("\n=,[{").find(c) != std::string_view::npos) {
            parts = 1;
        }
    }
    return most;
}

}  // namespace

absl::Status checkKeys(std::string_view text, std::string_view file) {
    const size_t parts = mostKeyParts(text);
    if (parts <= kMostKeyParts) return absl::OkStatus();
    return absl::InvalidArgumentError(concat(
        file, ": a key has ", parts, " parts with dots between; expected at most ", kMostKeyParts));
}

void TomlReader::enter(std::string_view key, const toml::node& node) {
    const bool isIndex = !key.empty() && key.front() == '[';
    path_.push_back(path_.empty() || isIndex ? std::string(key) : concat(".", key));
    lines_[joined(path_, "")] = node.source().begin.line;
}

void TomlReader::leave() {
    if (!failed()) path_.pop_back();
}

void TomlReader::fail(const toml::node& at, std::string_view expected) {
    failAt(at.source(), concat("expected ", expected, ", found ", found(at)));
}

void TomlReader::failAt(const toml::source_region& at, std::string_view words) {
    if (failed()) return;
    const std::string key = joined(path_, "");
    status_ = absl::InvalidArgumentError(
        printable(concat(file_, ":", at.begin.line, ": ", key, key.empty() ? "" : ": ", words)));
}

void TomlReader::failUnknownKey(std::string_view key, const toml::source_region& at,
                                const std::vector<std::string_view>& known) {
    failAt(at, concat("unknown key \"", shortened(key, 60), "\"", hintFor(key, known)));
}

std::string TomlReader::located(std::string_view problem) const {
    const std::string_view key = problem.substr(0, problem.find(": "));
    const auto line = lines_.find(key);
    return printable(line == lines_.end() ? concat(file_, ": ", problem)
                                          : concat(file_, ":", line->second, ": ", problem));
}

absl::Status parseToml(std::string_view text, std::string_view file, toml::table& out) {
    constexpr size_t kLargest = 1 << 20;
    if (text.size() > kLargest)
        return absl::InvalidArgumentError(
            concat(file, ": larger than 1 MiB; expected a job file, which is a few lines of TOML"));
    if (absl::Status s = checkKeys(text, file); !s.ok()) return s;
    try {
        out = toml::parse(text);
    } catch (const toml::parse_error& e) {
        return absl::InvalidArgumentError(
            printable(concat(file, ":", e.source().begin.line, ": not TOML: ", e.description())));
    }
    return absl::OkStatus();
}

}  // namespace bulkhead::model
