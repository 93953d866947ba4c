// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "bulkhead/data_plane.h"

namespace bulkhead::runtime {

/// A device that copies and adds for an exchange. Both outlive it.
struct DevicePlane {
    const bulkhead_data_plane_api* api = nullptr;
    bulkhead_plane* plane = nullptr;
    explicit operator bool() const { return api != nullptr; }
};

/// Host memory that the device reads and writes too, for what travels over a network. A plane's is
/// freed with it, so that of one membership is used again by the next. Threads: one at a time.
class StagingPool {
  public:
    explicit StagingPool(const DevicePlane& device) : device_(device) {}
    /// Nobody uses any of it any more.
    void reclaim() { used_ = 0; }
    /// At least so many bytes.
    [[nodiscard]] absl::StatusOr<std::byte*> take(size_t bytes);

  private:
    struct Area {
        std::byte* memory = nullptr;
        size_t bytes = 0;
    };
    const DevicePlane device_;
    std::vector<Area> areas_;
    size_t used_ = 0;  ///< the first ones of areas_
};

}  // namespace bulkhead::runtime
