// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/replica/shm_lease.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace bulkhead::runtime {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kSuffix = ".lease";
constexpr int kAttempts = 50;
constexpr std::chrono::milliseconds kBetweenAttempts{2};

/// Names in `folder` that begin with `start`.
std::vector<std::string> namesFrom(const std::string& folder, const std::string& start) {
    std::vector<std::string> names;
    std::error_code error;
    for (auto it = fs::directory_iterator(folder, error); !error && it != fs::directory_iterator();
         it.increment(error))
        if (std::string name = it->path().filename().string(); name.starts_with(start))
            names.push_back(std::move(name));
    return names;
}

int removeSegments(const std::string& folder, const std::string& prefix) {
    int removed = 0;
    for (const std::string& name : namesFrom(folder, prefix + "."))
        if (!name.ends_with(kSuffix)) removed += ::unlink((folder + "/" + name).c_str()) == 0;
    return removed;
}

}  // namespace

ShmLease::ShmLease(std::string prefix, std::string folder, int fd)
    : prefix_(std::move(prefix)), folder_(std::move(folder)), fd_(fd) {}

absl::StatusOr<std::unique_ptr<ShmLease>> ShmLease::take(const std::string& prefix,
                                                         const std::string& folder) {
    const std::string path = absl::StrCat(folder, "/", prefix, std::string(kSuffix));
    // A sweeper may look at the new file before we lock it, and remove it: then begin again.
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
        const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0)
            return absl::UnavailableError(
                absl::StrCat("shared memory: ", path, ": ", std::strerror(errno)));
        struct stat held {};
        struct stat named {};
        if (::flock(fd, LOCK_EX | LOCK_NB) == 0 && ::fstat(fd, &held) == 0 &&
            ::stat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino)
            return std::unique_ptr<ShmLease>(new ShmLease(prefix, folder, fd));
        ::close(fd);
        std::this_thread::sleep_for(kBetweenAttempts);
    }
    return absl::AlreadyExistsError(
        absl::StrCat("shared memory: ", path, " is held by a living process of this rank"));
}

ShmLease::~ShmLease() {
    removeSegments(folder_, prefix_);
    ::unlink(absl::StrCat(folder_, "/", prefix_, std::string(kSuffix)).c_str());
    ::close(fd_);
}

int ShmLease::sweep(const std::string& family, const std::string& folder) {
    int removed = 0;
    for (const std::string& name : namesFrom(folder, family)) {
        if (!name.ends_with(kSuffix)) continue;
        const std::string path = folder + "/" + name;
        const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
        if (fd < 0) continue;
        if (::flock(fd, LOCK_EX | LOCK_NB) == 0) {
            removed += removeSegments(folder, name.substr(0, name.size() - kSuffix.size()));
            removed += ::unlink(path.c_str()) == 0;
        }
        ::close(fd);
    }
    return removed;
}

}  // namespace bulkhead::runtime
