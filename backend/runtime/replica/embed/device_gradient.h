// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/runtime/ftar/device_plane.h"
#include "backend/runtime/replica/device_copy.h"
#include "backend/runtime/replica/plugin_host.h"
#include "bulkhead/device.h"

namespace bulkhead::runtime {

/// Gradient and sum of a program that computes on a device, in memory that its data plane exchanges
/// where it is. Thread: one.
class DeviceGradient {
  public:
    /// Takes `floats` zeros on the one device that this process sees, by the plugin `device`.
    /// Errors of loadDevice(), and of opening the device and its plane; NotFound also where the
    /// plugin has none.
    [[nodiscard]] static absl::StatusOr<std::unique_ptr<DeviceGradient>> create(
        const std::string& device, uint64_t floats);
    ~DeviceGradient() { close(); }

    DevicePlane plane() const { return {planeApi_, plane_}; }
    std::span<float> gradient() const { return gradient_; }
    std::span<float> reduced() const { return reduced_; }

    /// Between memory of the host and of the device; returns when it is done.
    [[nodiscard]] absl::Status copy(void* to, const void* from, size_t bytes);
    /// Returns where the device has `sum`: where it is, when that is reduced(), else a copy until
    /// the next call.
    [[nodiscard]] absl::StatusOr<float*> there(std::span<const float> sum);
    /// Beside what the device does; `to` lives until `done` was called, once, on any thread.
    void readSum(std::span<float> to, DeviceCopy::Done done);
    void awaitSum() { copier_->await(); }
    void giveUpSum() { copier_->giveUp(); }

    /// After the last exchange: ends what the plane runs on the device. The memory stays.
    void close();

  private:
    DeviceGradient() = default;
    absl::Status open(const std::string& device);
    absl::StatusOr<std::span<float>> take(bulkhead_memory kind, uint64_t floats);

    PluginLog log_;
    OpenDevice device_{.log = &log_};
    const bulkhead_data_plane_api* planeApi_ = nullptr;
    bulkhead_plane* plane_ = nullptr;
    std::unique_ptr<DeviceCopy> copier_;
    std::span<float> gradient_;
    std::span<float> reduced_;
    std::span<float> replayed_;  ///< a sum from before it trained; empty until there is one
};

}  // namespace bulkhead::runtime
