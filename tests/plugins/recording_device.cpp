// SPDX-License-Identifier: Apache-2.0
#include "tests/plugins/recording_device.h"

#include <sys/mman.h>

#include <cstring>
#include <map>

namespace bulkhead::llama_moe::gpu {

struct Machine {
    uint32_t processorsLeft = 0;
};

}  // namespace bulkhead::llama_moe::gpu

namespace bulkhead::test {
namespace {

using namespace llama_moe::gpu;

Record recorded;
std::map<const char*, size_t> deviceMemory, hostMemory;

bool onDevice(const void* at) {
    const auto* byte = static_cast<const char*>(at);
    const auto after = deviceMemory.upper_bound(byte);
    if (after == deviceMemory.begin()) return false;
    const auto& [begin, bytes] = *std::prev(after);
    return byte < begin + bytes;
}

bulkhead_status allocate(bulkhead_device*, bulkhead_memory kind, size_t bytes, void** out) {
    ++recorded.allocations;
    const size_t some = bytes == 0 ? 1 : bytes;
    *out = ::mmap(nullptr, some, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (*out == MAP_FAILED) return BULKHEAD_OUT_OF_MEMORY;
    (kind == BULKHEAD_MEMORY_HOST ? hostMemory : deviceMemory)[static_cast<char*>(*out)] = some;
    return BULKHEAD_OK;
}

void release(bulkhead_device*, void* memory) {
    for (auto* blocks : {&deviceMemory, &hostMemory}) {
        const auto it = blocks->find(static_cast<char*>(memory));
        if (it == blocks->end()) continue;
        ::munmap(memory, it->second);
        blocks->erase(it);
        return;
    }
}

bulkhead_status copy(bulkhead_device*, void* to, const void* from, size_t bytes, bulkhead_stream*) {
    if (onDevice(to) && onDevice(from)) return BULKHEAD_OK;
    (onDevice(to) ? recorded.bytesToDevice : recorded.bytesToHost) += bytes;
    std::memcpy(to, from, bytes);
    return BULKHEAD_OK;
}

bulkhead_device_api makeDevice() {
    bulkhead_device_api api{};
    api.abi_version = BULKHEAD_DEVICE_ABI;
    api.struct_size = sizeof api;
    api.name = "recording";
    api.describe = [](bulkhead_device*, bulkhead_device_info* out) {
        *out = {};
        return BULKHEAD_OK;
    };
    api.alloc = allocate;
    api.free = release;
    api.stream_synchronize = [](bulkhead_device*, bulkhead_stream*) {
        ++recorded.synchronisations;
        return BULKHEAD_OK;
    };
    api.copy = copy;
    api.zero = [](bulkhead_device*, void*, size_t, bulkhead_stream*) { return BULKHEAD_OK; };
    return api;
}

void launch(Machine*, Kernel, const void*, uint32_t) {
    ++recorded.kernels;
}

void product(Machine* machine, const MatrixProduct*) {
    ++recorded.products;
    if (machine->processorsLeft == 0) return;
    ++recorded.productsWithRoom;
    recorded.processorsLeft = machine->processorsLeft;
}

constexpr MachineApi kMachine{
    kMachineBuild,
    [](const bulkhead_host*, void*, size_t, Machine** out) {
        *out = new Machine;
        return BULKHEAD_OK;
    },
    [](Machine* machine) { delete machine; },
    launch,
    product,
    [](Machine*) { return BULKHEAD_OK; },
    [](Machine* machine, uint32_t processors) { machine->processorsLeft = processors; }};

}  // namespace

const bulkhead_device_api* recordingDevice() {
    static const bulkhead_device_api api = makeDevice();
    return &api;
}

const MachineApi* recordingMachine() {
    return &kMachine;
}

const Record& record() {
    return recorded;
}

void clearRecord() {
    recorded = {};
}

}  // namespace bulkhead::test
