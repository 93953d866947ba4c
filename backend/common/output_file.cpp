// SPDX-License-Identifier: Apache-2.0
#include "backend/common/output_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/common/file_system.h"

namespace bulkhead {
namespace {

absl::Status cannot(const char* what, const std::string& path) {
    const int error = errno;
    const std::string text = absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(error));
    if (error == ENOSPC || error == EDQUOT || error == EFBIG)
        return absl::ResourceExhaustedError(text + roomAt(path) +
                                            "; make room or choose another place");
    return absl::UnavailableError(text);
}

constexpr const char* kDescriptors = "/proc/self/fd";

bool isThere(const std::string& path) {
    struct stat about {};
    return ::lstat(path.c_str(), &about) == 0;
}

std::string behindLinks(const std::string& path) {
    std::error_code error;
    const std::filesystem::path real = std::filesystem::canonical(path, error);
    return error ? path : real.string();
}

}  // namespace

absl::Status alreadyThere(const std::string& path) {
    return absl::AlreadyExistsError(
        absl::StrCat(path, " exists; choose another place, or replace it with --force"));
}

absl::StatusOr<std::unique_ptr<OutputFile>> OutputFile::create(const std::string& path,
                                                               bool replace) {
    if (!replace && isThere(path)) return alreadyThere(path);
    struct stat before {};
    const bool isOld = ::stat(path.c_str(), &before) == 0;
    if (isOld && !S_ISREG(before.st_mode)) {
        UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY));
        if (!fd.valid()) return cannot("write", path);
        return std::unique_ptr<OutputFile>(new OutputFile(path, "", replace, std::move(fd)));
    }
    const std::string place = isOld ? behindLinks(path) : path;
    // A file without a name goes with its process, however that ends.
    UniqueFd fd;
    if (::access(kDescriptors, X_OK) == 0)
        fd = UniqueFd(::open(folderOf(place).c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666));
    const bool named = !fd.valid();
    auto file = std::unique_ptr<OutputFile>(
        new OutputFile(place, absl::StrCat(place, ".", ::getpid()), replace, std::move(fd)));
    if (named)
        if (absl::Status s = file->takeName([&](const char* name) {
                file->fd_ = UniqueFd(::open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
                return file->fd_.valid();
            });
            !s.ok())
            return s;
    if (isOld && ::fchmod(file->fd_.get(), before.st_mode & 07777) != 0)
        return cannot("set the mode of", place);
    return file;
}

OutputFile::OutputFile(std::string path, std::string beside, bool replace, UniqueFd fd)
    : path_(std::move(path)), beside_(std::move(beside)), replace_(replace), fd_(std::move(fd)) {}

OutputFile::~OutputFile() {
    if (isNamed_) ::unlink(beside_.c_str());
}

/// One of an earlier process of the same number may lie there: numbers come again in containers.
absl::Status OutputFile::takeName(const std::function<bool(const char*)>& take) {
    const std::string stem = beside_;
    for (int n = 0; !isNamed_; ++n) {
        beside_ = absl::StrCat(stem, n == 0 ? "" : absl::StrCat("-", n), ".partial");
        isNamed_ = take(beside_.c_str());
        if (!isNamed_ && errno != EEXIST) return cannot("make", beside_);
    }
    return absl::OkStatus();
}

absl::Status OutputFile::append(std::string_view bytes) {
    size_ += bytes.size();
    while (!bytes.empty()) {
        const ssize_t n = ::write(fd_.get(), bytes.data(), bytes.size());
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return cannot("write", path_);
        bytes.remove_prefix(static_cast<size_t>(n));
    }
    return absl::OkStatus();
}

absl::Status OutputFile::publish() {
    if (beside_.empty()) return absl::OkStatus();
    if (::fsync(fd_.get()) != 0) return cannot("sync", path_);
    if (!isNamed_)
        if (absl::Status s = takeName([&](const char* name) {
                const std::string held = absl::StrCat(kDescriptors, "/", fd_.get());
                return ::linkat(AT_FDCWD, held.c_str(), AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0;
            });
            !s.ok())
            return s;
    int moved = ::renameat2(AT_FDCWD, beside_.c_str(), AT_FDCWD, path_.c_str(),
                            replace_ ? 0 : RENAME_NOREPLACE);
    if (moved != 0 && errno == EEXIST) return alreadyThere(path_);
    if (moved != 0 && !replace_ && errno == EINVAL) {  // a file system that cannot promise it
        if (isThere(path_)) return alreadyThere(path_);
        moved = ::rename(beside_.c_str(), path_.c_str());
    }
    if (moved != 0) return cannot("rename", beside_);
    isNamed_ = false;
    return diskFiles().syncFolder(folderOf(path_));
}

std::streamsize OutputStream::xsputn(const char* bytes, std::streamsize count) {
    constexpr size_t kHeld = 1 << 16;
    held_.append(bytes, static_cast<size_t>(count));
    return held_.size() < kHeld || sync() == 0 ? count : 0;
}

std::streambuf::int_type OutputStream::overflow(std::streambuf::int_type c) {
    if (Traits::eq_int_type(c, Traits::eof())) return Traits::not_eof(c);
    const char byte = Traits::to_char_type(c);
    return xsputn(&byte, 1) == 1 ? c : Traits::eof();
}

int OutputStream::sync() {
    if (status_.ok()) status_ = file_.append(held_);
    held_.clear();
    return status_.ok() ? 0 : -1;
}

absl::Status checkWritable(const std::string& path) {
    struct stat about {};
    const bool isThere = ::stat(path.c_str(), &about) == 0;
    if (isThere && S_ISDIR(about.st_mode)) {
        errno = EISDIR;
        return cannot("write", path);
    }
    // Opening a pipe and closing it again would end it for its reader.
    if (isThere && !S_ISREG(about.st_mode))
        return ::faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) == 0 ? absl::OkStatus()
                                                                          : cannot("write", path);
    const std::string above = folderOf(path), folder = above.empty() ? "./" : above + "/";
    if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) != 0)
        return cannot("write", path);
    const std::string beside = absl::StrCat(path, ".", ::getpid(), ".partial");
    if (::lstat(beside.c_str(), &about) != 0 && errno == ENAMETOOLONG) return cannot("write", path);
    return OutputFile::create(path, true).status();
}

absl::Status writeWhole(const std::string& path, std::string_view content) {
    const auto file = OutputFile::create(path, true);
    if (!file.ok()) return file.status();
    if (absl::Status s = (*file)->append(content); !s.ok()) return s;
    return (*file)->publish();
}

}  // namespace bulkhead
