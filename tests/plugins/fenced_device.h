// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <vector>

#include "bulkhead/device.h"

namespace bulkhead::test {

/// A device as unkind as a GPU: the CPU that reaches into its memory dies, and what is put on its
/// stream happens as late as the ABI allows, when somebody waits. Groups are those of
/// thread_device.
const bulkhead_device_api* fencedDeviceApi();

/// One of them, for machines that compute on it. One thread at a time.
class FencedDevice {
  public:
    FencedDevice();
    ~FencedDevice();
    FencedDevice(const FencedDevice&) = delete;
    FencedDevice& operator=(const FencedDevice&) = delete;

    /// The device that `memory` is of, or null.
    static FencedDevice* of(const void* memory);

    void put(std::function<void()> work) { stream_.push_back(std::move(work)); }
    /// All that was put, and `work` after it, with the fence open.
    void run(const std::function<void()>& work = nullptr);

    void* allocate(bulkhead_memory kind, size_t bytes);
    void release(void* memory);
    size_t used() const { return used_; }

  private:
    bool inside(const void* memory) const;

    char* base_ = nullptr;
    size_t taken_ = 0;
    size_t used_ = 0;
    std::map<void*, size_t> blocks_;
    std::vector<std::function<void()>> stream_;
};

}  // namespace bulkhead::test
