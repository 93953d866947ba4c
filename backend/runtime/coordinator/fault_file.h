// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/file_system.h"
#include "backend/common/types.h"
#include "backend/model/command.h"

namespace bulkhead::runtime {

/// A process that a fault was handed to.
struct FaultTarget {
    RankId rank;
    uint32_t incarnation = 0;
    bool operator==(const FaultTarget&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("rank", self.rank);
        visit("incarnation", self.incarnation);
    }
};

/// A fault that was taken on and is not known to be over. Whether it took effect or ended is the
/// history's to tell.
struct SavedFault {
    uint64_t fault = 0;
    model::FaultSpec spec;
    std::string by;
    std::string requestId;
    bool sent = false;  ///< to its targets; before that it waits for its step
    std::vector<FaultTarget> targets;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("fault", self.fault);
        visit("spec", self.spec);
        visit("by", self.by);
        visit("request_id", self.requestId);
        visit("sent", self.sent);
        visit("targets", self.targets);
    }
};

struct SavedFaults {
    bool planned = false;  ///< the job file's own were taken on
    uint64_t next = 1;     ///< id of the next one
    std::vector<SavedFault> faults;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("planned", self.planned);
        visit("next", self.next);
        visit("faults", self.faults);
    }
};

/// `<runDir>/faults.json`. Loading gives nothing when there is no file, DataLoss when it cannot be
/// read. Saved is durable.
absl::StatusOr<SavedFaults> loadFaults(const FileSystem& files, const std::string& runDir);
absl::Status saveFaults(FileSystem& files, const std::string& runDir, const SavedFaults& faults);

}  // namespace bulkhead::runtime
