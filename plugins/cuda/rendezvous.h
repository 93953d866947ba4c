// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace bulkhead::cuda {

/// Parameters by which the ranks of a group find each other before they have a communicator.
struct Rendezvous {
    std::string group;  ///< name, equal on all ranks; a rank of another group is turned away
    uint64_t token = 0;
    int32_t rank = 0;
    std::vector<std::string> data;   ///< "ip:port" of each rank
    int listenFd = -1;               ///< of rank 0: listening on data[0], or -1 to bind it here
    uint32_t timeoutMs = 0;          ///< for all of it
    std::function<void()> progress;  ///< may be empty; called at least every 50 ms
    uint64_t place = 0;              ///< the GPU that this rank computes on
    bool mayShare = false;           ///< all ranks may be at one place; else no two
};

/// The ranks of a group turn out to be so.
enum class Seating { kApart, kTogether };

/// `message` of rank 0 becomes that of all; of the same length everywhere, at most 4 KiB. Rank 0
/// turns away whoever does not show the group's name and token, and goes on waiting.
/// DeadlineExceeded names who did not come; PermissionDenied: rank 0 turned us away;
/// InvalidArgument: an address that is none, or ranks at one place that are not all there, or may
/// not be (who it is and rank 0 are told). Thread: one.
[[nodiscard]] absl::StatusOr<Seating> shareFromRankZero(const Rendezvous& with,
                                                        std::string& message);

}  // namespace bulkhead::cuda
