// SPDX-License-Identifier: Apache-2.0
#include "backend/history/writer_lock.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "backend/history/run_store.h"
#include "backend/model/names.h"

namespace bulkhead::history {
namespace {

namespace fs = std::filesystem;

struct flock byteOf(int64_t runId) {
    struct flock lock {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = runId;
    lock.l_len = 1;
    return lock;
}

fs::path lockFile(const fs::path& file) {
    return fs::path(file.string() + "-writers");
}

}  // namespace

absl::StatusOr<std::unique_ptr<WriterLock>> WriterLock::take(const fs::path& file, int64_t runId) {
    const int fd = ::open(lockFile(file).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return absl::PermissionDeniedError(
            model::concat(lockFile(file).string(), ": cannot be opened (", std::strerror(errno),
                          "); check that the folder may be written"));
    std::unique_ptr<WriterLock> held(new WriterLock(fd));
    struct flock lock = byteOf(runId);
    if (::fcntl(fd, F_OFD_SETLK, &lock) != 0)
        return absl::UnavailableError(model::concat(
            file.string(), ": run ", runId, " is being written by another process; stop it first"));
    return held;
}

absl::Status releaseWriters(const fs::path& file) {
    if (::unlink(lockFile(file).c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
    return absl::UnavailableError(
        model::concat(lockFile(file).string(), ": cannot be removed (", std::strerror(errno), ")"));
}

bool WriterLock::isHeld(const fs::path& file, int64_t runId) {
    const int fd = ::open(lockFile(file).c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return false;
    struct flock lock = byteOf(runId);
    const bool held = ::fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
    ::close(fd);
    return held;
}

WriterLock::~WriterLock() {
    ::close(fd_);
}

}  // namespace bulkhead::history
