// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/unique_fd.h"

namespace bulkhead::interchange {

/// AlreadyExists, with the remedy.
absl::Status alreadyThere(const std::string& path);

/// A file that somebody asked for: it is there whole and durable, or not at all. Until publish() it
/// lies beside its place under another name, which the destructor removes. Errors name the path.
/// Thread: externally serialised.
class OutputFile {
  public:
    /// AlreadyExists when something lies at `path`, unless it is to be replaced.
    [[nodiscard]] static absl::StatusOr<std::unique_ptr<OutputFile>> create(std::string path,
                                                                            bool replace);
    ~OutputFile();

    uint64_t size() const { return size_; }
    absl::Status append(std::string_view bytes);
    absl::Status publish();

  private:
    OutputFile(std::string path, std::string beside, bool replace, UniqueFd fd);

    const std::string path_, beside_;
    const bool replace_;
    UniqueFd fd_;
    uint64_t size_ = 0;
    bool published_ = false;
};

}  // namespace bulkhead::interchange
