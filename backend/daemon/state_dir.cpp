// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "backend/daemon/roles.h"

namespace bulkhead::daemon {
namespace {

constexpr size_t kLongestSocket = 107;  // sun_path without its end

}  // namespace

absl::Status claimStateDir(const Options& options) {
    std::error_code error;
    // The longest of the sockets that lie in it.
    if (const size_t bytes = options.controlSocket().size(); bytes > kLongestSocket)
        return absl::InvalidArgumentError("the path of the socket " + options.controlSocket() +
                                          " has " + std::to_string(bytes) + " bytes, " +
                                          std::to_string(kLongestSocket) +
                                          " are possible; choose a shorter --state-dir");
    if (!std::filesystem::exists(options.stateDir, error)) {
        std::filesystem::create_directories(options.stateDir, error);
        if (!error) ::chmod(options.stateDir.c_str(), 0700);
    }
    if (error)
        return absl::PermissionDeniedError("state directory " + options.stateDir +
                                           " cannot be made: " + error.message() +
                                           "; choose another with --state-dir");
    if (options.supervised) return absl::OkStatus();
    const std::string path = options.stateDir + "/daemon.lock";
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return absl::PermissionDeniedError(path + " cannot be opened: " + std::strerror(errno) +
                                           "; choose another place with --state-dir");
    // The descriptor is kept on purpose: the lock lives as long as the process.
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0)
        return absl::AlreadyExistsError("another daemon uses the state directory " +
                                        options.stateDir +
                                        "; use that one, stop it, or choose another --state-dir");
    return absl::OkStatus();
}

}  // namespace bulkhead::daemon
