// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "plugins/llama_moe/device.h"
#include "tests/plugins/thread_device.h"

namespace bulkhead::test {

/// S devices of one group, for code below the ABI.
class Shards {
  public:
    explicit Shards(size_t count, const bulkhead_device_api* api = threadDeviceApi()) {
        auto meeting = std::make_shared<Meeting>(static_cast<int>(count));
        for (size_t s = 0; s < count; ++s) {
            ends_.push_back(
                std::make_unique<GroupEnd>(meeting, static_cast<int>(s), static_cast<int>(count)));
            llama_moe::Device device{api, nullptr, ends_.back()->handle(), s, count};
            device.api->open(nullptr, 0, &device.device);
            bulkhead_device_info info{};
            device.api->describe(device.device, &info);
            device.memoryIsHost = info.memory_is_host != 0;
            devices_.push_back(device);
        }
    }
    ~Shards() {
        for (const auto& device : devices_) device.api->close(device.device);
    }
    Shards(const Shards&) = delete;
    Shards& operator=(const Shards&) = delete;

    size_t size() const { return devices_.size(); }
    const llama_moe::Device& device(size_t shard) const { return devices_[shard]; }

    /// body(shard) on a thread per shard; returns when all have.
    static void onEach(size_t count, const std::function<void(size_t)>& body) {
        std::vector<std::jthread> threads;
        for (size_t s = 1; s < count; ++s) threads.emplace_back([&body, s] { body(s); });
        body(0);
    }

  private:
    std::vector<std::unique_ptr<GroupEnd>> ends_;
    std::vector<llama_moe::Device> devices_;
};

}  // namespace bulkhead::test
