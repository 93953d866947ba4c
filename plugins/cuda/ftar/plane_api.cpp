// SPDX-License-Identifier: Apache-2.0
#include "plugins/cuda/ftar/plane_api.h"

#include <bit>

#include "plugins/cuda/abi_status.h"

namespace bulkhead::cuda {
namespace {

static_assert(sizeof(Place) == sizeof(bulkhead_place));

/// Runs `body`, a function to absl::Status; nothing that is thrown leaves it.
template <class Body>
bulkhead_status guarded(bulkhead_plane* plane, Body&& body) noexcept {
    try {
        const absl::Status status = body(*plane->plane);
        if (!status.ok()) plane->why = std::string(status.message());
        return codeOf(status);
    } catch (...) {
        return BULKHEAD_INTERNAL;
    }
}

void close(bulkhead_plane* plane) {
    delete plane;
}

const char* why(const bulkhead_plane* plane) {
    return plane->why.c_str();
}

bulkhead_status staging(bulkhead_plane* plane, size_t bytes, void** out) {
    return guarded(plane, [&](DataPlane& p) {
        const absl::StatusOr<void*> memory = p.allocatePinned(bytes);
        *out = memory.ok() ? *memory : nullptr;
        return memory.status();
    });
}

bulkhead_status enter(bulkhead_plane* plane) {
    return guarded(plane, [](DataPlane& p) { return p.enter(); });
}

bulkhead_status leave(bulkhead_plane* plane) {
    return guarded(plane, [](DataPlane& p) { return p.leave(); });
}

bulkhead_status place(bulkhead_plane* plane, const void* memory, size_t bytes,
                      bulkhead_place* out) {
    return guarded(plane, [&](DataPlane& p) {
        const absl::StatusOr<Place> where = p.place(memory, bytes);
        if (where.ok()) *out = std::bit_cast<bulkhead_place>(*where);
        return where.status();
    });
}

bulkhead_status reach(bulkhead_plane* plane, const bulkhead_place* at, size_t bytes,
                      const void** out) {
    return guarded(plane, [&](DataPlane& p) {
        const auto where = std::bit_cast<Place>(*at);
        const absl::StatusOr<const void*> memory = p.reach(where, bytes);
        *out = memory.ok() ? *memory : nullptr;
        return memory.status();
    });
}

bulkhead_status submit(bulkhead_plane* plane, const bulkhead_sum* sum) {
    return guarded(plane, [&](DataPlane& p) -> absl::Status {
        if (sum->struct_size < sizeof(bulkhead_sum) || sum->sources > kMaxSources)
            return absl::InvalidArgumentError("submit: too many sources, or another ABI version");
        Sum told{};
        told.to = reinterpret_cast<uint64_t>(sum->to);
        told.count = sum->count;
        told.narrow = sum->narrow_sources;
        told.sources = sum->sources;
        told.narrowTo = sum->narrow_to != 0;
        told.rounded = sum->rounded != 0;
        for (uint32_t s = 0; s < sum->sources; ++s)
            told.from[s] = reinterpret_cast<uint64_t>(sum->from[s]);
        return p.submit(told);
    });
}

bulkhead_status finish(bulkhead_plane* plane, uint32_t timeoutMs) {
    return guarded(plane,
                   [&](DataPlane& p) { return p.finish(std::chrono::milliseconds(timeoutMs)); });
}

bulkhead_status park(bulkhead_plane* plane) {
    return guarded(plane, [](DataPlane& p) { return p.park(); });
}

void abort(bulkhead_plane* plane) {
    plane->plane->abort();
}

}  // namespace

bulkhead_data_plane_api planeApi(decltype(bulkhead_data_plane_api::open) open) {
    return {BULKHEAD_DATA_PLANE_ABI,
            sizeof(bulkhead_data_plane_api),
            open,
            close,
            why,
            staging,
            enter,
            leave,
            place,
            reach,
            submit,
            finish,
            park,
            abort};
}

}  // namespace bulkhead::cuda
