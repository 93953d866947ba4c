// SPDX-License-Identifier: Apache-2.0
#include "plugins/llama_moe/gpu/module.h"

#include <dlfcn.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace bulkhead::llama_moe {
namespace {

std::string pathOfModule() {
    Dl_info self{};
    if (::dladdr(reinterpret_cast<const void*>(&cudaMachine), &self) == 0) return "";
    const std::string path = self.dli_fname;
    return absl::StrCat(path.substr(0, path.rfind('/') + 1), "bulkhead_llama_moe_cuda.so");
}

absl::StatusOr<const gpu::MachineApi*> load() {
    const std::string path = pathOfModule();
    void* module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (module == nullptr)
        return absl::NotFoundError(
            absl::StrCat("llama_moe cannot compute on GPUs here: ", ::dlerror(),
                         "; install the CUDA Toolkit with cuBLAS and build again, or set device = "
                         "\"cpu\""));
    const auto get =
        reinterpret_cast<gpu::GetMachine>(::dlsym(module, BULKHEAD_LLAMA_MOE_GET_MACHINE));
    const gpu::MachineApi* api = get == nullptr ? nullptr : get();
    if (api == nullptr || api->build != gpu::kMachineBuild)
        return absl::FailedPreconditionError(
            absl::StrCat(path, " is of another build than the plugin; build both together"));
    return api;
}

}  // namespace

absl::StatusOr<const gpu::MachineApi*> cudaMachine() {
    static const absl::StatusOr<const gpu::MachineApi*> machine = load();
    return machine;
}

}  // namespace bulkhead::llama_moe
