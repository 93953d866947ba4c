// SPDX-License-Identifier: Apache-2.0
// The place of gpu_kernel_test and gpu_model_test that is a GPU. Its groups are threads that share
// it: collectives go through host memory to those of thread_device, since NCCL wants a GPU a rank.
#include "tests/plugins/gpu_place.h"

#include <dlfcn.h>

#include <numeric>

#include "tests/plugins/thread_device.h"
#include "tests/support/gpu_plugin.h"

namespace bulkhead::test {
namespace {

support::GpuPlugin& plugin() {
    static support::GpuPlugin plugin(BULKHEAD_CUDA_PLUGIN);
    return plugin;
}

/// One copy of device memory on the host, there and back over the default stream.
class Staged {
  public:
    Staged(const void* device, size_t bytes) : bytes_(bytes) { move(bytes_.data(), device, bytes); }
    explicit Staged(size_t bytes) : bytes_(bytes) {}
    char* data() { return bytes_.data(); }
    void to(void* device) { move(device, bytes_.data(), bytes_.size()); }

  private:
    static void move(void* to, const void* from, size_t bytes) {
        static bulkhead_device* gpu = [] {
            bulkhead_device* opened = nullptr;
            EXPECT_EQ(plugin().device().open(plugin().host(), 0, &opened), BULKHEAD_OK);
            return opened;
        }();
        if (bytes == 0) return;
        EXPECT_EQ(plugin().device().copy(gpu, to, from, bytes, nullptr), BULKHEAD_OK);
        EXPECT_EQ(plugin().device().stream_synchronize(gpu, nullptr), BULKHEAD_OK);
    }
    std::vector<char> bytes_;
};

size_t sizeOf(bulkhead_dtype type) {
    return type == BULKHEAD_F64 ? 8 : type == BULKHEAD_BF16 ? 2 : type == BULKHEAD_U8 ? 1 : 4;
}

size_t ranksOf(bulkhead_group* group) {
    return reinterpret_cast<GroupEnd*>(group)->size();
}

bulkhead_status allGather(bulkhead_group* group, const void* from, void* to, size_t count,
                          bulkhead_dtype type, bulkhead_stream*) {
    Staged in(from, count * sizeOf(type)), out(ranksOf(group) * count * sizeOf(type));
    const bulkhead_status status =
        threadDeviceApi()->all_gather(group, in.data(), out.data(), count, type, nullptr);
    out.to(to);
    return status;
}

bulkhead_status reduceScatter(bulkhead_group* group, const void* from, void* to, size_t count,
                              bulkhead_dtype type, bulkhead_stream*) {
    Staged in(from, ranksOf(group) * count * sizeOf(type)), out(count * sizeOf(type));
    const bulkhead_status status =
        threadDeviceApi()->reduce_scatter(group, in.data(), out.data(), count, type, nullptr);
    out.to(to);
    return status;
}

bulkhead_status allToAll(bulkhead_group* group, const void* from, const size_t* sendBytes, void* to,
                         const size_t* receiveBytes, bulkhead_stream*) {
    const auto all = [&](const size_t* bytes) {
        return std::accumulate(bytes, bytes + ranksOf(group), size_t{0});
    };
    Staged in(from, all(sendBytes)), out(all(receiveBytes));
    const bulkhead_status status = threadDeviceApi()->all_to_all(group, in.data(), sendBytes,
                                                                 out.data(), receiveBytes, nullptr);
    out.to(to);
    return status;
}

GpuPlace findGpu() {
    GpuPlace place;
    place.name = "Gpu";
    place.whyNot = plugin().whyNot();
    if (!place.whyNot.empty()) return place;
    static bulkhead_device_api api = plugin().device();
    api.all_gather = allGather;
    api.reduce_scatter = reduceScatter;
    api.all_to_all = allToAll;
    place.device = &api;
    void* module = ::dlopen(BULKHEAD_MODULE, RTLD_NOW | RTLD_LOCAL);
    EXPECT_NE(module, nullptr) << ::dlerror();
    const auto get = reinterpret_cast<llama_moe::gpu::GetMachine>(
        ::dlsym(module, BULKHEAD_LLAMA_MOE_GET_MACHINE));
    place.machine = get();
    return place;
}

}  // namespace

const std::vector<GpuPlace>& gpuPlaces() {
    static const std::vector<GpuPlace> places{findGpu()};
    return places;
}

}  // namespace bulkhead::test
