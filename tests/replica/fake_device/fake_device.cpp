// SPDX-License-Identifier: Apache-2.0
// A device plugin that behaves as a GPU's does as far as the runtime can tell: its memory is out of
// the CPU's reach, its streams work on their own, it copies and adds for the exchange, and peers in
// other processes read its memory where it is.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "backend/runtime/collectives/cpu_device.h"
#include "plugins/cuda/ftar/plane_api.h"
#include "tests/cuda/thread_machine.h"
#include "tests/replica/fake_device/fake_memory.h"
#include "tests/replica/fake_device/fake_stream.h"

namespace bulkhead::testing {
namespace {

FakeMemory& memory() {
    return FakeMemory::ofThisProcess();
}
const bulkhead_device_api& cpu() {
    return *runtime::cpuDeviceApi(BULKHEAD_DEVICE_ABI);
}

bulkhead_status describe(bulkhead_device* device, bulkhead_device_info* out) {
    const bulkhead_status status = cpu().describe(device, out);
    std::strncpy(out->name, "a GPU for tests", sizeof out->name - 1);
    out->memory_is_host = 0;
    return status;
}

/// BULKHEAD_FAKE_PEER_BLOCKS: so many fit on it; any number where it is not set.
bool full() {
    static int taken = 0;
    const char* most = std::getenv("BULKHEAD_FAKE_PEER_BLOCKS");
    return most != nullptr && ++taken > std::atoi(most);
}

bulkhead_status alloc(bulkhead_device* device, bulkhead_memory kind, size_t bytes, void** out) {
    if (kind == BULKHEAD_MEMORY_HOST) return cpu().alloc(device, kind, bytes, out);
    if (kind == BULKHEAD_MEMORY_PEER && full()) return BULKHEAD_OUT_OF_MEMORY;
    *out = memory().allocate(bytes == 0 ? 1 : bytes);
    return *out != nullptr ? BULKHEAD_OK : BULKHEAD_OUT_OF_MEMORY;
}
void release(bulkhead_device* device, void* at) {
    if (!memory().release(at)) cpu().free(device, at);
}

bulkhead_status createStream(bulkhead_device*, bulkhead_stream** out) {
    *out = new bulkhead_stream;
    return BULKHEAD_OK;
}
void destroyStream(bulkhead_device*, bulkhead_stream* stream) {
    delete stream;
}
bulkhead_status synchronize(bulkhead_device*, bulkhead_stream* stream) {
    if (stream != nullptr) stream->synchronize();
    return BULKHEAD_OK;
}

/// On the default stream everything is done at once.
bulkhead_status on(bulkhead_stream* stream, std::function<void()> work) {
    if (stream == nullptr)
        work();
    else
        stream->put(std::move(work));
    return BULKHEAD_OK;
}
bulkhead_status copy(bulkhead_device*, void* to, const void* from, size_t bytes,
                     bulkhead_stream* stream) {
    return on(stream, [=] {
        std::memcpy(memory().work(static_cast<std::byte*>(to)),
                    memory().work(static_cast<const std::byte*>(from)), bytes);
    });
}
bulkhead_status zero(bulkhead_device*, void* to, size_t bytes, bulkhead_stream* stream) {
    return on(stream, [=] { std::memset(memory().work(static_cast<std::byte*>(to)), 0, bytes); });
}
bulkhead_status reduceCopy(bulkhead_device* device, void* to, const void* const* from,
                           int32_t sources, size_t count, bulkhead_dtype fromType,
                           bulkhead_dtype toType, bulkhead_stream* stream) {
    std::vector<const void*> work;
    for (int32_t s = 0; s < sources; ++s)
        work.push_back(memory().work(static_cast<const std::byte*>(from[s])));
    return on(stream, [=] {
        (void)cpu().reduce_copy(device, memory().work(static_cast<std::byte*>(to)), work.data(),
                                sources, count, fromType, toType, nullptr);
    });
}

#ifndef FAKE_STAGED

// ---- the exchange -----------------------------------------------------------------------------

/// Memory of other processes instead of a world's.
class FakeMachine final : public cuda::testing::ThreadMachine {
  public:
    FakeMachine() : ThreadMachine(none(), 0) {}
    absl::StatusOr<cuda::Place> place(const void* at, size_t bytes) override {
        return memory().place(at, bytes);
    }
    absl::StatusOr<Block> map(const cuda::Place& place) override {
        return FakeMemory::mapPeer(place);
    }
    void unmap(const Block& block) override { ::munmap(block.base, block.bytes); }

  private:
    static cuda::testing::World& none() {
        static cuda::testing::World world;
        return world;
    }
};

bulkhead_status openPlane(bulkhead_device*, uint32_t blocks, bulkhead_plane** out) {
    cuda::DataPlane::Options options;
    if (blocks != 0) options.blocks = blocks;
    options.eager = std::chrono::microseconds(0);  // the kernel's threads need the processors
    options.chunkLimit = options.endLimit = std::chrono::minutes(10);
    auto plane = cuda::DataPlane::create(std::make_unique<FakeMachine>(), options);
    *out = plane.ok() ? new bulkhead_plane{*std::move(plane), {}} : nullptr;
    return plane.ok() ? BULKHEAD_OK : BULKHEAD_INTERNAL;
}

const bulkhead_data_plane_api kUsual = cuda::planeApi(openPlane);

bulkhead_status submit(bulkhead_plane* plane, const bulkhead_sum* sum) {
    bulkhead_sum here = *sum;
    std::vector<const void*> from;
    for (uint32_t s = 0; s < sum->sources; ++s)
        from.push_back(memory().work(static_cast<const std::byte*>(sum->from[s])));
    here.from = from.data();
    here.to = memory().work(static_cast<std::byte*>(sum->to));
    return kUsual.submit(plane, &here);
}

const bulkhead_data_plane_api kPlaneApi = [] {
    bulkhead_data_plane_api api = kUsual;
    api.submit = submit;
    return api;
}();
#endif

const bulkhead_device_api kApi = [] {
    bulkhead_device_api api = cpu();  // groups are of one rank: the CPU's do
#ifdef FAKE_STAGED
    api.name = "fake_staged";
#else
    api.name = "fake";
#endif
    api.describe = describe;
    api.alloc = alloc;
    api.free = release;
    api.stream_create = createStream;
    api.stream_destroy = destroyStream;
    api.stream_synchronize = synchronize;
    api.copy = copy;
    api.zero = zero;
    api.reduce_copy = reduceCopy;
    return api;
}();

}  // namespace
}  // namespace bulkhead::testing

extern "C" __attribute__((visibility("default"))) const bulkhead_device_api*
bulkhead_device_get_api(uint32_t version) {
    return version == BULKHEAD_DEVICE_ABI ? &bulkhead::testing::kApi : nullptr;
}
/// Exported for tests that load the plugin.
extern "C" __attribute__((visibility("default"))) void bulkhead_fake_hold_streams(int hold) {
    bulkhead_stream::held() = hold != 0;
    bulkhead_stream::held().notify_all();
}
#ifndef FAKE_STAGED  // ... where the runtime moves gradients through host memory
extern "C" __attribute__((visibility("default"))) const bulkhead_data_plane_api*
bulkhead_data_plane_get_api(uint32_t version) {
    return version == BULKHEAD_DATA_PLANE_ABI ? &bulkhead::testing::kPlaneApi : nullptr;
}
#endif
