// SPDX-License-Identifier: Apache-2.0
#include "backend/model/toml_reader.h"

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

}  // namespace

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
    try {
        out = toml::parse(text);
    } catch (const toml::parse_error& e) {
        return absl::InvalidArgumentError(
            printable(concat(file, ":", e.source().begin.line, ": not TOML: ", e.description())));
    }
    return absl::OkStatus();
}

}  // namespace bulkhead::model
