// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace bulkhead::planner {

using Json = nlohmann::json;

/// JSON text of a file; InvalidArgument naming the file and the byte.
[[nodiscard]] absl::StatusOr<Json> parseJsonFile(std::string_view text, std::string_view file);

/// Reads fields of JSON objects and keeps the first refusal, so that a reader can take all it needs
/// and look at status() once: values after a refusal are zeros, empty strings and nulls.
class JsonFields {
  public:
    explicit JsonFields(std::string_view file) : file_(file) {}

    const absl::Status& status() const { return status_; }
    bool ok() const { return status_.ok(); }

    /// A whole number from `least` to `most`. `path` is the object's place ("domains.law", or "").
    uint64_t count(const Json& object, std::string_view key, std::string_view path, uint64_t least,
                   uint64_t most);
    std::string text(const Json& object, std::string_view key, std::string_view path);
    /// A member that must be there and be an array, or an object; null after a refusal.
    const Json& array(const Json& object, std::string_view key, std::string_view path);
    const Json& object(const Json& object, std::string_view key, std::string_view path);

    /// A value that stands alone, e.g. an array's item.
    uint64_t countOf(const Json& value, std::string_view path, uint64_t least, uint64_t most);

    /// "FILE: PATH: expected WHAT, found ..."
    void refuse(std::string_view path, std::string_view expected, const Json* found);

  private:
    const Json& member(const Json& object, std::string_view key, std::string_view path,
                       std::string_view expected);
    std::string file_;
    absl::Status status_;
};

/// Returns whether an object has a member that is not null.
[[nodiscard]] bool has(const Json& object, std::string_view key);

/// "a.b", or "b" when path is empty.
[[nodiscard]] std::string joined(std::string_view path, std::string_view key);

}  // namespace bulkhead::planner
