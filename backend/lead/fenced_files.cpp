// SPDX-License-Identifier: Apache-2.0
#include "backend/lead/fenced_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/common/digest.h"
#include "backend/common/unique_fd.h"

namespace bulkhead::lead {
namespace {

class FencedFile final : public AppendFile {
  public:
    FencedFile(FencedFiles::Fence fence, std::string path, std::unique_ptr<AppendFile> file)
        : fence_(std::move(fence)), path_(std::move(path)), file_(std::move(file)) {}
    uint64_t size() const override { return file_->size(); }
    absl::Status append(std::string_view bytes) override { return file_->append(bytes); }
    absl::Status truncate(uint64_t size) override { return file_->truncate(size); }
    absl::Status sync() override {
        absl::Status synced = file_->sync();
        fence_.check();
        if (!file_->stands()) fence_.end(path_ + " is another controller's now");
        return synced;
    }

  private:
    const FencedFiles::Fence fence_;
    const std::string path_;
    const std::unique_ptr<AppendFile> file_;
};

absl::StatusOr<std::string> readFrom(int fd, uint64_t offset, const std::string& path) {
    std::string bytes;
    std::string piece(size_t{1} << 20, '\0');
    while (true) {
        const ssize_t n =
            ::pread(fd, piece.data(), piece.size(), static_cast<off_t>(offset + bytes.size()));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return absl::UnavailableError(
                absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
        if (n == 0) return bytes;
        bytes.append(piece, 0, static_cast<size_t>(n));
    }
}

}  // namespace

/// One that still leads has told of what it appended only if the file had its name after that. So
/// what was appended until the name was taken belongs to the copy.
absl::Status FencedFiles::makeOwn(const std::string& path) {
    const UniqueFd before(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!before.valid() && errno == ENOENT) return absl::OkStatus();
    if (!before.valid())
        return absl::UnavailableError(
            absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
    const std::string copy = path + ".own";
    auto file = disk_.open(copy);
    if (!file.ok()) return file.status();
    const auto append = [&](absl::StatusOr<std::string> bytes) {
        absl::Status done = bytes.status();
        if (done.ok() && !bytes->empty()) done = (*file)->append(*bytes);
        if (done.ok()) done = (*file)->sync();
        return done;
    };
    absl::Status done = (*file)->truncate(0);
    if (done.ok()) done = append(readFrom(before.get(), 0, path));
    if (done.ok()) done = rename(copy, path);
    if (done.ok()) done = append(readFrom(before.get(), (*file)->size(), path));
    if (done.ok()) done = syncFolder(folderOf(path));
    return done;
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
    return std::make_unique<FencedFile>(fence_, path, *std::move(file));
}

absl::Status FencedFiles::rename(const std::string& from, const std::string& to) {
    fence_.check();
    return disk_.rename(from, to);
}

absl::Status FencedFiles::remove(const std::string& path) {
    fence_.check();
    return disk_.remove(path);
}

absl::Status FencedFiles::removeFolder(const std::string& path) {
    fence_.check();
    return disk_.removeFolder(path);
}

absl::Status FencedFiles::syncFolder(const std::string& folder) {
    absl::Status synced = disk_.syncFolder(folder);
    fence_.check();
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
