// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/agent/disk_ballast.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bulkhead::runtime {
namespace {

constexpr uint64_t kLargestBytes = 16ull << 30;

/// Mounts whose filling would take room from others.
constexpr std::array kShared = {"/", "/dev/shm", "/run", "/tmp", "/home", "/var", "/proc", "/boot"};

absl::Status refuse(const std::string& directory, const std::string& why) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the disk of ", directory, " is not filled: ", why,
        "; put the checkpoints on a small file system of their own to try this fault"));
}

}  // namespace

absl::StatusOr<DiskBallast> DiskBallast::fill(const std::string& directory) {
    struct stat target {};
    if (::stat(directory.c_str(), &target) != 0) return refuse(directory, std::strerror(errno));
    for (const char* mount : kShared) {
        struct stat shared {};
        if (::stat(mount, &shared) == 0 && shared.st_dev == target.st_dev)
            return refuse(directory, absl::StrCat("it is on the file system of ", mount));
    }
    struct statvfs room {};
    if (::statvfs(directory.c_str(), &room) != 0) return refuse(directory, std::strerror(errno));
    if (uint64_t{room.f_blocks} * room.f_frsize > kLargestBytes)
        return refuse(directory, "it is larger than 16 GiB and so hardly made for this");

    const std::string path = absl::StrCat(directory, "/.bulkhead-ballast-", ::getpid());
    UniqueFd file(::open(path.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600));
    if (!file.valid()) return refuse(directory, std::strerror(errno));
    ::unlink(path.c_str());
    // Down to the last block: halve the piece each time the rest is too small for it.
    off_t size = 0;
    for (off_t piece = 256 << 20; piece >= 512; piece /= 2) {
        int error = 0;
        while ((error = ::posix_fallocate(file.get(), size, piece)) == 0) size += piece;
        if (error == EINTR)
            piece *= 2;
        else if (error != ENOSPC && error != EFBIG)
            return refuse(directory, std::strerror(error));
    }
    return DiskBallast(std::move(file));
}

}  // namespace bulkhead::runtime
