// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "plugins/cuda/device.h"

namespace bulkhead::cuda {
namespace {

bulkhead_status codeOf(const absl::Status& status) {
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

}  // namespace

absl::Status fromCuda(cudaError_t code, const std::string& what) {
    if (code == cudaSuccess) return absl::OkStatus();
    const std::string line = absl::StrCat(what, ": ", cudaGetErrorString(code));
    switch (code) {
        case cudaErrorMemoryAllocation:
            (void)cudaGetLastError();  // or the next call, which is innocent, would report it
            return absl::ResourceExhaustedError(line + "; use a smaller model or batch");
        case cudaErrorInvalidValue:
        case cudaErrorInvalidDevice:
            (void)cudaGetLastError();
            return absl::InvalidArgumentError(line);
        case cudaErrorNoDevice:
        case cudaErrorInsufficientDriver:
        case cudaErrorSystemDriverMismatch:
        case cudaErrorDevicesUnavailable:
            return absl::UnavailableError(line + "; check nvidia-smi");
        default:
            return absl::InternalError(line +
                                       "; the GPU's context is lost, so the rank must start again");
    }
}

bulkhead_status report(const bulkhead_device* device, const absl::Status& status) noexcept {
    if (status.ok()) return BULKHEAD_OK;
    if (device->host.error != nullptr)
        device->host.error(device->host.context, std::string(status.message()).c_str());
    return codeOf(status);
}

}  // namespace bulkhead::cuda
