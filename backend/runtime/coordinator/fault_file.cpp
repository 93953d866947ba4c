// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/fault_file.h"

#include "absl/strings/str_cat.h"
#include "backend/model/json.h"

namespace bulkhead::runtime {
namespace {

std::string pathIn(const std::string& runDir) {
    return runDir + "/faults.json";
}

}  // namespace

absl::StatusOr<SavedFaults> loadFaults(const FileSystem& files, const std::string& runDir) {
    const auto text = files.read(pathIn(runDir));
    if (absl::IsNotFound(text.status())) return SavedFaults{};
    if (!text.ok()) return text.status();
    auto faults = model::fromJsonText<SavedFaults>(*text);
    if (faults.ok()) return faults;
    return absl::DataLossError(absl::StrCat(pathIn(runDir), ": ",
                                            std::string(faults.status().message()),
                                            "; remove it to go on without the faults in it"));
}

absl::Status saveFaults(FileSystem& files, const std::string& runDir, const SavedFaults& faults) {
    return writeDurably(files, pathIn(runDir), model::toJsonText(faults) + "\n");
}

}  // namespace bulkhead::runtime
