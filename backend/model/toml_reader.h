// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "backend/common/fields.h"
#include "backend/model/names.h"
#include "toml++/toml.h"

/// Reads described structs from TOML tables, for files that people write: an unknown key is an
/// error, and every error names file, line, key, what was expected and what stood there.
/// Thread: a value with one owner.
namespace bulkhead::model {

class TomlReader {
  public:
    explicit TomlReader(std::string file) : file_(std::move(file)) {}

    const absl::Status& status() const { return status_; }
    bool failed() const { return !status_.ok(); }

    /// Keys of `table` that are no field of T are errors unless listed in `alsoKnown`.
    template <class T>
    void readTable(const toml::table& table, T& value,
                   const std::vector<std::string_view>& alsoKnown = {}) {
        TableReader reader{*this, table, alsoKnown};
        T::fields(value, reader);
        if (failed()) return;
        for (const auto& [key, node] : table) {
            bool isKnown = false;
            for (std::string_view name : reader.known) isKnown = isKnown || name == key.str();
            if (!isKnown)
                return failUnknownKey(std::string_view(key.str()), key.source(), reader.known);
        }
    }

    /// "file:12: policies.lr: words", from a "key: words" problem, when the key was in the file.
    std::string located(std::string_view problem) const;

    void fail(const toml::node& at, std::string_view expected);
    void failAt(const toml::source_region& at, std::string_view words);

  private:
    struct TableReader {
        TomlReader& reader;
        const toml::table& table;
        std::vector<std::string_view> known;

        template <class T>
        void operator()(std::string_view name, T& value) {
            known.push_back(name);
            const toml::node* node = table.get(name);
            if (!node || reader.failed()) return;
            reader.enter(name, *node);
            reader.read(*node, value);
            reader.leave();
        }
    };

    template <class T>
    void read(const toml::node& node, T& value) {
        if constexpr (std::same_as<T, bool>) {
            if (const auto* flag = node.as_boolean())
                value = flag->get();
            else
                fail(node, "true or false");
        } else if constexpr (std::same_as<T, double>) {
            if (const auto* real = node.as_floating_point())
                value = real->get();
            else if (const auto* whole = node.as_integer())
                value = static_cast<double>(whole->get());
            else
                fail(node, "a number");
        } else if constexpr (FieldScalar<T>) {
            const auto* whole = node.as_integer();
            if (whole && std::in_range<T>(whole->get()))
                value = static_cast<T>(whole->get());
            else
                fail(node,
                     std::is_unsigned_v<T> ? "a whole number of 0 or more" : "a whole number");
        } else if constexpr (std::is_enum_v<T>) {
            const auto* name = node.as_string();
            const auto number = name ? enumFromName<T>(name->get()) : std::nullopt;
            if (number)
                value = *number;
            else
                fail(node, concat("one of ", joined(EnumNames<T>::kNames)));
        } else if constexpr (std::same_as<T, std::string>) {
            const auto* text = node.as_string();
            if (text == nullptr) return fail(node, "a string");
            // The system ends a path there: another one would be checked than is opened.
            if (text->get().find('\0') != std::string::npos)
                return fail(node, "text without a NUL");
            value = text->get();
        } else if constexpr (IsVector<T>::value) {
            readArray(node, value);
        } else if constexpr (IsOptional<T>::value) {
            const auto* word = node.as_string();
            if (word && word->get() == "auto")
                value.reset();
            else if (word)
                fail(node, "a whole number of 0 or more, or \"auto\"");
            else
                read(node, value.emplace());
        } else {
            if (const toml::table* table = node.as_table())
                readTable(*table, value);
            else
                fail(node, "a table");
        }
    }

    template <class T>
    void readArray(const toml::node& node, std::vector<T>& value) {
        const toml::array* array = node.as_array();
        if (!array) return fail(node, "an array");
        value.clear();
        for (size_t i = 0; i < array->size() && !failed(); ++i) {
            enter(concat("[", i, "]"), *array->get(i));
            read(*array->get(i), value.emplace_back());
            leave();
        }
    }

    void enter(std::string_view key, const toml::node& node);
    void leave();
    void failUnknownKey(std::string_view key, const toml::source_region& at,
                        const std::vector<std::string_view>& known);

    std::string file_;
    std::vector<std::string> path_;
    std::map<std::string, uint32_t, std::less<>> lines_;
    absl::Status status_;
};

/// Each part of a key ("a.b.c" has three) is a table in another, and tables are read and freed by
/// recursion: a longer key than any file needs would take the stack of whoever reads it.
constexpr size_t kMostKeyParts = 16;
/// InvalidArgument when a key of this TOML has more.
[[nodiscard]] absl::Status checkKeys(std::string_view text, std::string_view file);

/// The root table; InvalidArgument with file, line and cause when it is no TOML.
[[nodiscard]] absl::Status parseToml(std::string_view text, std::string_view file,
                                     toml::table& out);

}  // namespace bulkhead::model
