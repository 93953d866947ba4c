// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "plugins/cuda/abi_status.h"
#include "plugins/cuda/device.h"

namespace bulkhead::cuda {
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
