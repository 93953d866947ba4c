// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "backend/model/job_file.h"
#include "backend/model/names.h"

namespace bulkhead::model {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRemedy = "; name a text file, or a folder of them, that can be read";

std::string prefix(const DomainSpec& domain, const fs::path& path) {
    return concat("domain \"", domain.name, "\": ", path.string(), ": ");
}

/// Bytes of a file that is text, 0 when it is empty or holds a zero byte early on.
absl::StatusOr<uint64_t> textBytes(const DomainSpec& domain, const fs::path& path) {
    constexpr size_t kProbe = 8192;
    errno = 0;
    std::ifstream in(path, std::ios::binary);
    char head[kProbe];
    if (!in || (in.read(head, kProbe), in.bad()))
        return absl::PermissionDeniedError(
            concat(prefix(domain, path), "cannot be read (", std::strerror(errno), ")", kRemedy));
    if (std::memchr(head, '\0', static_cast<size_t>(in.gcount()))) return 0;
    std::error_code error;
    const uint64_t bytes = fs::file_size(path, error);
    return error ? static_cast<uint64_t>(in.gcount()) : bytes;
}

absl::StatusOr<uint64_t> folderBytes(const DomainSpec& domain, const fs::path& folder) {
    std::error_code error;
    uint64_t total = 0;
    fs::recursive_directory_iterator it(folder, error);
    for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
        std::error_code odd;
        if (!it->is_regular_file(odd)) continue;
        const absl::StatusOr<uint64_t> bytes = textBytes(domain, it->path());
        if (!bytes.ok()) return bytes.status();
        total += *bytes;
    }
    if (error)
        return absl::PermissionDeniedError(
            concat(prefix(domain, folder), "cannot be read (", error.message(), ")", kRemedy));
    if (total == 0)
        return absl::InvalidArgumentError(
            concat(prefix(domain, folder), "no text in this folder", kRemedy));
    return total;
}

absl::StatusOr<uint64_t> pathBytes(const DomainSpec& domain, const fs::path& path) {
    std::error_code error;
    const fs::file_status kind = fs::status(path, error);
    if (!fs::exists(kind))
        return absl::NotFoundError(concat(prefix(domain, path), "no such file or folder", kRemedy));
    if (fs::is_directory(kind)) return folderBytes(domain, path);
    if (!fs::is_regular_file(kind))
        return absl::InvalidArgumentError(
            concat(prefix(domain, path), "neither a file nor a folder", kRemedy));
    absl::StatusOr<uint64_t> bytes = textBytes(domain, path);
    if (bytes.ok() && *bytes == 0)
        return absl::InvalidArgumentError(
            concat(prefix(domain, path), "empty, or not text", kRemedy));
    return bytes;
}

absl::StatusOr<uint64_t> domainBytes(const DomainSpec& domain) {
    uint64_t total = 0;
    for (const std::string& path : domain.paths) {
        const absl::StatusOr<uint64_t> bytes = pathBytes(domain, path);
        if (!bytes.ok()) return bytes.status();
        total += *bytes;
    }
    return total;
}

}  // namespace

absl::StatusOr<uint64_t> dataBytes(const JobSpec& spec) {
    uint64_t total = 0;
    for (const DomainSpec& domain : spec.domains) {
        const absl::StatusOr<uint64_t> bytes = domainBytes(domain);
        if (!bytes.ok()) return bytes.status();
        total += *bytes;
    }
    return total;
}

absl::Status checkData(const JobSpec& spec) {
    if (!spec.command.empty()) return absl::OkStatus();
    for (const DomainSpec& domain : spec.domains) {
        const absl::StatusOr<uint64_t> total = domainBytes(domain);
        if (!total.ok()) return total.status();
        if (*total <= spec.sequenceLength)
            return absl::InvalidArgumentError(concat("domain \"", domain.name, "\": ", *total,
                                                     " bytes of text, expected more "
                                                     "than one sample's ",
                                                     spec.sequenceLength,
                                                     "; add text or lower sequence_length"));
    }
    return absl::OkStatus();
}

absl::StatusOr<std::vector<DomainSpec>> domainsOfFolder(const fs::path& folder) {
    std::error_code error;
    const fs::path whole = fs::absolute(folder).lexically_normal();
    const fs::file_status kind = fs::status(whole, error);
    if (!fs::exists(kind))
        return absl::NotFoundError(
            concat(whole.string(), ": no such folder; --data takes a folder of text"));
    if (!fs::is_directory(kind))
        return absl::InvalidArgumentError(
            concat(whole.string(), ": not a folder; --data takes a folder of text"));
    std::vector<fs::path> entries;
    fs::directory_iterator it(whole, error);
    for (; !error && it != fs::directory_iterator(); it.increment(error))
        if (it->path().filename().string().front() != '.') entries.push_back(it->path());
    if (error)
        return absl::PermissionDeniedError(concat(whole.string(), ": cannot be read (",
                                                  error.message(), "); check its permissions"));
    std::sort(entries.begin(), entries.end());
    std::vector<DomainSpec> domains;
    for (const fs::path& entry : entries) {
        const bool isFolder = fs::is_directory(entry, error);
        std::string name = isFolder ? entry.filename().string() : entry.stem().string();
        const bool taken = std::any_of(domains.begin(), domains.end(),
                                       [&](const DomainSpec& d) { return d.name == name; });
        // a.txt beside a.md: the whole file name keeps them apart.
        domains.push_back({taken ? entry.filename().string() : name, {entry.string()}});
    }
    if (domains.empty())
        return absl::InvalidArgumentError(
            concat(whole.string(), ": empty; put at least one text file into it"));
    return domains;
}

}  // namespace bulkhead::model
