// SPDX-License-Identifier: Apache-2.0
#include "plugins/llama_moe/device.h"

namespace bulkhead::llama_moe {

namespace {

constexpr char kTold[] = "bulkhead/told";

absl::Status statusOf(bulkhead_status status, const char* call) {
    switch (status) {
        case BULKHEAD_OK:
            return absl::OkStatus();
        case BULKHEAD_ABORTED:
            return absl::AbortedError(call);
        case BULKHEAD_INVALID:
            return absl::InvalidArgumentError(call);
        case BULKHEAD_OUT_OF_MEMORY:
            return absl::ResourceExhaustedError(call);
        case BULKHEAD_UNAVAILABLE:
            return absl::UnavailableError(call);
        case BULKHEAD_TIMED_OUT:
            return absl::DeadlineExceededError(call);
        case BULKHEAD_INTERNAL:
            break;
    }
    return absl::InternalError(call);
}

}  // namespace

absl::Status fromDevice(bulkhead_status status, const char* call) {
    absl::Status s = statusOf(status, call);
    if (!s.ok()) s.SetPayload(kTold, absl::Cord());
    return s;
}

bool toldHost(const absl::Status& status) {
    return status.GetPayload(kTold).has_value();
}

}  // namespace bulkhead::llama_moe
