// SPDX-License-Identifier: Apache-2.0
#include "plugins/cuda/driver.h"

#include <dlfcn.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace bulkhead::cuda {
namespace {

/// "CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)", as the driver itself puts it.
std::string nameOf(void* driver, int code) {
    using Text = int (*)(int, const char**);
    std::string said = absl::StrCat("error ", code);
    const char* text = nullptr;
    if (const auto name = reinterpret_cast<Text>(dlsym(driver, "cuGetErrorName")))
        if (name(code, &text) == 0 && text != nullptr) said = text;
    if (const auto describe = reinterpret_cast<Text>(dlsym(driver, "cuGetErrorString")))
        if (describe(code, &text) == 0 && text != nullptr) absl::StrAppend(&said, " (", text, ")");
    return said;
}

}  // namespace

absl::StatusOr<int32_t> countGpus(const char* library) {
    void* driver = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (driver == nullptr)
        return absl::UnavailableError(
            absl::StrCat("no CUDA driver on this machine: ", dlerror(),
                         "; install NVIDIA's driver, or use device \"cpu\""));
    const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
    const auto count = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
    if (init == nullptr || count == nullptr)
        return absl::UnavailableError(absl::StrCat(
            library, " is no CUDA driver: it lacks cuInit; check what the loader finds first"));
    if (const int code = init(0); code != 0)
        return absl::UnavailableError(
            absl::StrCat("the CUDA driver does not start: ", nameOf(driver, code),
                         "; check nvidia-smi and CUDA_VISIBLE_DEVICES"));
    int gpus = 0;
    if (const int code = count(&gpus); code != 0 || gpus < 1)
        return absl::UnavailableError(
            absl::StrCat("the CUDA driver shows no GPU",
                         code == 0 ? "" : absl::StrCat(": ", nameOf(driver, code)),
                         "; check nvidia-smi and CUDA_VISIBLE_DEVICES"));
    return gpus;
}

}  // namespace bulkhead::cuda
