// SPDX-License-Identifier: Apache-2.0
#include "tests/plugins/thread_device.h"

#include <cstdlib>
#include <cstring>

namespace bulkhead::test {
namespace {

struct ThreadDevice {
    uint64_t used = 0;
};

ThreadDevice& of(bulkhead_device* device) {
    return *reinterpret_cast<ThreadDevice*>(device);
}
GroupEnd& of(bulkhead_group* group) {
    return *reinterpret_cast<GroupEnd*>(group);
}

size_t sizeOf(bulkhead_dtype type) {
    switch (type) {
        case BULKHEAD_F64:
            return 8;
        case BULKHEAD_BF16:
            return 2;
        case BULKHEAD_U8:
            return 1;
        default:
            return 4;
    }
}

constexpr size_t kHeader = 64;

bulkhead_status open(const bulkhead_host*, int32_t, bulkhead_device** out) {
    *out = reinterpret_cast<bulkhead_device*>(new ThreadDevice);
    return BULKHEAD_OK;
}

void close(bulkhead_device* device) {
    delete &of(device);
}

bulkhead_status describe(bulkhead_device* device, bulkhead_device_info* out) {
    std::strcpy(out->name, "threads");
    out->memory_total = 0;
    out->memory_used = of(device).used;
    out->memory_is_host = 1;
    return BULKHEAD_OK;
}

bulkhead_status alloc(bulkhead_device* device, bulkhead_memory, size_t bytes, void** out) {
    const size_t whole = (bytes + kHeader + 63) / 64 * 64;
    auto* memory = static_cast<char*>(std::aligned_alloc(64, whole));
    if (memory == nullptr) return BULKHEAD_OUT_OF_MEMORY;
    std::memset(memory, 0, whole);
    std::memcpy(memory, &bytes, sizeof(bytes));
    of(device).used += bytes;
    *out = memory + kHeader;
    return BULKHEAD_OK;
}

void release(bulkhead_device* device, void* memory) {
    if (memory == nullptr) return;
    auto* start = static_cast<char*>(memory) - kHeader;
    size_t bytes = 0;
    std::memcpy(&bytes, start, sizeof(bytes));
    of(device).used -= bytes;
    std::free(start);
}

bulkhead_status copy(bulkhead_device*, void* to, const void* from, size_t bytes, bulkhead_stream*) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return BULKHEAD_OK;
}

bulkhead_status zero(bulkhead_device*, void* to, size_t bytes, bulkhead_stream*) {
    if (bytes > 0) std::memset(to, 0, bytes);
    return BULKHEAD_OK;
}

bulkhead_status synchronize(bulkhead_device*, bulkhead_stream*) {
    return BULKHEAD_OK;
}

bulkhead_status allGather(bulkhead_group* group, const void* from, void* to, size_t count,
                          bulkhead_dtype type, bulkhead_stream*) {
    Meeting& meeting = of(group).meeting();
    meeting.from[of(group).rank()] = from;
    meeting.barrier.arrive_and_wait();
    const size_t bytes = count * sizeOf(type);
    for (size_t r = 0; r < of(group).size(); ++r)
        std::memcpy(static_cast<char*>(to) + r * bytes, meeting.from[r], bytes);
    meeting.barrier.arrive_and_wait();
    return BULKHEAD_OK;
}

template <class T>
void sumSlices(GroupEnd& group, void* to, size_t count) {
    T* out = static_cast<T*>(to);
    std::memset(out, 0, count * sizeof(T));
    for (size_t r = 0; r < group.size(); ++r) {
        const T* slice = static_cast<const T*>(group.meeting().from[r]) + group.rank() * count;
        for (size_t i = 0; i < count; ++i) out[i] += slice[i];
    }
}

bulkhead_status reduceScatter(bulkhead_group* group, const void* from, void* to, size_t count,
                              bulkhead_dtype type, bulkhead_stream*) {
    Meeting& meeting = of(group).meeting();
    meeting.from[of(group).rank()] = from;
    meeting.barrier.arrive_and_wait();
    if (type == BULKHEAD_F64)
        sumSlices<double>(of(group), to, count);
    else
        sumSlices<float>(of(group), to, count);
    meeting.barrier.arrive_and_wait();
    return BULKHEAD_OK;
}

bulkhead_status allToAll(bulkhead_group* group, const void* from, const size_t* sendBytes, void* to,
                         const size_t* receiveBytes, bulkhead_stream*) {
    Meeting& meeting = of(group).meeting();
    const size_t me = of(group).rank();
    meeting.from[me] = from;
    meeting.sizes[me] = sendBytes;
    meeting.barrier.arrive_and_wait();
    bulkhead_status status = BULKHEAD_OK;
    auto* out = static_cast<char*>(to);
    for (size_t r = 0; r < of(group).size(); ++r) {
        if (meeting.sizes[r][me] != receiveBytes[r]) status = BULKHEAD_INVALID;
        size_t at = 0;
        for (size_t before = 0; before < me; ++before) at += meeting.sizes[r][before];
        if (status == BULKHEAD_OK && receiveBytes[r] > 0)
            std::memcpy(out, static_cast<const char*>(meeting.from[r]) + at, receiveBytes[r]);
        out += receiveBytes[r];
    }
    meeting.barrier.arrive_and_wait();
    return status;
}

bulkhead_status barrier(bulkhead_group* group) {
    of(group).meeting().barrier.arrive_and_wait();
    return BULKHEAD_OK;
}

const bulkhead_device_api kApi = [] {
    bulkhead_device_api api{};
    api.abi_version = BULKHEAD_DEVICE_ABI;
    api.struct_size = sizeof(api);
    api.name = "threads";
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
    api.barrier = barrier;
    return api;
}();

}  // namespace

const bulkhead_device_api* threadDeviceApi() {
    return &kApi;
}

}  // namespace bulkhead::test
