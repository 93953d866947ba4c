// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <bit>
#include <memory>

#include "plugins/cuda/ftar/plane_api.h"
#include "tests/cuda/thread_machine.h"

namespace bulkhead::cuda::testing {

/// The plugin's own table over threads in the kernel's place, for one rank.
class ThreadPlane {
  public:
    ThreadPlane(World& world, uint64_t process, uint32_t blocks = kUsualBlocks) {
        auto machine = std::make_unique<ThreadMachine>(world, process);
        machine_ = machine.get();
        DataPlane::Options options;
        options.blocks = blocks;
        options.eager = std::chrono::microseconds(0);  // the kernel's threads need the processors
        options.chunkLimit = options.endLimit = std::chrono::minutes(10);
        plane_.plane = DataPlane::create(std::move(machine), options).value();
    }
    const bulkhead_data_plane_api* api() const { return &kApi; }
    bulkhead_plane* plane() { return &plane_; }
    ThreadMachine& machine() { return *machine_; }

    /// Number of sources of each type in all planes' sums that have several sources.
    static inline std::atomic<uint64_t> narrowSources = 0, wideSources = 0;

  private:
    static bulkhead_data_plane_api counted() {
        bulkhead_data_plane_api api = planeApi(nullptr);
        api.submit = [](bulkhead_plane* plane, const bulkhead_sum* sum) {
            if (sum->sources > 1) {
                const auto narrow = static_cast<uint64_t>(std::popcount(sum->narrow_sources));
                narrowSources += narrow;
                wideSources += sum->sources - narrow;
            }
            return planeApi(nullptr).submit(plane, sum);
        };
        return api;
    }
    static inline const bulkhead_data_plane_api kApi = counted();
    ThreadMachine* machine_ = nullptr;
    bulkhead_plane plane_;
};

}  // namespace bulkhead::cuda::testing
