// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "absl/status/status.h"

namespace bulkhead::support {

/// A file system of its own, of 8 MiB, at the empty folder `dir`; it goes with umount(2) or with
/// the process. Who is not root gets it in namespaces of his own, for which the process must have
/// one thread only. Processes started afterwards see it too.
inline absl::Status mountSmallDisk(const std::string& dir) {
    const auto mounted = [&] {
        return ::mount("none", dir.c_str(), "tmpfs", 0, "size=8m,mode=0700") == 0;
    };
    if (mounted()) return absl::OkStatus();
    const auto user = std::to_string(::getuid());
    const auto group = std::to_string(::getgid());
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) {
        std::ofstream("/proc/self/setgroups") << "deny";
        std::ofstream("/proc/self/uid_map") << "0 " + user + " 1";
        std::ofstream("/proc/self/gid_map") << "0 " + group + " 1";
        if (mounted()) return absl::OkStatus();
    }
    return absl::UnavailableError(std::string("no file system could be mounted: ") +
                                  std::strerror(errno));
}

}  // namespace bulkhead::support
