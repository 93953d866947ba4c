// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/commit_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "backend/runtime/coordinator/durable_file.h"

namespace bulkhead::runtime {
absl::StatusOr<CommitLog> CommitLog::open(const std::string& path) {
    UniqueFd file(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
    if (!file.valid()) return systemError("open the commit log", path);
    CommitLog log(path, std::move(file));

    std::ifstream reader(path, std::ios::binary);
    std::stringstream bytes;
    bytes << reader.rdbuf();
    auto decoded = protocol::decodeLog(bytes.str());
    if (!decoded.ok())
        return absl::Status(decoded.status().code(),
                            absl::StrCat(path, ": ", std::string(decoded.status().message())));
    log.entries_ = std::move(decoded->entries);
    log.hadTornTail_ = decoded->tornTail;
    const int fd = log.file_.get();
    if (::ftruncate(fd, static_cast<off_t>(decoded->validBytes)) != 0)
        return systemError("cut the commit log", path);
    if (::lseek(fd, 0, SEEK_END) < 0) return systemError("seek in the commit log", path);
    if (decoded->validBytes < protocol::kLogHeader.size()) {
        if (::ftruncate(fd, 0) != 0 || ::lseek(fd, 0, SEEK_SET) < 0)
            return systemError("cut the commit log", path);
        if (absl::Status s = writeAll(fd, protocol::kLogHeader, path); !s.ok()) return s;
    }
    if (::fsync(fd) != 0) return systemError("sync the commit log", path);
    if (absl::Status s = syncDirectory(std::filesystem::path(path).parent_path().string()); !s.ok())
        return s;
    return log;
}

absl::Status CommitLog::append(const std::vector<protocol::LogEntry>& entries) {
    if (broken_)
        return absl::FailedPreconditionError(
            absl::StrCat(path_, " failed before; the coordinator must start again to read it"));
    std::string bytes;
    for (const protocol::LogEntry& entry : entries) bytes += protocol::encodeEntry(entry);
    absl::Status written = writeAll(file_.get(), bytes, path_);
    if (written.ok() && ::fdatasync(file_.get()) != 0)
        written = systemError("sync the commit log", path_);
    broken_ = !written.ok();
    return written;
}

}  // namespace bulkhead::runtime
