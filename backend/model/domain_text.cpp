// SPDX-License-Identifier: Apache-2.0
#include "backend/model/domain_text.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <system_error>

#include "backend/common/file_system.h"
#include "backend/model/names.h"

namespace bulkhead::model {
namespace {

namespace fs = std::filesystem;

constexpr size_t kTextProbe = 8192;

absl::Status unreadable(const DomainSpec& domain, const fs::path& path, const std::string& why) {
    return absl::InvalidArgumentError(
        concat("domain \"", domain.name, "\": ", path.string(), ": ", why,
               "; name text files or folders of them that can be read"));
}

void noteChange(const fs::path& path, DomainText& out) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) return;
    const int64_t ns = info.st_ctim.tv_sec * 1'000'000'000 + info.st_ctim.tv_nsec;
    if (ns <= out.newestNs) return;
    out.newestNs = ns;
    out.newest = path.string();
}

absl::StatusOr<std::string> readFile(const DomainSpec& domain, const fs::path& path,
                                     DomainText& out) {
    noteChange(path, out);
    std::error_code error;
    if (!fs::is_regular_file(path, error))
        return unreadable(domain, path, error ? error.message() : "not a file");
    std::ifstream in(path, std::ios::binary);
    if (!in) return unreadable(domain, path, std::strerror(errno));
    std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    if (in.bad()) return unreadable(domain, path, "reading failed");
    return text;
}

bool looksBinary(std::string_view text) {
    return text.substr(0, kTextProbe).find('\0') != std::string_view::npos;
}

absl::Status appendFolder(const DomainSpec& domain, const fs::path& folder, DomainText& out) {
    std::vector<fs::path> files;
    std::error_code error;
    noteChange(folder, out);
    for (auto it = fs::recursive_directory_iterator(folder, error);
         !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
        if (it->is_regular_file(error)) files.push_back(it->path());
        if (it->is_directory(error)) noteChange(it->path(), out);
    }
    if (error) return unreadable(domain, folder, error.message());
    std::sort(files.begin(), files.end());
    const size_t before = out.text.size();
    for (const fs::path& file : files) {
        absl::StatusOr<std::string> content = readFile(domain, file, out);
        if (!content.ok()) return content.status();
        if (content->empty())
            out.leftOut.push_back(concat(file.string(), ": empty"));
        else if (looksBinary(*content))
            out.leftOut.push_back(concat(file.string(), ": not text"));
        else
            out.text += *content;
    }
    if (out.text.size() == before) return unreadable(domain, folder, "no text in this folder");
    return absl::OkStatus();
}

absl::Status appendPath(const DomainSpec& domain, const fs::path& path, DomainText& out) {
    std::error_code error;
    const fs::file_status kind = fs::status(path, error);
    if (!fs::exists(kind)) return unreadable(domain, path, "no such file or folder");
    if (fs::is_directory(kind)) return appendFolder(domain, path, out);
    absl::StatusOr<std::string> content = readFile(domain, path, out);
    if (!content.ok()) return content.status();
    if (content->empty()) return unreadable(domain, path, "the file is empty");
    out.text += *content;
    return absl::OkStatus();
}

absl::Status cannotWrite(const fs::path& path, int error) {
    const std::string text =
        concat("the training text cannot be copied to ", path.string(), ": ", std::strerror(error));
    if (error == ENOSPC || error == EDQUOT)
        return absl::ResourceExhaustedError(
            concat(text, roomAt(path),
                   "; make room there, or set data_copy_bytes = 0 to train from where it is"));
    return absl::UnavailableError(
        concat(text, "; check the folder, or set data_copy_bytes = 0 to train from where it is"));
}

absl::Status writeFile(const fs::path& path, std::string_view text) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) return cannotWrite(path, errno);
    int error = 0;
    while (error == 0 && !text.empty()) {
        const ssize_t n = ::write(fd, text.data(), text.size());
        if (n > 0)
            text.remove_prefix(static_cast<size_t>(n));
        else if (n == 0 || errno != EINTR)
            error = n == 0 ? ENOSPC : errno;
    }
    if (error == 0 && ::fsync(fd) != 0) error = errno;
    ::close(fd);
    return error == 0 ? absl::OkStatus() : cannotWrite(path, error);
}

/// A domain's name as far as a file can carry it; the number keeps two apart.
std::string fileName(size_t number, const std::string& name) {
    std::string out = concat(number, "-");
    for (const char c : name.substr(0, 40)) {
        const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                           (c >= '0' && c <= '9') || c == '-' || c == '_';
        out += plain ? c : '-';
    }
    return out + ".txt";
}

}  // namespace

absl::StatusOr<DomainText> readDomain(const DomainSpec& domain) {
    DomainText out;
    for (const std::string& path : domain.paths)
        if (absl::Status s = appendPath(domain, path, out); !s.ok()) return s;
    return out;
}

void TextIdentity::add(const std::string& domain, const DomainText& text) {
    hash_ = XXH3_64bits_withSeed(domain.data(), domain.size(), hash_);
    hash_ = XXH3_64bits_withSeed(text.text.data(), text.text.size(), hash_);
    if (text.newestNs <= newestNs_) return;
    newestNs_ = text.newestNs;
    newest_ = text.newest;
}

std::string TextIdentity::newest() const {
    const std::time_t seconds = static_cast<std::time_t>(newestNs_ / 1'000'000'000);
    std::tm utc{};
    ::gmtime_r(&seconds, &utc);
    char text[32];
    std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &utc);
    return concat(newest_, " (changed ", text, " UTC)");
}

absl::StatusOr<std::vector<DomainSpec>> copyDomains(const std::vector<DomainSpec>& domains,
                                                    const fs::path& folder) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) return cannotWrite(folder, error.value());
    std::vector<DomainSpec> copies;
    absl::Status status;
    for (const DomainSpec& domain : domains) {
        const fs::path file = folder / fileName(copies.size(), domain.name);
        const absl::StatusOr<DomainText> text = readDomain(domain);
        status = text.ok() ? writeFile(file, text->text) : text.status();
        if (!status.ok()) break;
        copies.push_back({domain.name, {file.string()}});
    }
    if (status.ok()) return copies;
    fs::remove_all(folder, error);
    return status;
}

}  // namespace bulkhead::model
