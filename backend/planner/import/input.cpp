// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/import/input.h"

#include <algorithm>

#include "backend/common/file_system.h"
#include "backend/model/names.h"

namespace bulkhead::planner {
namespace {

using model::concat;
namespace fs = std::filesystem;

absl::StatusOr<std::string> readFile(const fs::path& path, uint64_t most) {
    auto bytes = readAtMost(path.string(), most);
    if (bytes.ok()) return bytes;
    const char* remedy = absl::IsResourceExhausted(bytes.status())  ? "record a shorter stretch"
                         : absl::IsPermissionDenied(bytes.status()) ? "check its permissions"
                                                                    : "check the path";
    return absl::Status(bytes.status().code(),
                        concat(std::string(bytes.status().message()), "; ", remedy));
}

}  // namespace

Files filesOf(const fs::path& folder, uint64_t most) {
    Files files;
    std::error_code error;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
        if (it->is_regular_file(error)) files.names.push_back(it->path().filename().string());
    std::sort(files.names.begin(), files.names.end());
    files.read = [folder, most](std::string_view name) { return readFile(folder / name, most); };
    files.size = [folder](std::string_view name) -> uint64_t {
        return diskFiles().size((folder / name).string()).value_or(0);
    };
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
