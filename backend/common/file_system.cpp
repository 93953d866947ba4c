// SPDX-License-Identifier: Apache-2.0
#include "backend/common/file_system.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/common/unique_fd.h"

namespace bulkhead {
namespace {

namespace fs = std::filesystem;

absl::Status failed(const char* what, const std::string& path, int error = errno) {
    const std::string text = absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(error));
    if (error == ENOSPC || error == EDQUOT)
        return absl::ResourceExhaustedError(text + roomAt(path));
    if (error == EFBIG) return absl::ResourceExhaustedError(text);
    return error == ENOENT ? absl::NotFoundError(text) : absl::UnavailableError(text);
}

/// A folder, a pipe or a device in the place of a file is an error, and nothing is waited for.
absl::StatusOr<UniqueFd> openFile(const char* what, const std::string& path, int how = O_RDONLY) {
    UniqueFd fd(::open(path.c_str(), how | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0600));
    struct stat about {};
    // A pipe that nobody reads, or a socket, cannot be opened for writing.
    if (fd.get() < 0 ? errno != ENXIO || ::stat(path.c_str(), &about) != 0
                     : ::fstat(fd.get(), &about) != 0)
        return failed(what, path);
    if (!S_ISREG(about.st_mode))
        return absl::DataLossError(absl::StrCat("cannot ", what, " ", path, ": it is a ",
                                                S_ISDIR(about.st_mode)    ? "folder"
                                                : S_ISFIFO(about.st_mode) ? "pipe"
                                                                          : "device or a socket",
                                                ", expected a file"));
    return fd;
}

/// Is `fd` the file `there`? A file system that does not tell proves nothing: true.
bool isOpen(int fd, const struct stat& there) {
    struct stat ours {};
    return ::fstat(fd, &ours) != 0 || (ours.st_ino == there.st_ino && ours.st_dev == there.st_dev);
}

class DiskFile final : public AppendFile {
  public:
    DiskFile(std::string path, UniqueFd fd, uint64_t size)
        : path_(std::move(path)), fd_(std::move(fd)), size_(size) {}

    uint64_t size() const override { return size_; }

    absl::Status append(std::string_view bytes) override {
        uint64_t at = size_;
        while (!bytes.empty()) {
            const ssize_t n =
                ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(at));
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) {
                const absl::Status status = failed("write", path_);
                (void)truncate(size_);
                return status;
            }
            bytes.remove_prefix(static_cast<size_t>(n));
            at += static_cast<uint64_t>(n);
        }
        size_ = at;
        return absl::OkStatus();
    }

    absl::Status truncate(uint64_t size) override {
        if (::ftruncate(fd_.get(), static_cast<off_t>(size)) != 0) return failed("cut", path_);
        size_ = size;
        return absl::OkStatus();
    }

    absl::Status sync() override {
        return ::fdatasync(fd_.get()) == 0 ? absl::OkStatus() : failed("sync", path_);
    }

    bool stands() const override {
        // Opened, so that a file server is asked and no cache.
        const UniqueFd named(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
        struct stat there {};
        return !named.valid() || ::fstat(named.get(), &there) != 0 || isOpen(fd_.get(), there);
    }

  private:
    const std::string path_;
    const UniqueFd fd_;
    uint64_t size_;
};

class DiskLock final : public FileLock {
  public:
    DiskLock(std::string path, UniqueFd fd)
        : held_(std::make_shared<Held>(std::move(path), std::move(fd))) {}
    ~DiskLock() override { ::flock(held_->fd.get(), LOCK_UN); }

    /// Looks on a thread of its own, which may hang for as long as a file server does.
    bool stands() const override {
        if (held_->looking.exchange(true)) return held_->stands;
        try {
            std::thread([held = held_] {
                held->stands = look(*held);
                held->looking = false;
            }).detach();
        } catch (const std::system_error&) {
            held_->looking = false;  // no room for a thread: later
        }
        return held_->stands;
    }

  private:
    struct Held {
        Held(std::string p, UniqueFd f) : path(std::move(p)), fd(std::move(f)) {}
        const std::string path;
        const UniqueFd fd;
        std::atomic<bool> stands{true};
        std::atomic<bool> looking{false};
    };

    /// A file system that gives no answer proves nothing.
    static bool look(const Held& held) {
        struct stat there {};
        if (::stat(held.path.c_str(), &there) != 0) return errno != ENOENT && errno != ENOTDIR;
        return isOpen(held.fd.get(), there);
    }

    const std::shared_ptr<Held> held_;
};

/// The hole at the end of a file begins there; nothing: there is none, or nobody can tell.
std::optional<uint64_t> endOfData(int fd) {
    struct stat info {};
    if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
    off_t end = 0;
    for (off_t data = ::lseek(fd, 0, SEEK_DATA); data >= 0; data = ::lseek(fd, end, SEEK_DATA)) {
        end = ::lseek(fd, data, SEEK_HOLE);
        if (end < 0 || end >= info.st_size) break;
    }
    const bool known = errno == ENXIO || end >= info.st_size;
    const bool back = ::lseek(fd, 0, SEEK_SET) == 0;
    if (!known || !back || end < 0 || end >= info.st_size) return std::nullopt;
    return static_cast<uint64_t>(end);
}

class DiskFileSystem final : public FileSystem {
  public:
    bool exists(const std::string& path) const override {
        return ::access(path.c_str(), F_OK) == 0;
    }

    absl::StatusOr<std::string> read(const std::string& path) const override {
        const absl::StatusOr<UniqueFd> fd = openFile("read", path);
        if (!fd.ok()) return fd.status();
        std::optional<uint64_t> left = endOfData(fd->get());
        std::string bytes;
        for (char piece[1 << 16];;) {
            const size_t most = std::min<uint64_t>(sizeof piece, left.value_or(sizeof piece));
            const ssize_t n = most == 0 ? 0 : ::read(fd->get(), piece, most);
            if (n < 0 && errno == EINTR) continue;
            if (n < 0) return failed("read", path);
            if (n == 0) return bytes;
            bytes.append(piece, static_cast<size_t>(n));
            if (left) *left -= static_cast<uint64_t>(n);
        }
    }

    absl::Status read(const std::string& path, uint64_t offset,
                      std::span<std::byte> to) const override {
        const absl::StatusOr<UniqueFd> fd = openFile("open", path);
        if (!fd.ok()) return fd.status();
        while (!to.empty()) {
            const ssize_t n = ::pread(fd->get(), to.data(), to.size(), static_cast<off_t>(offset));
            if (n < 0 && errno == EINTR) continue;
            if (n < 0) return failed("read", path);
            if (n == 0) return absl::OutOfRangeError(absl::StrCat(path, " ends too early"));
            to = to.subspan(static_cast<size_t>(n));
            offset += static_cast<uint64_t>(n);
        }
        return absl::OkStatus();
    }

    absl::StatusOr<uint64_t> size(const std::string& path) const override {
        struct stat info {};
        if (::stat(path.c_str(), &info) != 0) return failed("read", path);
        if (!S_ISREG(info.st_mode)) return absl::NotFoundError(path + " is not a file");
        return static_cast<uint64_t>(info.st_size);
    }

    std::vector<std::string> list(const std::string& folder) const override {
        std::vector<std::string> names;
        std::error_code error;
        for (const auto& entry : fs::directory_iterator(folder, error))
            names.push_back(entry.path().filename().string());
        std::sort(names.begin(), names.end());
        return names;
    }

    absl::StatusOr<std::unique_ptr<AppendFile>> open(const std::string& path) override {
        absl::StatusOr<UniqueFd> fd = openFile("open", path, O_CREAT | O_WRONLY);
        if (!fd.ok()) return fd.status();
        const off_t end = ::lseek(fd->get(), 0, SEEK_END);
        if (end < 0) return failed("open", path);
        return std::make_unique<DiskFile>(path, *std::move(fd), static_cast<uint64_t>(end));
    }

    absl::Status rename(const std::string& from, const std::string& to) override {
        return ::rename(from.c_str(), to.c_str()) == 0 ? absl::OkStatus() : failed("rename", from);
    }

    absl::Status remove(const std::string& path) override {
        return ::unlink(path.c_str()) == 0 ? absl::OkStatus() : failed("remove", path);
    }

    absl::Status makeFolder(const std::string& path) override {
        std::error_code error;
        fs::create_directories(path, error);
        if (error) return failed("make", path, error.value());
        return ::access(path.c_str(), R_OK | W_OK | X_OK) == 0 ? absl::OkStatus()
                                                               : failed("use", path);
    }

    absl::Status removeFolder(const std::string& path) override {
        std::error_code error;
        fs::remove_all(path, error);
        return error ? failed("remove", path, error.value()) : absl::OkStatus();
    }

    absl::Status syncFolder(const std::string& folder) override {
        // A file that is named without a folder lies in the working directory.
        const char* path = folder.empty() ? "." : folder.c_str();
        const UniqueFd fd(::open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        if (fd.get() < 0) return failed("open", path);
        return ::fsync(fd.get()) == 0 ? absl::OkStatus() : failed("sync", folder);
    }

    absl::StatusOr<std::unique_ptr<FileLock>> lock(const std::string& path) override {
        UniqueFd fd(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
        if (fd.get() < 0) return failed("open", path);
        if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0)
            return absl::FailedPreconditionError(absl::StrCat(path, " is held by another process"));
        return std::make_unique<DiskLock>(path, std::move(fd));
    }
};

}  // namespace

FileSystem& diskFiles() {
    static DiskFileSystem files;
    return files;
}

absl::Status writeDurably(FileSystem& files, const std::string& path, std::string_view content) {
    const std::string beside = path + ".new";
    auto file = files.open(beside);
    if (!file.ok()) return file.status();
    absl::Status status = (*file)->truncate(0);
    if (status.ok()) status = (*file)->append(content);
    if (status.ok()) status = (*file)->sync();
    if (status.ok()) status = files.rename(beside, path);
    if (status.ok()) status = files.syncFolder(folderOf(path));
    return status;
}

absl::StatusOr<UniqueFd> holdFolder(const std::string& folder) {
    UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd.valid()) return failed("open", folder);
    while (::flock(fd.get(), LOCK_EX) != 0)
        if (errno != EINTR) return failed("lock", folder);
    return fd;
}

namespace {

std::string whyOf(const std::string& path, int error) {
    return absl::StrCat(path, ": ", std::strerror(error));
}

/// `flags` beside those of every reading.
absl::StatusOr<UniqueFd> openToRead(const std::string& path, int flags, struct stat& about) {
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | flags));
    if (!fd.valid() && (errno == EACCES || errno == EPERM))
        return absl::PermissionDeniedError(whyOf(path, errno));
    if (!fd.valid()) return absl::NotFoundError(whyOf(path, errno));
    if (::fstat(fd.get(), &about) != 0) return absl::UnavailableError(whyOf(path, errno));
    return fd;
}

absl::StatusOr<std::string> readToEnd(int fd, const struct stat& about, const std::string& path,
                                      uint64_t most) {
    const auto tooLarge = [&] {
        return absl::ResourceExhaustedError(
            absl::StrCat(path, ": more than ", most, " bytes, the most that is read"));
    };
    const auto size = S_ISREG(about.st_mode) ? static_cast<uint64_t>(about.st_size) : 0;
    if (size > most) return tooLarge();
    constexpr uint64_t kPiece = 1 << 20;
    std::string bytes;
    for (uint64_t held = 0;;) {
        // One byte more than a file says it has shows that it does not end there.
        const uint64_t room = held < size ? size - held + 1 : kPiece;
        bytes.resize(std::min(held + room, most + 1));
        const ssize_t n = ::read(fd, bytes.data() + held, bytes.size() - held);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return absl::UnavailableError(whyOf(path, errno));
        held += static_cast<uint64_t>(n);
        if (held > most) return tooLarge();
        if (n > 0) continue;
        bytes.resize(held);
        return bytes;
    }
}

/// Waits a second at most for a pipe to bring something or to be closed by who wrote to it; false
/// when neither came.
bool awaitWriter(int pipe) {
    using Clock = std::chrono::steady_clock;
    const auto until = Clock::now() + std::chrono::seconds(1);
    for (auto now = Clock::now(); now < until; now = Clock::now()) {
        struct pollfd waits {
            pipe, POLLIN, 0
        };
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - now);
        if (::poll(&waits, 1, static_cast<int>(left.count()) + 1) > 0) return true;
    }
    return false;
}

}  // namespace

absl::StatusOr<std::string> readAtMost(const std::string& path, uint64_t most) {
    struct stat about {};
    // An open that waits would wait for a writer who may never come.
    const auto fd = openToRead(path, O_NONBLOCK, about);
    if (!fd.ok()) return fd.status();
    if (!S_ISREG(about.st_mode) && !S_ISFIFO(about.st_mode))
        return absl::InvalidArgumentError(absl::StrCat(
            path, S_ISDIR(about.st_mode) ? ": is a folder" : ": is a device or a socket",
            ", expected a file"));
    if (!S_ISFIFO(about.st_mode)) return readToEnd(fd->get(), about, path, most);
    const bool hadWriter = awaitWriter(fd->get());
    if (::fcntl(fd->get(), F_SETFL, 0) != 0) return absl::UnavailableError(whyOf(path, errno));
    auto bytes = readToEnd(fd->get(), about, path, most);
    if (bytes.ok() && bytes->empty() && !hadWriter)
        return absl::InvalidArgumentError(
            absl::StrCat(path, ": is a pipe that no program writes to, expected a file"));
    return bytes;
}

absl::StatusOr<std::string> readTrusted(const std::string& path, uint64_t most) {
    struct stat about {};
    const auto fd = openToRead(path, O_NONBLOCK, about);
    if (!fd.ok()) return fd.status();
    if (!S_ISREG(about.st_mode))
        return absl::InvalidArgumentError(
            absl::StrCat(path, S_ISDIR(about.st_mode) ? ": is a folder" : ": is no ordinary file",
                         ", expected a file"));
    if (about.st_uid != 0 && about.st_uid != ::geteuid())
        return absl::PermissionDeniedError(
            absl::StrCat(path, " belongs to another user (", about.st_uid,
                         "), who could change it; make it this program's user's: chown ",
                         ::geteuid(), " ", path));
    if ((about.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return absl::PermissionDeniedError(
            absl::StrCat(path, " can be written by others; run chmod go-w ", path));
    return readToEnd(fd->get(), about, path, most);
}

std::string roomAt(const std::string& path) {
    std::error_code error;
    fs::path mount = fs::weakly_canonical(path, error);
    struct stat here {
    }, above{};
    while (!error && ::stat(mount.c_str(), &here) != 0 && mount.has_relative_path())
        mount = mount.parent_path();
    while (mount.has_relative_path() && ::stat(mount.parent_path().c_str(), &above) == 0 &&
           above.st_dev == here.st_dev)
        mount = mount.parent_path();
    struct statvfs room {};
    if (error || ::statvfs(mount.c_str(), &room) != 0) return "";
    const auto mib = [&](uint64_t blocks) { return blocks * room.f_frsize >> 20; };
    return absl::StrCat(" (the file system at ", mount.string(), " has ", mib(room.f_bavail),
                        " of ", mib(room.f_blocks), " MiB free",
                        room.f_files > 0 && room.f_favail == 0 ? ", and no inodes)" : ")");
}

std::string folderOf(const std::string& path) {
    return fs::path(path).parent_path().string();
}

}  // namespace bulkhead
