// SPDX-License-Identifier: Apache-2.0
#include "tests/plugins/fenced_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "backend/common/threads.h"
#include "tests/plugins/thread_device.h"

namespace bulkhead::test {
namespace {

/// Address space of one device: never given out twice, so that late use of freed memory shows.
constexpr size_t kSpace = size_t{1} << 32;
constexpr size_t kPage = 4096;

Mutex devicesMutex;
std::vector<FencedDevice*> devices ABSL_GUARDED_BY(devicesMutex);

size_t pages(size_t bytes) {
    return (std::max<size_t>(bytes, 1) + kPage - 1) / kPage * kPage;
}

FencedDevice& in(bulkhead_device* device) {
    return *reinterpret_cast<FencedDevice*>(device);
}

}  // namespace

FencedDevice::FencedDevice() {
    void* space =
        ::mmap(nullptr, kSpace, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) std::abort();
    base_ = static_cast<char*>(space);
    const MutexLock lock(devicesMutex);
    devices.push_back(this);
}

FencedDevice::~FencedDevice() {
    ::munmap(base_, kSpace);
    const MutexLock lock(devicesMutex);
    devices.erase(std::find(devices.begin(), devices.end(), this));
}

bool FencedDevice::inside(const void* memory) const {
    const auto* at = static_cast<const char*>(memory);
    return at >= base_ && at < base_ + kSpace;
}

FencedDevice* FencedDevice::of(const void* memory) {
    const MutexLock lock(devicesMutex);
    for (FencedDevice* device : devices)
        if (device->inside(memory)) return device;
    return nullptr;
}

void FencedDevice::run(const std::function<void()>& work) {
    if (taken_ > 0) ::mprotect(base_, taken_, PROT_READ | PROT_WRITE);
    for (const auto& put : std::exchange(stream_, {})) put();
    if (work) work();
    if (taken_ > 0) ::mprotect(base_, taken_, PROT_NONE);
}

void* FencedDevice::allocate(bulkhead_memory kind, size_t bytes) {
    void* memory = nullptr;
    if (kind == BULKHEAD_MEMORY_HOST) {
        memory = std::aligned_alloc(64, (bytes + 64) / 64 * 64);
        std::memset(memory, 0, bytes);
    } else {
        if (kSpace - taken_ < pages(bytes)) return nullptr;
        memory = base_ + taken_;
        taken_ += pages(bytes);
    }
    blocks_[memory] = bytes;
    used_ += bytes;
    return memory;
}

void FencedDevice::release(void* memory) {
    run();  // as a GPU's free waits for what may still use the memory
    const auto block = blocks_.find(memory);
    if (block == blocks_.end()) std::abort();
    used_ -= block->second;
    if (inside(memory))
        ::madvise(memory, pages(block->second), MADV_DONTNEED);
    else
        std::free(memory);
    blocks_.erase(block);
}

namespace {

bulkhead_status open(const bulkhead_host*, int32_t, bulkhead_device** out) {
    *out = reinterpret_cast<bulkhead_device*>(new FencedDevice);
    return BULKHEAD_OK;
}

void close(bulkhead_device* device) {
    delete &in(device);
}

bulkhead_status describe(bulkhead_device* device, bulkhead_device_info* out) {
    *out = {};
    std::strcpy(out->name, "fenced");
    out->memory_used = in(device).used();
    return BULKHEAD_OK;
}

bulkhead_status alloc(bulkhead_device* device, bulkhead_memory kind, size_t bytes, void** out) {
    *out = in(device).allocate(kind, bytes);
    return *out != nullptr ? BULKHEAD_OK : BULKHEAD_OUT_OF_MEMORY;
}

void release(bulkhead_device* device, void* memory) {
    if (memory != nullptr) in(device).release(memory);
}

bulkhead_status copy(bulkhead_device* device, void* to, const void* from, size_t bytes,
                     bulkhead_stream*) {
    in(device).put([=] { std::memcpy(to, from, bytes); });
    return BULKHEAD_OK;
}

bulkhead_status zero(bulkhead_device* device, void* to, size_t bytes, bulkhead_stream*) {
    in(device).put([=] { std::memset(to, 0, bytes); });
    return BULKHEAD_OK;
}

bulkhead_status synchronize(bulkhead_device* device, bulkhead_stream*) {
    in(device).run();
    return BULKHEAD_OK;
}

/// A collective of thread_device, once both its ends' devices have come so far.
template <class Collective>
bulkhead_status collective(const void* memory, Collective&& body) {
    bulkhead_status status = BULKHEAD_INVALID;
    FencedDevice* device = FencedDevice::of(memory);
    if (device != nullptr) device->run([&] { status = body(*threadDeviceApi()); });
    return status;
}

bulkhead_status allGather(bulkhead_group* group, const void* from, void* to, size_t count,
                          bulkhead_dtype type, bulkhead_stream*) {
    return collective(to, [&](const bulkhead_device_api& api) {
        return api.all_gather(group, from, to, count, type, nullptr);
    });
}

bulkhead_status reduceScatter(bulkhead_group* group, const void* from, void* to, size_t count,
                              bulkhead_dtype type, bulkhead_stream*) {
    return collective(to, [&](const bulkhead_device_api& api) {
        return api.reduce_scatter(group, from, to, count, type, nullptr);
    });
}

bulkhead_status allToAll(bulkhead_group* group, const void* from, const size_t* sendBytes, void* to,
                         const size_t* receiveBytes, bulkhead_stream*) {
    return collective(from != nullptr ? from : to, [&](const bulkhead_device_api& api) {
        return api.all_to_all(group, from, sendBytes, to, receiveBytes, nullptr);
    });
}

const bulkhead_device_api kApi = [] {
    bulkhead_device_api api = *threadDeviceApi();
    api.name = "fenced";
    api.open = open;
    api.close = close;
    api.describe = describe;
    api.alloc = alloc;
    api.free = release;
    api.stream_synchronize = synchronize;
    api.copy = copy;
    api.zero = zero;
    api.all_gather = allGather;
    api.reduce_scatter = reduceScatter;
    api.all_to_all = allToAll;
    return api;
}();

}  // namespace

const bulkhead_device_api* fencedDeviceApi() {
    return &kApi;
}

}  // namespace bulkhead::test
