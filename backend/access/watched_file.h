// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "backend/common/threads.h"

namespace bulkhead::access {

/// Tells one content of a file from the next, without reading it. Where no file lies it is as made.
struct FileStamp {
    int64_t changedNs = -1;
    int64_t size = 0;
    uint64_t file = 0;
    bool operator==(const FileStamp&) const = default;

    static FileStamp of(const std::string& path) {
        struct stat info {};
        if (::stat(path.c_str(), &info) != 0) return {};
        return {int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec, info.st_size,
                info.st_ino};
    }
};

/// A file that is read again when it changed. While it cannot be used, its content before counts,
/// and the log says why, once. Where no file lies, it is T(). Thread: any.
template <class T>
class WatchedFile {
  public:
    /// The content that counts when the file is removed after it was read.
    enum class WhenRemoved { kNothing, kContentBefore };
    /// NotFound: there is none.
    using Read = std::function<absl::StatusOr<T>(const std::string& path)>;

    /// Fails as `read` does, but for NotFound.
    static absl::StatusOr<std::unique_ptr<WatchedFile>> open(std::string path, WhenRemoved removed,
                                                             Read read) {
        std::unique_ptr<WatchedFile> file(
            new WatchedFile(std::move(path), removed, std::move(read)));
        {
            const MutexLock lock(file->mutex_);
            file->seen_ = FileStamp::of(file->path_);
            if (absl::Status status = file->take(); !status.ok()) return status;
        }
        return file;
    }

    std::shared_ptr<const T> now() {
        const MutexLock lock(mutex_);
        const FileStamp found = FileStamp::of(path_);
        if (found == seen_) return value_;
        const bool removed = found == FileStamp();
        seen_ = found;
        const absl::Status status = take();
        if (status.ok())
            spdlog::log(removed ? spdlog::level::warn : spdlog::level::info, "{} was {}", path_,
                        removed ? "removed; what it said counts no longer" : "read again");
        else
            spdlog::error("{}; what it said before counts", std::string(status.message()));
        return value_;
    }

    const std::string& path() const { return path_; }

  private:
    WatchedFile(std::string path, WhenRemoved removed, Read read)
        : path_(std::move(path)), removed_(removed), read_(std::move(read)) {}

    absl::Status take() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        auto value = read_(path_);
        const bool missing = absl::IsNotFound(value.status());
        if (missing && removed_ == WhenRemoved::kContentBefore && value_ != nullptr)
            return absl::NotFoundError(path_ + ": was removed");
        if (!value.ok() && !missing) return value.status();
        value_ = std::make_shared<const T>(value.ok() ? *std::move(value) : T());
        return absl::OkStatus();
    }

    const std::string path_;
    const WhenRemoved removed_;
    const Read read_;
    Mutex mutex_;
    FileStamp seen_ ABSL_GUARDED_BY(mutex_);
    std::shared_ptr<const T> value_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bulkhead::access
