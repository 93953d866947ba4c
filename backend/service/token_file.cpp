// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "backend/access/access_list.h"
#include "backend/service/gate.h"

namespace bulkhead::service {
namespace {

/// AlreadyExists: another process made it first.
absl::StatusOr<std::string> createToken(const std::string& file) {
    const std::string token = access::freshToken();
    // Whole or not at all, and the first one stays: two roles of a daemon may start at once.
    const std::string line = token + "\n";
    const std::string draft = file + "." + std::to_string(::getpid());
    const int fd = ::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    const bool made = fd >= 0 &&
                      ::write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size()) &&
                      ::link(draft.c_str(), file.c_str()) == 0;
    const int error = errno;
    if (fd >= 0) {
        ::close(fd);
        ::unlink(draft.c_str());
    }
    if (!made && error == EEXIST) return absl::AlreadyExistsError(file);
    if (!made)
        return absl::PermissionDeniedError("token file " + file + " cannot be written: " +
                                           std::strerror(error) + "; choose another place for it");
    return token;
}

}  // namespace

absl::StatusOr<std::string> loadOrCreateToken(const std::string& file) {
    absl::StatusOr<std::string> token = loadToken(file);
    if (!absl::IsNotFound(token.status())) return token;
    token = createToken(file);
    return absl::IsAlreadyExists(token.status()) ? loadToken(file) : token;
}

absl::StatusOr<std::string> loadToken(const std::string& file) {
    // Without waiting for the writer of a pipe.
    const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    const int error = errno;
    struct stat link {};
    if (fd < 0 && error == ENOENT && ::lstat(file.c_str(), &link) == 0)
        return absl::InvalidArgumentError("token file " + file +
                                          " is a link to nothing; put back what it led to, or name "
                                          "another file");
    if (fd < 0 && error == ENOENT)
        return absl::NotFoundError("token file " + file + " is not there; put it back");
    if (fd < 0)
        return absl::PermissionDeniedError("token file " + file + " cannot be read: " +
                                           std::strerror(error) + "; name one of your own");
    struct stat info {};
    char text[1024];
    const bool isFile = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
    const ssize_t n = isFile ? ::read(fd, text, sizeof text) : -1;
    ::close(fd);
    if (n < 0)
        return absl::InvalidArgumentError("token file " + file +
                                          " is no readable file; name another");
    if (info.st_uid != 0 && info.st_uid != ::geteuid())
        return absl::PermissionDeniedError("token file " + file +
                                           " belongs to another user, who knows it; name one of "
                                           "your own");
    if ((info.st_mode & 077) != 0)
        return absl::PermissionDeniedError("token file " + file +
                                           " can be read by others; run chmod 600 " + file);
    std::string token(text, static_cast<size_t>(n));
    token = token.substr(0, token.find_first_of("\r\n"));
    bool usable = token.size() >= 16;
    for (const char c : token) usable = usable && c > ' ' && c <= '~';
    if (!usable)
        return absl::InvalidArgumentError(
            "token file " + file +
            " holds no token; its first line must be 16 or more visible characters");
    return token;
}

}  // namespace bulkhead::service
