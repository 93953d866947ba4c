// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/unique_fd.h"

namespace bulkhead {

/// A file open for writing at its end. Errors are ResourceExhausted (no room) or Unavailable:
/// "cannot WHAT PATH: the system's reason". Thread: externally serialised.
class AppendFile {
  public:
    virtual ~AppendFile() = default;
    virtual uint64_t size() const = 0;
    /// All of `bytes`. After an error size() is as before and what was written is cut off again,
    /// if the system allows that.
    virtual absl::Status append(std::string_view bytes) = 0;
    virtual absl::Status truncate(uint64_t size) = 0;
    /// Makes the appended bytes survive a power cut; the file's name does only after syncFolder().
    virtual absl::Status sync() = 0;
    /// false: another file has taken its name.
    virtual bool stands() const { return true; }
};

/// Held until it is destroyed or its process ends.
class FileLock {
  public:
    virtual ~FileLock() = default;
    /// false: its file was removed or replaced, and somebody else can hold the one that lies there
    /// now. Never waits for the disk: what was found when it was asked before.
    virtual bool stands() const { return true; }
};

/// Files as the edges see them. Inject it: a simulation keeps them in memory. Errors are NotFound
/// ResourceExhausted (no room) or Unavailable, each with the path and the system's reason. Thread:
/// any.
class FileSystem {
  public:
    virtual ~FileSystem() = default;
    virtual bool exists(const std::string& path) const = 0;
    /// A hole at the end, which takes no room and may be long, is left out.
    virtual absl::StatusOr<std::string> read(const std::string& path) const = 0;
    /// Fills `to` from `offset` on. OutOfRange when the file ends before.
    virtual absl::Status read(const std::string& path, uint64_t offset,
                              std::span<std::byte> to) const = 0;
    /// Bytes of a regular file; NotFound for anything else.
    virtual absl::StatusOr<uint64_t> size(const std::string& path) const = 0;
    /// Names of what lies in `folder`, in order; empty when it cannot be read.
    virtual std::vector<std::string> list(const std::string& folder) const = 0;
    /// Opens `path`, or makes it with mode 0600.
    virtual absl::StatusOr<std::unique_ptr<AppendFile>> open(const std::string& path) = 0;
    virtual absl::Status rename(const std::string& from, const std::string& to) = 0;
    virtual absl::Status remove(const std::string& path) = 0;
    /// With the folders above it, unless it is there; an error when it may not be used.
    virtual absl::Status makeFolder(const std::string& path) = 0;
    /// With all that lies in it; one that is not there is no error.
    virtual absl::Status removeFolder(const std::string& path) = 0;
    /// Makes the names in `folder` durable.
    virtual absl::Status syncFolder(const std::string& folder) = 0;
    /// Exclusive; makes the file. FailedPrecondition when it is held already.
    virtual absl::StatusOr<std::unique_ptr<FileLock>> lock(const std::string& path) = 0;
};

/// This machine's; has no state.
FileSystem& diskFiles();

/// Replaces `path` by `content` so that after a crash either the old or the new content is there:
/// written beside it, synced, renamed, folder synced.
absl::Status writeDurably(FileSystem& files, const std::string& path, std::string_view content);

/// Waits until no other process holds `folder` so, and holds it until the result is destroyed: for
/// a command that reads a file there, changes it and writes it.
absl::StatusOr<UniqueFd> holdFolder(const std::string& folder);

/// Reads what somebody names on a command line: a file, or what a pipe brings until it ends. At
/// most `most` bytes are held and as many and one are read. "PATH: CAUSE" as NotFound when it is
/// not there, PermissionDenied when it may not be read, InvalidArgument for a folder, a device, a
/// socket or a pipe that no program writes to for a second, ResourceExhausted beyond `most`. Waits
/// as long as the writer of a pipe does. Thread: any.
absl::StatusOr<std::string> readAtMost(const std::string& path, uint64_t most);

/// Reads a file that says who may do what: as readAtMost(), but PermissionDenied for one, or the
/// target of a link, that belongs to somebody other than this process's user or root or that others
/// can write, and InvalidArgument for a pipe. Never waits for another process. Thread: any.
absl::StatusOr<std::string> readTrusted(const std::string& path, uint64_t most);

/// " (the file system at MOUNT has N of M MiB free)": of `path`, which need not be there; empty
/// when nobody can tell. In whole MiB, so that a message repeated while a disk is full stays the
/// same.
std::string roomAt(const std::string& path);

/// "a/b" of "a/b/c".
std::string folderOf(const std::string& path);

}  // namespace bulkhead
