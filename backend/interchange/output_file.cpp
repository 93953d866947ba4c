// SPDX-License-Identifier: Apache-2.0
#include "backend/interchange/output_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "backend/common/file_system.h"

namespace bulkhead::interchange {
namespace {

absl::Status failed(const char* what, const std::string& path) {
    const int error = errno;
    const std::string text = absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(error));
    if (error == ENOSPC || error == EDQUOT || error == EFBIG)
        return absl::ResourceExhaustedError(text + "; make room or choose another place");
    return absl::UnavailableError(text);
}

bool isThere(const std::string& path) {
    struct stat about {};
    return ::lstat(path.c_str(), &about) == 0;
}

}  // namespace

absl::Status alreadyThere(const std::string& path) {
    return absl::AlreadyExistsError(
        absl::StrCat(path, " exists; choose another place, or replace it with --force"));
}

absl::StatusOr<std::unique_ptr<OutputFile>> OutputFile::create(std::string path, bool replace) {
    if (!replace && isThere(path)) return alreadyThere(path);
    std::string beside = absl::StrCat(path, ".", ::getpid(), ".partial");
    UniqueFd fd(::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!fd.valid()) return failed("make", beside);
    return std::unique_ptr<OutputFile>(
        new OutputFile(std::move(path), std::move(beside), replace, std::move(fd)));
}

OutputFile::OutputFile(std::string path, std::string beside, bool replace, UniqueFd fd)
    : path_(std::move(path)), beside_(std::move(beside)), replace_(replace), fd_(std::move(fd)) {}

OutputFile::~OutputFile() {
    if (!published_) ::unlink(beside_.c_str());
}

absl::Status OutputFile::append(std::string_view bytes) {
    size_ += bytes.size();
    while (!bytes.empty()) {
        const ssize_t n = ::write(fd_.get(), bytes.data(), bytes.size());
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return failed("write", beside_);
        bytes.remove_prefix(static_cast<size_t>(n));
    }
    return absl::OkStatus();
}

absl::Status OutputFile::publish() {
    if (::fsync(fd_.get()) != 0) return failed("sync", beside_);
    int moved = ::renameat2(AT_FDCWD, beside_.c_str(), AT_FDCWD, path_.c_str(),
                            replace_ ? 0 : RENAME_NOREPLACE);
    if (moved != 0 && errno == EEXIST) return alreadyThere(path_);
    if (moved != 0 && !replace_ && errno == EINVAL) {  // a file system that cannot promise it
        if (isThere(path_)) return alreadyThere(path_);
        moved = ::rename(beside_.c_str(), path_.c_str());
    }
    if (moved != 0) return failed("rename", beside_);
    published_ = true;
    return diskFiles().syncFolder(folderOf(path_));
}

}  // namespace bulkhead::interchange
