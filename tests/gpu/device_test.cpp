// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "backend/runtime/collectives/elements.h"
#include "tests/gpu/gpu_fixture.h"

namespace bulkhead::support {
namespace {

using runtime::ElementType;

class GpuDevice : public GpuTest {
  protected:
    void SetUp() override {
        GpuTest::SetUp();
        if (IsSkipped()) return;
        rank_ = std::make_unique<GpuRank>(plugin_);
        ASSERT_TRUE(rank_->ok()) << plugin_.error();
    }
    const bulkhead_device_api& api() const { return plugin_.device(); }
    bulkhead_device* device() const { return rank_->device(); }

    std::unique_ptr<GpuRank> rank_;
};

TEST_F(GpuDevice, memoryOfEveryKindIsZeroedCountedAndCopied) {
    const std::string text = "from host to device, to peer memory, to host";
    bulkhead_device_info info{};
    std::vector<void*> memory;
    for (const bulkhead_memory kind :
         {BULKHEAD_MEMORY_DEVICE, BULKHEAD_MEMORY_PEER, BULKHEAD_MEMORY_HOST}) {
        memory.push_back(rank_->allocate(1001, kind));
        ASSERT_NE(memory.back(), nullptr) << plugin_.error();
        EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.back()) % 64, 0u);
        EXPECT_EQ(rank_->read<char>(memory.back(), 1001), std::vector<char>(1001));
    }
    ASSERT_EQ(api().describe(device(), &info), BULKHEAD_OK);
    EXPECT_EQ(info.memory_used, 3003u);
    EXPECT_EQ(info.memory_is_host, 0);
    EXPECT_GT(info.memory_total, 1ull << 30);
    ASSERT_TRUE(rank_->copy(memory[0], text.data(), text.size()));
    ASSERT_TRUE(rank_->copy(memory[1], memory[0], text.size()));
    ASSERT_TRUE(rank_->copy(memory[2], memory[1], text.size()));
    EXPECT_EQ(std::string(static_cast<char*>(memory[2]), text.size()), text);
    ASSERT_EQ(api().zero(device(), memory[0], 4, nullptr), BULKHEAD_OK);
    EXPECT_EQ(rank_->read<char>(memory[0], 5), (std::vector<char>{0, 0, 0, 0, text[4]}));
}

TEST_F(GpuDevice, moreThanThereIsIsOutOfMemoryAndTheDeviceWorksOn) {
    void* memory = nullptr;
    EXPECT_EQ(api().alloc(device(), BULKHEAD_MEMORY_DEVICE, size_t{1} << 50, &memory),
              BULKHEAD_OUT_OF_MEMORY);
    EXPECT_EQ(memory, nullptr);
    EXPECT_NE(rank_->allocate(1000), nullptr) << plugin_.error();
}

/// Random bits of any type, but no NaN, whose payload is the processor's.
std::vector<std::byte> someValues(ElementType type, size_t count, std::mt19937& random) {
    std::vector<std::byte> bytes(count * runtime::elementSize(type));
    for (size_t i = 0; i < count; ++i) {
        const double value = static_cast<double>(static_cast<int32_t>(random())) * 1e-6;
        const auto put = [&](auto x) { std::memcpy(&bytes[i * sizeof x], &x, sizeof x); };
        if (type == ElementType::kF32) put(static_cast<float>(value));
        if (type == ElementType::kBf16) put(runtime::toBf16(static_cast<float>(value)));
        if (type == ElementType::kF64) put(value);
        if (type == ElementType::kI32) put(static_cast<uint32_t>(random()));
        if (type == ElementType::kU8) put(static_cast<uint8_t>(random()));
    }
    return bytes;
}

TEST_F(GpuDevice, reduceCopyHasTheBitsOfTheCpuDevice) {
    const std::pair<bulkhead_dtype, ElementType> types[] = {{BULKHEAD_F32, ElementType::kF32},
                                                            {BULKHEAD_BF16, ElementType::kBf16},
                                                            {BULKHEAD_F64, ElementType::kF64},
                                                            {BULKHEAD_I32, ElementType::kI32},
                                                            {BULKHEAD_U8, ElementType::kU8}};
    std::mt19937 random(3);
    for (const auto& [fromAbi, fromType] : types)
        for (const auto& [toAbi, toType] : types)
            for (const size_t count : {size_t{1}, size_t{1003}, size_t{1} << 20}) {
                const bool sums = toAbi <= BULKHEAD_BF16 && fromAbi <= BULKHEAD_BF16;
                if (fromAbi != toAbi && !sums) continue;
                std::vector<std::vector<std::byte>> host;
                std::vector<const void*> onHost, onDevice;
                for (int s = 0; s < 3; ++s) {
                    host.push_back(someValues(fromType, count, random));
                    onHost.push_back(host.back().data());
                    void* memory = rank_->allocate(host.back().size());
                    ASSERT_TRUE(rank_->copy(memory, host.back().data(), host.back().size()));
                    onDevice.push_back(memory);
                }
                const size_t bytes = count * runtime::elementSize(toType);
                std::vector<std::byte> wanted(bytes);
                ASSERT_TRUE(
                    runtime::reduceElements(wanted.data(), toType, onHost, fromType, count));
                void* to = rank_->allocate(bytes);
                ASSERT_EQ(api().reduce_copy(device(), to, onDevice.data(), 3, count, fromAbi, toAbi,
                                            nullptr),
                          BULKHEAD_OK)
                    << plugin_.error();
                EXPECT_EQ(rank_->read<std::byte>(to, bytes), wanted)
                    << "from type " << fromAbi << " to " << toAbi << ", " << count;
            }
}

/// Sources of the persistent kernel, each of them in float32 and in bfloat16, on both sides.
struct PlaneSources {
    std::vector<std::vector<float>> wide;
    std::vector<std::vector<runtime::Bf16>> narrow;
    std::vector<float*> wideThere;
    std::vector<runtime::Bf16*> narrowThere;
};

/// The first values lie between two of bfloat16, exactly or by a bit.
PlaneSources planeSources(GpuRank& rank, size_t sources, size_t count) {
    PlaneSources all;
    std::mt19937 random(5);
    for (size_t s = 0; s < sources; ++s) {
        auto& wide = all.wide.emplace_back(count);
        auto& narrow = all.narrow.emplace_back(count);
        for (size_t i = 0; i < count; ++i) {
            const auto value = static_cast<uint32_t>(random());
            const uint32_t middle = (value & 0xbfff'0000u) | (0x7fffu + value % 3);
            wide[i] = i < count / 2 ? std::bit_cast<float>(middle)
                                    : static_cast<float>(static_cast<int32_t>(value)) * 1e-6f;
            narrow[i] = runtime::toBf16(wide[i]);
        }
        all.wideThere.push_back(rank.floats(count));
        all.narrowThere.push_back(
            static_cast<runtime::Bf16*>(rank.allocate(count * sizeof(runtime::Bf16))));
        EXPECT_TRUE(rank.copy(all.wideThere[s], wide.data(), count * sizeof(float)));
        EXPECT_TRUE(rank.copy(all.narrowThere[s], narrow.data(), count * sizeof(runtime::Bf16)));
    }
    return all;
}

/// Element i of the sum, in float32.
float sumOf(const PlaneSources& all, const bulkhead_sum& sum, size_t i) {
    const auto rounded = [&](float x) {
        return sum.rounded != 0 ? runtime::toFloat(runtime::toBf16(x)) : x;
    };
    const auto value = [&](uint32_t s) {
        return (sum.narrow_sources >> s) & 1u ? runtime::toFloat(all.narrow[s][i])
                                              : rounded(all.wide[s][i]);
    };
    float total = value(0);
    for (uint32_t s = 1; s < sum.sources; ++s) total += value(s);
    return rounded(total);
}

TEST_F(GpuDevice, sumsOfThePersistentKernelHaveTheBitsOfTheCpu) {
    constexpr size_t kMost = 300'007;
    const PlaneSources all = planeSources(*rank_, 7, kMost);
    const bulkhead_data_plane_api& api = plugin_.plane();
    ASSERT_EQ(api.enter(rank_->plane()), BULKHEAD_OK);
    const auto expectBits = [&](bulkhead_sum sum, size_t offset) {
        std::vector<const void*> from;
        for (uint32_t s = 0; s < sum.sources; ++s)
            from.push_back((sum.narrow_sources >> s) & 1u
                               ? static_cast<const void*>(all.narrowThere[s] + offset)
                               : all.wideThere[s] + offset);
        sum.struct_size = sizeof sum;
        sum.from = from.data();
        ASSERT_EQ(api.submit(rank_->plane(), &sum), BULKHEAD_OK) << api.why(rank_->plane());
        ASSERT_EQ(api.finish(rank_->plane(), 10'000), BULKHEAD_OK) << api.why(rank_->plane());
        const auto wide = rank_->read<uint32_t>(sum.to, sum.count);
        const auto narrow = rank_->read<uint16_t>(sum.to, sum.count);
        for (size_t i = 0; i < sum.count; ++i) {
            const float wanted = sumOf(all, sum, offset + i);
            if (sum.narrow_to)
                ASSERT_EQ(narrow[i], runtime::toBf16(wanted).bits) << i;
            else
                ASSERT_EQ(wide[i], std::bit_cast<uint32_t>(wanted)) << i;
        }
    };
    void* to = rank_->floats(kMost);
    for (const uint32_t sources : {1u, 2u, 3u, 7u})
        for (const uint64_t types : {uint64_t{0}, uint64_t{0b1110110}, ~uint64_t{0}})
            for (const int32_t narrowTo : {0, 1})
                for (const int32_t rounded : {0, 1}) {
                    SCOPED_TRACE(absl::StrCat(sources, " sources of types ", types, ", ", narrowTo,
                                              ", ", rounded));
                    expectBits({0, sources, nullptr, types, to, 5, narrowTo, rounded}, 0);
                    expectBits({0, sources, nullptr, types, to, kMost, narrowTo, rounded}, 0);
                    expectBits({0, sources, nullptr, types, to, 1003, narrowTo, rounded}, 1);
                }
    ASSERT_EQ(api.leave(rank_->plane()), BULKHEAD_OK);
}

TEST_F(GpuDevice, aGroupOfOneNeedsNoNcclAndCanBeAborted) {
    const bulkhead_peer self{"here", "127.0.0.1:0", ""};
    bulkhead_group_desc desc{};
    desc.struct_size = sizeof desc;
    desc.size = 1;
    desc.name = "alone";
    desc.peers = &self;
    desc.timeout_ms = 1000;
    desc.listen_fd = -1;
    bulkhead_group* group = nullptr;
    ASSERT_EQ(api().group_create(device(), &desc, &group), BULKHEAD_OK) << plugin_.error();
    const std::vector<float> values{1, 2, 3};
    float* from = rank_->floats(3);
    float* to = rank_->floats(3);
    ASSERT_TRUE(rank_->copy(from, values.data(), 12));
    EXPECT_EQ(api().reduce_scatter(group, from, to, 3, BULKHEAD_F32, nullptr), BULKHEAD_OK);
    EXPECT_EQ(rank_->read<float>(to, 3), values);
    EXPECT_EQ(api().barrier(group), BULKHEAD_OK);
    api().group_abort(group);
    EXPECT_EQ(api().all_gather(group, from, to, 3, BULKHEAD_F32, nullptr), BULKHEAD_ABORTED);
    api().group_destroy(group);
}

}  // namespace
}  // namespace bulkhead::support
