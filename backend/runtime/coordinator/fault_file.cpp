// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/coordinator/fault_file.h"

#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "backend/model/json.h"
#include "backend/runtime/coordinator/durable_file.h"

namespace bulkhead::runtime {
namespace {

std::string pathIn(const std::string& runDir) {
    return runDir + "/faults.json";
}

}  // namespace

absl::StatusOr<SavedFaults> loadFaults(const std::string& runDir) {
    std::ifstream file(pathIn(runDir));
    if (!file) return SavedFaults{};
    auto faults =
        model::fromJsonText<SavedFaults>(std::string(std::istreambuf_iterator<char>(file), {}));
    if (faults.ok()) return faults;
    return absl::DataLossError(absl::StrCat(pathIn(runDir), ": ",
                                            std::string(faults.status().message()),
                                            "; remove it to go on without the faults in it"));
}

absl::Status saveFaults(const std::string& runDir, const SavedFaults& faults) {
    return writeDurably(pathIn(runDir), model::toJsonText(faults) + "\n");
}

}  // namespace bulkhead::runtime
