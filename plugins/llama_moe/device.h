// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "bulkhead/device.h"
#include "plugins/common/bfloat16.h"

/// The device ABI as C++: status values, owned memory, typed collectives.
namespace bulkhead::llama_moe {

/// The device has already told the host why, so the message only names the call and toldHost holds.
[[nodiscard]] absl::Status fromDevice(bulkhead_status status, const char* call);
bool toldHost(const absl::Status& status);

template <class T>
constexpr bulkhead_dtype dtypeOf() {
    if constexpr (std::is_same_v<T, float>) return BULKHEAD_F32;
    if constexpr (std::is_same_v<T, Bf16>) return BULKHEAD_BF16;
    if constexpr (std::is_same_v<T, double>) return BULKHEAD_F64;
    if constexpr (std::is_same_v<T, int32_t>) return BULKHEAD_I32;
}

/// The device that a workload computes on, and its group. The tables outlive everything made with
/// it.
struct Device {
    const bulkhead_device_api* api = nullptr;
    bulkhead_device* device = nullptr;
    bulkhead_group* group = nullptr;
    size_t shard = 0;
    size_t shards = 1;
    bool memoryIsHost = true;  ///< this code may read and write device memory as it is

    /// Between any two memories, on the default stream; counts are elements.
    template <class T>
    absl::Status copy(T* to, const T* from, size_t count) const {
        return fromDevice(api->copy(device, to, from, count * sizeof(T), nullptr), "copy");
    }
    template <class T>
    absl::Status zero(T* to, size_t count) const {
        return fromDevice(api->zero(device, to, count * sizeof(T), nullptr), "zero");
    }
    absl::Status synchronize() const {
        return fromDevice(api->stream_synchronize(device, nullptr), "stream_synchronize");
    }

    /// Collectives; counts are elements per rank, as in the ABI.
    template <class T>
    absl::Status allGather(const T* from, T* to, size_t count) const {
        return fromDevice(api->all_gather(group, from, to, count, dtypeOf<T>(), nullptr),
                          "all_gather");
    }
    template <class T>
    absl::Status reduceScatter(const T* from, T* to, size_t count) const {
        return fromDevice(api->reduce_scatter(group, from, to, count, dtypeOf<T>(), nullptr),
                          "reduce_scatter");
    }
    absl::Status allToAll(const void* from, const size_t* sendBytes, void* to,
                          const size_t* receiveBytes) const {
        return fromDevice(api->all_to_all(group, from, sendBytes, to, receiveBytes, nullptr),
                          "all_to_all");
    }
};

/// Device memory for `T`s, that only grows. Contents are kept by nothing: growing loses them.
template <class T, bulkhead_memory kKind = BULKHEAD_MEMORY_DEVICE>
class Buffer {
  public:
    Buffer() = default;
    Buffer(Buffer&& other) noexcept { swap(other); }
    Buffer& operator=(Buffer&& other) noexcept {
        swap(other);
        return *this;
    }
    ~Buffer() {
        if (data_ != nullptr) device_.api->free(device_.device, data_);
    }

    /// At least `count` elements, zeroed when memory is new. ResourceExhausted when there is none.
    absl::Status reserve(const Device& device, size_t count) {
        if (count <= count_) return absl::OkStatus();
        void* memory = nullptr;
        if (absl::Status s = fromDevice(
                device.api->alloc(device.device, kKind, count * sizeof(T), &memory), "alloc");
            !s.ok())
            return s;
        if (data_ != nullptr) device_.api->free(device_.device, data_);
        device_ = device;
        data_ = static_cast<T*>(memory);
        count_ = count;
        return absl::OkStatus();
    }
    T* data() const { return data_; }
    size_t capacity() const { return count_; }

  private:
    void swap(Buffer& other) noexcept {
        std::swap(device_, other.device_);
        std::swap(data_, other.data_);
        std::swap(count_, other.count_);
    }

    Device device_;
    T* data_ = nullptr;
    size_t count_ = 0;
};

}  // namespace bulkhead::llama_moe

#define BULKHEAD_RETURN_IF_ERROR(expression)                                  \
    do {                                                                      \
        if (absl::Status bulkheadStatus = (expression); !bulkheadStatus.ok()) \
            return bulkheadStatus;                                            \
    } while (false)
