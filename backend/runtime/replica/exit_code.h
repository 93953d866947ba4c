// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/statusor.h"
#include "backend/runtime/protocol/messages.h"
#include "backend/runtime/replica/replica_rank.h"

namespace bulkhead::runtime {

/// Exit codes of a rank's process. README.md tells operators and agents what these mean.
enum ExitCode {
    kExitLeft = 0,
    kExitInternal = 1,
    kExitUsage = 2,
    kExitExpelled = 3,
    kExitOrphaned = 4,
    kExitBadJob = protocol::kExitHopeless,
    kExitSiblingLost = 6,
};

/// By what the loop over ReplicaRank::next() ended with.
inline ExitCode exitCodeOf(const absl::StatusOr<Work>& end) {
    if (end.ok()) {
        switch (end->end) {
            case RankEnd::kLeft:
                return kExitLeft;
            case RankEnd::kExpelled:
                return kExitExpelled;
            case RankEnd::kOrphaned:
                return kExitOrphaned;
        }
    }
    switch (end.status().code()) {
        case absl::StatusCode::kInvalidArgument:
        case absl::StatusCode::kNotFound:
        case absl::StatusCode::kFailedPrecondition:
        case absl::StatusCode::kDataLoss:
            return kExitBadJob;
        case absl::StatusCode::kAborted:
        case absl::StatusCode::kUnavailable:
        case absl::StatusCode::kDeadlineExceeded:
            return kExitSiblingLost;
        default:
            return kExitInternal;
    }
}

}  // namespace bulkhead::runtime
