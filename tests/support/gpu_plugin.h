// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>

#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "backend/common/threads.h"
#include "bulkhead/data_plane.h"

namespace bulkhead::support {

/// The CUDA device as the worker loads it: its two tables out of the shared object.
class GpuPlugin {
  public:
    explicit GpuPlugin(const char* path) {
        void* object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (object == nullptr) {
            error_ = dlerror();
            return;
        }
        const auto device =
            reinterpret_cast<bulkhead_device_get_api_fn>(dlsym(object, BULKHEAD_DEVICE_GET_API));
        const auto plane = reinterpret_cast<bulkhead_data_plane_get_api_fn>(
            dlsym(object, BULKHEAD_DATA_PLANE_GET_API));
        if (device == nullptr || plane == nullptr) {
            error_ = std::string(path) + " does not export both tables";
            return;
        }
        device_ = device(BULKHEAD_DEVICE_ABI);
        plane_ = plane(BULKHEAD_DATA_PLANE_ABI);
    }

    const bulkhead_device_api& device() const { return *device_; }
    const bulkhead_data_plane_api& plane() const { return *plane_; }
    /// The reason for which the first GPU does not answer here; empty: it does. Without the plugin
    /// itself: its error.
    std::string whyNot() {
        bulkhead_device* opened = nullptr;
        if (device_ != nullptr && device_->open(&host_, 0, &opened) == BULKHEAD_OK)
            device_->close(opened);
        return error();
    }

    const bulkhead_host* host() const { return &host_; }
    std::string error() {
        const MutexLock lock(mutex_);
        return error_;
    }

  private:
    Mutex mutex_;
    std::string error_ ABSL_GUARDED_BY(mutex_);
    bulkhead_host host_{this, [](void*, int32_t, const char*) {},
                        [](void* self, const char* line) {
                            auto& plugin = *static_cast<GpuPlugin*>(self);
                            const MutexLock lock(plugin.mutex_);
                            plugin.error_ = line;
                        }};
    const bulkhead_device_api* device_ = nullptr;
    const bulkhead_data_plane_api* plane_ = nullptr;
};

/// A rank on the first GPU, which must answer. Its memory goes with it.
class GpuRank {
  public:
    explicit GpuRank(GpuPlugin& plugin, uint32_t blocks = 0) : plugin_(plugin) {
        (void)plugin_.device().open(plugin_.host(), 0, &device_);
        if (device_ != nullptr) (void)plugin_.plane().open(device_, blocks, &plane_);
    }
    ~GpuRank() {
        if (plane_ != nullptr) plugin_.plane().close(plane_);
        for (void* memory : memory_) plugin_.device().free(device_, memory);
        if (device_ != nullptr) plugin_.device().close(device_);
    }
    GpuRank(const GpuRank&) = delete;
    GpuRank& operator=(const GpuRank&) = delete;

    /// Everything is there; else GpuPlugin::error() says why.
    bool ok() const { return plane_ != nullptr; }
    bulkhead_device* device() const { return device_; }
    bulkhead_plane* plane() const { return plane_; }

    /// Null when there is no memory.
    void* allocate(size_t bytes, bulkhead_memory kind = BULKHEAD_MEMORY_PEER) {
        void* memory = nullptr;
        if (plugin_.device().alloc(device_, kind, bytes, &memory) == BULKHEAD_OK)
            memory_.push_back(memory);
        return memory;
    }
    void release(void* memory) {
        std::erase(memory_, memory);
        plugin_.device().free(device_, memory);
    }
    float* floats(size_t count) { return static_cast<float*>(allocate(count * sizeof(float))); }

    /// Between any two memories; returns when it is done.
    bool copy(void* to, const void* from, size_t bytes) const {
        return plugin_.device().copy(device_, to, from, bytes, nullptr) == BULKHEAD_OK &&
               plugin_.device().stream_synchronize(device_, nullptr) == BULKHEAD_OK;
    }
    template <class T>
    std::vector<T> read(const void* from, size_t count) const {
        std::vector<T> values(count);
        if (!copy(values.data(), from, count * sizeof(T))) values.clear();
        return values;
    }

  private:
    GpuPlugin& plugin_;
    bulkhead_device* device_ = nullptr;
    bulkhead_plane* plane_ = nullptr;
    std::vector<void*> memory_;
};

}  // namespace bulkhead::support
