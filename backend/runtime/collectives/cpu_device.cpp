// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/collectives/cpu_device.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "backend/common/clock.h"
#include "backend/runtime/collectives/elements.h"
#include "backend/runtime/collectives/group.h"

using bulkhead::MonoNs;
using bulkhead::runtime::ElementType;

struct bulkhead_device {
    bulkhead_host host{};
    bulkhead::SystemClock clock;
    std::atomic<uint64_t> used{0};
    bulkhead::runtime::SharedHeap heap;
};

/// All work is done when a call returns, so a stream has nothing to remember.
struct bulkhead_stream {};

struct bulkhead_group {
    bulkhead_device* device = nullptr;
    std::unique_ptr<bulkhead::runtime::Group> group;
};

namespace {

constexpr size_t kAlign = 64;

bulkhead_status fail(const bulkhead_device* device, bulkhead_status code,
                     const std::string& line) noexcept {
    if (device != nullptr && device->host.error != nullptr)
        device->host.error(device->host.context, line.c_str());
    return code;
}

bulkhead_status codeOf(const absl::Status& status) {
    switch (status.code()) {
        case absl::StatusCode::kOk:
            return BULKHEAD_OK;
        case absl::StatusCode::kAborted:
            return BULKHEAD_ABORTED;
        case absl::StatusCode::kInvalidArgument:
        case absl::StatusCode::kPermissionDenied:
        case absl::StatusCode::kAlreadyExists:
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

bulkhead_status report(const bulkhead_device* device, const absl::Status& status) {
    if (status.ok()) return BULKHEAD_OK;
    return fail(device, codeOf(status), std::string(status.message()));
}

/// Runs `body`, which may throw (out of memory at worst); nothing leaves it.
template <class Body>
bulkhead_status guarded(const bulkhead_device* device, Body&& body) noexcept {
    try {
        return body();
    } catch (const std::bad_alloc&) {
        return fail(device, BULKHEAD_OUT_OF_MEMORY, "out of memory; use a smaller model or batch");
    } catch (...) {
        return fail(device, BULKHEAD_INTERNAL, "unexpected error inside the CPU device");
    }
}

bool knownType(bulkhead_dtype type) {
    return type >= BULKHEAD_F32 && type <= BULKHEAD_U8;
}

ElementType elementType(bulkhead_dtype type) {
    switch (type) {
        case BULKHEAD_F32:
            return ElementType::kF32;
        case BULKHEAD_BF16:
            return ElementType::kBf16;
        case BULKHEAD_F64:
            return ElementType::kF64;
        case BULKHEAD_I32:
            return ElementType::kI32;
        default:
            return ElementType::kU8;
    }
}

bulkhead_status openDevice(const bulkhead_host* host, int32_t index, bulkhead_device** out) {
    if (out == nullptr) return BULKHEAD_INVALID;
    *out = nullptr;
    if (index != 0) {
        if (host != nullptr && host->error != nullptr)
            host->error(host->context, "the CPU device has index 0 only");
        return BULKHEAD_UNAVAILABLE;
    }
    *out = new (std::nothrow) bulkhead_device();
    if (*out == nullptr) return BULKHEAD_OUT_OF_MEMORY;
    if (host != nullptr) (*out)->host = *host;
    return BULKHEAD_OK;
}

void closeDevice(bulkhead_device* device) {
    delete device;
}

bulkhead_status describe(bulkhead_device* device, bulkhead_device_info* out) {
    std::memset(out, 0, sizeof *out);
    std::strncpy(out->name, "CPU", sizeof out->name - 1);
    const long pages = ::sysconf(_SC_PHYS_PAGES);
    const long page = ::sysconf(_SC_PAGESIZE);
    if (pages > 0 && page > 0)
        out->memory_total = static_cast<uint64_t>(pages) * static_cast<uint64_t>(page);
    out->memory_used = device->used.load(std::memory_order_relaxed);
    out->memory_is_host = 1;
    return BULKHEAD_OK;
}

/// The size stands in front of each block, one alignment unit before it.
bulkhead_status allocate(bulkhead_device* device, bulkhead_memory kind, size_t bytes, void** out) {
    *out = nullptr;
    if (bytes > SIZE_MAX / 2)
        return fail(device, BULKHEAD_OUT_OF_MEMORY, "an allocation larger than the address space");
    if (kind == BULKHEAD_MEMORY_PEER) {
        const absl::StatusOr<void*> memory = device->heap.allocate(bytes);
        if (!memory.ok()) return report(device, memory.status());
        *out = *memory;
        return BULKHEAD_OK;
    }
    const size_t whole = (bytes + kAlign - 1) / kAlign * kAlign + kAlign;
    auto* block = static_cast<std::byte*>(std::aligned_alloc(kAlign, whole));
    if (block == nullptr)
        return fail(
            device, BULKHEAD_OUT_OF_MEMORY,
            "cannot allocate " + std::to_string(bytes) + " bytes; use a smaller model or batch");
    std::memset(block, 0, whole);
    std::memcpy(block, &bytes, sizeof bytes);
    device->used.fetch_add(bytes, std::memory_order_relaxed);
    *out = block + kAlign;
    return BULKHEAD_OK;
}

void release(bulkhead_device* device, void* memory) {
    if (memory == nullptr || device->heap.free(memory)) return;
    std::byte* block = static_cast<std::byte*>(memory) - kAlign;
    size_t bytes = 0;
    std::memcpy(&bytes, block, sizeof bytes);
    device->used.fetch_sub(bytes, std::memory_order_relaxed);
    std::free(block);
}

bulkhead_status createStream(bulkhead_device*, bulkhead_stream** out) {
    *out = new (std::nothrow) bulkhead_stream();
    return *out == nullptr ? BULKHEAD_OUT_OF_MEMORY : BULKHEAD_OK;
}

void destroyStream(bulkhead_device*, bulkhead_stream* stream) {
    delete stream;
}

bulkhead_status synchronize(bulkhead_device*, bulkhead_stream*) {
    return BULKHEAD_OK;
}

bulkhead_status copy(bulkhead_device*, void* to, const void* from, size_t bytes, bulkhead_stream*) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return BULKHEAD_OK;
}

bulkhead_status zero(bulkhead_device*, void* to, size_t bytes, bulkhead_stream*) {
    if (bytes > 0) std::memset(to, 0, bytes);
    return BULKHEAD_OK;
}

bulkhead_status reduceCopy(bulkhead_device* device, void* to, const void* const* from,
                           int32_t sources, size_t count, bulkhead_dtype fromType,
                           bulkhead_dtype toType, bulkhead_stream*) {
    if (sources < 1 || !knownType(fromType) || !knownType(toType) ||
        !bulkhead::runtime::reduceElements(to, elementType(toType),
                                           {from, static_cast<size_t>(sources)},
                                           elementType(fromType), count))
        return fail(device, BULKHEAD_INVALID,
                    "reduce_copy: needs a source, and floating types or two equal integer types");
    return BULKHEAD_OK;
}

bulkhead_status createGroup(bulkhead_device* device, const bulkhead_group_desc* desc,
                            bulkhead_group** out) {
    *out = nullptr;
    if (desc->struct_size < sizeof(bulkhead_group_desc) || desc->size < 1 ||
        desc->name == nullptr || desc->peers == nullptr)
        return fail(device, BULKHEAD_INVALID,
                    "group_create: the description is incomplete or of another ABI version");
    return guarded(device, [&] {
        bulkhead::runtime::GroupOptions options;
        options.name = desc->name;
        std::ranges::copy(desc->secret, options.secret.words.begin());
        options.rank = desc->rank;
        const auto text = [](const char* s) { return std::string(s == nullptr ? "" : s); };
        for (int32_t i = 0; i < desc->size; ++i)
            options.peers.push_back(
                {text(desc->peers[i].host), text(desc->peers[i].data), text(desc->peers[i].shm)});
        options.timeout = static_cast<MonoNs>(desc->timeout_ms) * bulkhead::kMillisecond;
        options.listenFd = desc->listen_fd;
        if (desc->progress != nullptr)
            options.progress = [call = desc->progress, context = desc->progress_context] {
                call(context);
            };
        options.clock = &device->clock;
        auto group = bulkhead::runtime::makeGroup(std::move(options));
        if (!group.ok()) return report(device, group.status());
        *out = new bulkhead_group{device, std::move(*group)};
        return BULKHEAD_OK;
    });
}

void destroyGroup(bulkhead_group* group) {
    delete group;
}

void abortGroup(bulkhead_group* group) {
    group->group->abort("the group was aborted");
}

bulkhead_status allGather(bulkhead_group* group, const void* from, void* to, size_t count,
                          bulkhead_dtype type, bulkhead_stream*) {
    if (!knownType(type)) return fail(group->device, BULKHEAD_INVALID, "all_gather: unknown type");
    return guarded(group->device, [&] {
        const size_t bytes = count * elementSize(elementType(type));
        const auto ranks = static_cast<size_t>(group->group->size());
        return report(group->device,
                      group->group->allGather({static_cast<const std::byte*>(from), bytes},
                                              {static_cast<std::byte*>(to), bytes * ranks}));
    });
}

bulkhead_status reduceScatter(bulkhead_group* group, const void* from, void* to, size_t count,
                              bulkhead_dtype type, bulkhead_stream*) {
    if (!knownType(type))
        return fail(group->device, BULKHEAD_INVALID, "reduce_scatter: unknown type");
    return guarded(group->device, [&] {
        return report(group->device,
                      group->group->reduceScatter(from, to, count, elementType(type)));
    });
}

bulkhead_status allToAll(bulkhead_group* group, const void* from, const size_t* sendBytes, void* to,
                         const size_t* recvBytes, bulkhead_stream*) {
    return guarded(group->device, [&] {
        const auto ranks = static_cast<size_t>(group->group->size());
        return report(group->device,
                      group->group->allToAll(from, {sendBytes, ranks}, to, {recvBytes, ranks}));
    });
}

bulkhead_status barrier(bulkhead_group* group) {
    return guarded(group->device, [&] { return report(group->device, group->group->barrier()); });
}

const bulkhead_device_api kApi = {
    BULKHEAD_DEVICE_ABI,
    sizeof(bulkhead_device_api),
    "cpu",
    openDevice,
    closeDevice,
    describe,
    allocate,
    release,
    createStream,
    destroyStream,
    synchronize,
    copy,
    zero,
    reduceCopy,
    createGroup,
    destroyGroup,
    abortGroup,
    allGather,
    reduceScatter,
    allToAll,
    barrier,
};

}  // namespace

namespace bulkhead::runtime {

const bulkhead_device_api* cpuDeviceApi(uint32_t abiVersion) {
    return abiVersion == BULKHEAD_DEVICE_ABI ? &kApi : nullptr;
}

const SharedHeap* cpuDeviceHeap(const bulkhead_device* device) {
    return &device->heap;
}

}  // namespace bulkhead::runtime
