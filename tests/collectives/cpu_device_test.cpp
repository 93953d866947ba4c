// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/collectives/cpu_device.h"

#include <gtest/gtest.h>

#include <thread>

#include "absl/base/thread_annotations.h"
#include "backend/common/threads.h"
#include "tests/collectives/group_ranks.h"

namespace bulkhead::runtime {
namespace {

/// Keeps what the device said last; ranks on several threads may speak.
struct Host {
    Mutex mutex;
    std::string said ABSL_GUARDED_BY(mutex);
    bulkhead_host table{this, [](void*, int32_t, const char*) {},
                        [](void* self, const char* line) {
                            auto& host = *static_cast<Host*>(self);
                            const MutexLock lock(host.mutex);
                            host.said = line;
                        }};
    std::string error() {
        const MutexLock lock(mutex);
        return said;
    }
};

class CpuDeviceTest : public ::testing::Test {
  protected:
    void SetUp() override {
        ASSERT_NE(api_, nullptr);
        ASSERT_EQ(api_->open(&host_.table, 0, &device_), BULKHEAD_OK);
    }
    void TearDown() override { api_->close(device_); }

    Host host_;
    const bulkhead_device_api* api_ = cpuDeviceApi(BULKHEAD_DEVICE_ABI);
    bulkhead_device* device_ = nullptr;
};

TEST_F(CpuDeviceTest, ServesOnlyItsAbiVersionAndIndex) {
    EXPECT_EQ(cpuDeviceApi(BULKHEAD_DEVICE_ABI + 1), nullptr);
    bulkhead_device* other = nullptr;
    EXPECT_EQ(api_->open(&host_.table, 1, &other), BULKHEAD_UNAVAILABLE);
    EXPECT_FALSE(host_.error().empty());
}

TEST_F(CpuDeviceTest, MemoryIsAlignedZeroedAndCounted) {
    bulkhead_device_info info;
    void* memory = nullptr;
    ASSERT_EQ(api_->alloc(device_, BULKHEAD_MEMORY_DEVICE, 1001, &memory), BULKHEAD_OK);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 64, 0u);
    for (int i = 0; i < 1001; ++i) ASSERT_EQ(static_cast<char*>(memory)[i], 0);
    ASSERT_EQ(api_->describe(device_, &info), BULKHEAD_OK);
    EXPECT_EQ(info.memory_used, 1001u);
    EXPECT_EQ(info.memory_is_host, 1);
    api_->free(device_, memory);
    api_->free(device_, nullptr);
    ASSERT_EQ(api_->describe(device_, &info), BULKHEAD_OK);
    EXPECT_EQ(info.memory_used, 0u);
    EXPECT_EQ(api_->alloc(device_, BULKHEAD_MEMORY_HOST, SIZE_MAX, &memory),
              BULKHEAD_OUT_OF_MEMORY);
    EXPECT_FALSE(host_.error().empty());
}

TEST_F(CpuDeviceTest, ReduceCopyAddsInOrderAndConverts) {
    const float a[3] = {1, 2, 3}, b[3] = {10, 20, 30};
    const void* sources[2] = {a, b};
    double out[3] = {};
    ASSERT_EQ(api_->reduce_copy(device_, out, sources, 2, 3, BULKHEAD_F32, BULKHEAD_F64, nullptr),
              BULKHEAD_OK);
    EXPECT_EQ(out[2], 33.0);
    EXPECT_EQ(api_->reduce_copy(device_, out, sources, 2, 3, BULKHEAD_F32, BULKHEAD_U8, nullptr),
              BULKHEAD_INVALID);
}

TEST_F(CpuDeviceTest, GroupsGatherReduceAndSwapThroughTheTable) {
    const testing::GroupRanks ranks(3, PeerChoice::kAuto);
    std::vector<bulkhead_peer> peers;
    for (const GroupPeer& p : ranks.peers())
        peers.push_back({p.host.c_str(), p.data.c_str(), p.shm.c_str()});
    std::vector<std::thread> threads;
    for (int32_t r = 0; r < 3; ++r)
        threads.emplace_back([&, r] {
            bulkhead_group_desc desc{};
            desc.struct_size = sizeof desc;
            desc.rank = r;
            desc.size = 3;
            desc.name = "abi";
            desc.peers = peers.data();
            desc.timeout_ms = 60'000;
            desc.listen_fd = ranks.listener(static_cast<size_t>(r));
            bulkhead_group* group = nullptr;
            ASSERT_EQ(api_->group_create(device_, &desc, &group), BULKHEAD_OK) << host_.error();
            const float mine = static_cast<float>(r + 1);
            float all[3] = {};
            EXPECT_EQ(api_->all_gather(group, &mine, all, 1, BULKHEAD_F32, nullptr), BULKHEAD_OK);
            EXPECT_EQ(all[0] + 10 * all[1] + 100 * all[2], 321.0f);
            float sum = 0;
            EXPECT_EQ(api_->reduce_scatter(group, all, &sum, 1, BULKHEAD_F32, nullptr),
                      BULKHEAD_OK);
            EXPECT_EQ(sum, 3.0f * mine);
            const size_t four[3] = {4, 4, 4};
            const int32_t out[3] = {r * 10, r * 10 + 1, r * 10 + 2};
            int32_t in[3] = {};
            EXPECT_EQ(api_->all_to_all(group, out, four, in, four, nullptr), BULKHEAD_OK);
            for (int32_t from = 0; from < 3; ++from) EXPECT_EQ(in[from], from * 10 + r);
            EXPECT_EQ(api_->barrier(group), BULKHEAD_OK);
            api_->group_abort(group);
            EXPECT_EQ(api_->barrier(group), BULKHEAD_ABORTED);
            api_->group_destroy(group);
        });
    for (std::thread& t : threads) t.join();
}

TEST_F(CpuDeviceTest, AnIncompleteDescriptionIsInvalid) {
    bulkhead_group_desc desc{};
    bulkhead_group* group = nullptr;
    EXPECT_EQ(api_->group_create(device_, &desc, &group), BULKHEAD_INVALID);
    EXPECT_EQ(group, nullptr);
    EXPECT_FALSE(host_.error().empty());
}

}  // namespace
}  // namespace bulkhead::runtime
