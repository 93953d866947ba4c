// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "bulkhead/device.h"

namespace bulkhead::cuda {

/// The code that stands for this kind of error in the ABI.
inline bulkhead_status codeOf(const absl::Status& status) {
    switch (status.code()) {
        case absl::StatusCode::kOk:
            return BULKHEAD_OK;
        case absl::StatusCode::kAborted:
            return BULKHEAD_ABORTED;
        case absl::StatusCode::kInvalidArgument:
        case absl::StatusCode::kPermissionDenied:
            return BULKHEAD_INVALID;
        case absl::StatusCode::kResourceExhausted:
            return BULKHEAD_OUT_OF_MEMORY;
        case absl::StatusCode::kUnavailable:
            return BULKHEAD_UNAVAILABLE;
        case absl::StatusCode::kDeadlineExceeded:
            return BULKHEAD_TIMED_OUT;
        default:
            return BULKHEAD_INTERNAL;
    }
}

}  // namespace bulkhead::cuda
