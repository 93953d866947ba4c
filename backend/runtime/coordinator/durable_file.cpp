// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/durable_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace bulkhead::runtime {

absl::Status systemError(const char* what, const std::string& path) {
    return absl::UnavailableError(
        absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(errno)));
}

absl::Status writeAll(int fd, std::string_view content, const std::string& path) {
    while (!content.empty()) {
        const ssize_t n = ::write(fd, content.data(), content.size());
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return systemError("write", path);
        content.remove_prefix(static_cast<size_t>(n));
    }
    return absl::OkStatus();
}

absl::Status syncDirectory(const std::string& dir) {
    const int fd = ::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return systemError("open", dir);
    const absl::Status synced = ::fsync(fd) == 0 ? absl::OkStatus() : systemError("sync", dir);
    ::close(fd);
    return synced;
}

absl::Status writeDurably(const std::string& path, std::string_view content) {
    const std::string beside = path + ".new";
    const int fd = ::open(beside.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) return systemError("create", beside);
    absl::Status written = writeAll(fd, content, beside);
    if (written.ok() && ::fsync(fd) != 0) written = systemError("sync", beside);
    ::close(fd);
    if (!written.ok()) return written;
    if (::rename(beside.c_str(), path.c_str()) != 0) return systemError("rename", beside);
    return syncDirectory(std::filesystem::path(path).parent_path().string());
}

}  // namespace bulkhead::runtime
