// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <streambuf>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/unique_fd.h"

namespace bulkhead {

/// AlreadyExists, with the remedy.
absl::Status alreadyThere(const std::string& path);

/// A file that somebody asked for: it is there whole and durable, or what was there before is.
/// Until publish() it has no name, or, on a file system that cannot do that, lies beside its place
/// under another one, which the destructor removes. A link stays one, and the file it names is
/// replaced; what is no file (a pipe, a device) is written to. Errors name the path. Thread:
/// externally serialised.
class OutputFile {
  public:
    /// AlreadyExists when something lies at `path`, unless it is to be replaced.
    [[nodiscard]] static absl::StatusOr<std::unique_ptr<OutputFile>> create(const std::string& path,
                                                                            bool replace);
    ~OutputFile();

    uint64_t size() const { return size_; }
    absl::Status append(std::string_view bytes);
    absl::Status publish();

  private:
    OutputFile(std::string path, std::string beside, bool replace, UniqueFd fd);

    /// Gives it its name beside its place, by `take`, which sets errno.
    absl::Status takeName(const std::function<bool(const char*)>& take);

    const std::string path_;
    std::string beside_;  ///< before its end; empty: what is written is there at once
    const bool replace_;
    UniqueFd fd_;
    uint64_t size_ = 0;
    bool isNamed_ = false;  ///< lies beside its place
};

/// A stream into a file, which goes bad when that cannot be written. Publish the file after a
/// flush.
class OutputStream final : private std::streambuf, public std::ostream {
  public:
    /// `file` outlives it.
    explicit OutputStream(OutputFile& file) : std::ostream(this), file_(file) {}
    /// The first error of the file.
    const absl::Status& status() const { return status_; }

  private:
    using Traits = std::streambuf::traits_type;
    std::streamsize xsputn(const char* bytes, std::streamsize count) override;
    std::streambuf::int_type overflow(std::streambuf::int_type c) override;
    int sync() override;

    OutputFile& file_;
    std::string held_;
    absl::Status status_;
};

/// Tells before long work whether writeWhole() could write there: the folder is there and may be
/// written to, and the path is neither a folder nor too long a name. Leaves nothing behind, and
/// what is there as it is. A disk that becomes full, or a device that takes nothing, shows only
/// later.
absl::Status checkWritable(const std::string& path);

/// Replaces `path` by `content`, whatever was there, as an OutputFile.
absl::Status writeWhole(const std::string& path, std::string_view content);

}  // namespace bulkhead
