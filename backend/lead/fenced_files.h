// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>

#include "backend/common/file_system.h"
#include "backend/common/threads.h"

namespace bulkhead::lead {

/// The disk for a controller that leads. Files that leaders before it may have open, because they
/// are stopped and not dead, are made its own: a file is replaced by a copy of itself the first
/// time it is opened for writing, and a lock that a leader of this state directory holds is taken
/// from it. What they write then lies in files that nobody reads. After every write that has to
/// last, the lead is checked before anybody can hear of it, and that the file still has its name:
/// should two ever lead at once, what the one before has told is in the copy. Thread: any.
class FencedFiles final : public FileSystem {
  public:
    struct Fence {
        std::function<void()> check;  ///< does not return to one that leads no more (Lead::check())
        std::function<void(const std::string& why)> end;  ///< does not return (Lead::end())
    };
    /// It notes in `stateDir` which locks leaders have taken.
    FencedFiles(Fence fence, std::string stateDir)
        : fence_(std::move(fence)), stateDir_(std::move(stateDir)) {}

    bool exists(const std::string& path) const override { return disk_.exists(path); }
    absl::StatusOr<std::string> read(const std::string& path) const override {
        return disk_.read(path);
    }
    absl::Status read(const std::string& path, uint64_t offset,
                      std::span<std::byte> to) const override {
        return disk_.read(path, offset, to);
    }
    absl::StatusOr<uint64_t> size(const std::string& path) const override {
        return disk_.size(path);
    }
    std::vector<std::string> list(const std::string& folder) const override {
        return disk_.list(folder);
    }
    absl::StatusOr<std::unique_ptr<AppendFile>> open(const std::string& path) override;
    absl::Status rename(const std::string& from, const std::string& to) override;
    absl::Status remove(const std::string& path) override;
    absl::Status makeFolder(const std::string& path) override { return disk_.makeFolder(path); }
    absl::Status removeFolder(const std::string& path) override;
    absl::Status syncFolder(const std::string& folder) override;
    absl::StatusOr<std::unique_ptr<FileLock>> lock(const std::string& path) override;

  private:
    absl::Status makeOwn(const std::string& path);

    FileSystem& disk_ = diskFiles();
    const Fence fence_;
    const std::string stateDir_;
    Mutex mutex_;
    std::set<std::string> own_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bulkhead::lead
