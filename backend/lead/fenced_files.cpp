// SPDX-License-Identifier: Apache-2.0
#include "backend/lead/fenced_files.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/common/digest.h"

namespace bulkhead::lead {
namespace {

namespace fs = std::filesystem;

class FencedFile final : public AppendFile {
  public:
    FencedFile(std::function<void()> fence, std::unique_ptr<AppendFile> file)
        : fence_(std::move(fence)), file_(std::move(file)) {}
    uint64_t size() const override { return file_->size(); }
    absl::Status append(std::string_view bytes) override { return file_->append(bytes); }
    absl::Status truncate(uint64_t size) override { return file_->truncate(size); }
    absl::Status sync() override {
        absl::Status synced = file_->sync();
        fence_();
        return synced;
    }

  private:
    const std::function<void()> fence_;
    const std::unique_ptr<AppendFile> file_;
};

}  // namespace

absl::Status FencedFiles::makeOwn(const std::string& path) {
    if (!disk_.exists(path)) return absl::OkStatus();
    const std::string copy = path + ".own";
    std::error_code error;
    fs::copy_file(path, copy, fs::copy_options::overwrite_existing, error);
    if (error)
        return absl::UnavailableError(
            absl::StrCat("cannot copy ", path, " to ", copy, ": ", error.message()));
    auto file = disk_.open(copy);
    if (!file.ok()) return file.status();
    if (absl::Status s = (*file)->sync(); !s.ok()) return s;
    if (absl::Status s = rename(copy, path); !s.ok()) return s;
    return syncFolder(folderOf(path));
}

absl::StatusOr<std::unique_ptr<AppendFile>> FencedFiles::open(const std::string& path) {
    {
        const MutexLock lock(mutex_);
        if (!own_.contains(path)) {
            if (absl::Status s = makeOwn(path); !s.ok()) return s;
            own_.insert(path);
        }
    }
    auto file = disk_.open(path);
    if (!file.ok()) return file.status();
    return std::make_unique<FencedFile>(fence_, *std::move(file));
}

absl::Status FencedFiles::rename(const std::string& from, const std::string& to) {
    fence_();
    return disk_.rename(from, to);
}

absl::Status FencedFiles::remove(const std::string& path) {
    fence_();
    return disk_.remove(path);
}

absl::Status FencedFiles::removeFolder(const std::string& path) {
    fence_();
    return disk_.removeFolder(path);
}

absl::Status FencedFiles::syncFolder(const std::string& folder) {
    absl::Status synced = disk_.syncFolder(folder);
    fence_();
    return synced;
}

absl::StatusOr<std::unique_ptr<FileLock>> FencedFiles::lock(const std::string& path) {
    const std::string note = absl::StrCat(stateDir_, "/leaders-locks/", sha256Hex(path));
    auto lock = disk_.lock(path);
    // Nobody but a leader of this state directory has noted it here, and that one leads no more.
    if (absl::IsFailedPrecondition(lock.status()) && disk_.exists(note)) {
        if (absl::Status s = remove(path); !s.ok()) return s;
        lock = disk_.lock(path);
    }
    if (!lock.ok()) return lock;
    if (absl::Status s = disk_.makeFolder(folderOf(note)); !s.ok()) return s;
    if (absl::Status s = writeDurably(*this, note, path + "\n"); !s.ok()) return s;
    return lock;
}

}  // namespace bulkhead::lead
