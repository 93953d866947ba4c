// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/import/input.h"

#include <algorithm>
#include <fstream>

#include "backend/model/names.h"

namespace bulkhead::planner {
namespace {

using model::concat;
namespace fs = std::filesystem;

absl::StatusOr<std::string> readFile(const fs::path& path, uint64_t most) {
    std::error_code error;
    const uintmax_t size = fs::file_size(path, error);
    if (error)
        return absl::NotFoundError(
            concat(path.string(), ": cannot be read (", error.message(), "); check the path"));
    if (size > most)
        return absl::ResourceExhaustedError(concat(path.string(), ": ", size, " bytes, at most ",
                                                   most, " are read; record a shorter stretch"));
    std::ifstream in(path, std::ios::binary);
    std::string bytes(static_cast<size_t>(size), '\0');
    if (!in.read(bytes.data(), static_cast<std::streamsize>(size)))
        return absl::NotFoundError(
            concat(path.string(), ": cannot be read; check its permissions"));
    return bytes;
}

}  // namespace

Files filesOf(const fs::path& folder, uint64_t most) {
    Files files;
    std::error_code error;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
        if (it->is_regular_file(error)) files.names.push_back(it->path().filename().string());
    std::sort(files.names.begin(), files.names.end());
    files.read = [folder, most](std::string_view name) { return readFile(folder / name, most); };
    return files;
}

absl::Status checkInside(std::string_view name, std::string_view from) {
    const fs::path path(name);
    const bool up =
        std::any_of(path.begin(), path.end(), [](const fs::path& part) { return part == ".."; });
    if (name.empty() || path.is_absolute() || up)
        return absl::InvalidArgumentError(
            concat(from, ": file \"", model::shortened(name, 80), "\" is not below its folder"));
    return absl::OkStatus();
}

absl::Status narrowIds(std::span<const int64_t> ids, uint32_t experts, std::vector<uint16_t>& out,
                       const std::function<std::string(size_t)>& where) {
    out.resize(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] < 0 || ids[i] >= int64_t{experts})
            return absl::InvalidArgumentError(
                concat(where(i), ": expert ", ids[i], ", expected 0 to ", experts - 1));
        out[i] = static_cast<uint16_t>(ids[i]);
    }
    return absl::OkStatus();
}

}  // namespace bulkhead::planner
