// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

/// Conversion of SQLiteCpp's exceptions to statuses: every public function of this folder runs its
/// SQL in one of these.
namespace bulkhead::history {

/// One line: file, cause in plain words, remedy.
[[nodiscard]] absl::Status statusOf(const SQLite::Exception& error, const std::string& file);
/// The same for content that cannot be what was written.
[[nodiscard]] absl::Status damaged(const std::string& file, std::string_view cause);

template <class F>
[[nodiscard]] absl::Status guarded(const std::string& file, F&& work) {
    try {
        return work();
    } catch (const SQLite::Exception& error) {
        return statusOf(error, file);
    }
}

template <class T, class F>
[[nodiscard]] absl::StatusOr<T> guardedValue(const std::string& file, F&& work) {
    try {
        return work();
    } catch (const SQLite::Exception& error) {
        return statusOf(error, file);
    }
}

}  // namespace bulkhead::history
