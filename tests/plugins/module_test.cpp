// SPDX-License-Identifier: Apache-2.0
// The workload's GPU module, by the plugin that opens it and by itself; no GPU is needed.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "bulkhead/workload.h"
#include "plugins/llama_moe/gpu/machine.h"

namespace bulkhead::llama_moe::gpu {
namespace {

#ifdef BULKHEAD_MODULE
constexpr int kBuilt = 1;
#else
constexpr int kBuilt = 0;
#endif

/// A host that keeps the last error in `line`.
bulkhead_host keeping(std::string& line) {
    return {&line, [](void*, int32_t, const char*) {},
            [](void* to, const char* said) { *static_cast<std::string*>(to) = said; }};
}

const bulkhead_workload_api* workload() {
    void* plugin = ::dlopen(BULKHEAD_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    EXPECT_NE(plugin, nullptr) << ::dlerror();
    const auto get =
        reinterpret_cast<bulkhead_workload_get_api_fn>(::dlsym(plugin, BULKHEAD_WORKLOAD_GET_API));
    return get(BULKHEAD_WORKLOAD_ABI);
}

TEST(Module, ThePluginComputesOnGpusWhereItIsBuilt) {
    EXPECT_EQ(workload()->computes_on("cpu"), 1);
    EXPECT_EQ(workload()->computes_on("cuda"), kBuilt);
    EXPECT_EQ(workload()->computes_on("tpu"), 0);
    EXPECT_EQ(workload()->computes_on(nullptr), 0);
}

#ifndef BULKHEAD_MODULE
TEST(Module, WithoutItCreatingOnAGpuSaysWhatToDo) {
    std::string error;
    const bulkhead_host host = keeping(error);
    bulkhead_device_api device{};
    device.name = "cuda";
    bulkhead_workload_config config{};
    config.struct_size = sizeof config;
    config.host = &host;
    config.device_api = &device;
    bulkhead_workload* made = nullptr;
    EXPECT_EQ(workload()->create(&config, &made), BULKHEAD_INVALID);
    EXPECT_THAT(error, testing::HasSubstr("set device = \"cpu\""));
}

#else
TEST(Module, MemoryThatIsNoGpusIsRefusedInOneLine) {
    void* module = ::dlopen(BULKHEAD_MODULE, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(module, nullptr) << ::dlerror();
    const auto get = reinterpret_cast<GetMachine>(::dlsym(module, BULKHEAD_LLAMA_MOE_GET_MACHINE));
    ASSERT_NE(get, nullptr);
    ASSERT_EQ(get()->build, kMachineBuild);
    std::string error;
    const bulkhead_host host = keeping(error);
    std::string memory(4096, '\0');
    Machine* machine = nullptr;
    EXPECT_NE(get()->open(&host, memory.data(), memory.size(), &machine), BULKHEAD_OK);
    EXPECT_EQ(machine, nullptr);
    EXPECT_THAT(error, testing::StartsWith("llama_moe on GPU 0, finding the GPU: "));
}
#endif

}  // namespace
}  // namespace bulkhead::llama_moe::gpu
