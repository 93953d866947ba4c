// SPDX-License-Identifier: Apache-2.0
// The exchange's kernel beside other threads' calls of a driver that has one lock, and errors that
// are told late.
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <numeric>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/support/gpu_plugin.h"

namespace bulkhead::fake_cuda {
namespace {

using ::testing::HasSubstr;

constexpr size_t kCount = 10'000;
constexpr std::chrono::seconds kPatience{20};  // correct runs take milliseconds

/// A kernel of the training: it runs until it is released.
class LongKernel {
  public:
    LongKernel() {
        (void)cudaSetDevice(0);
        EXPECT_EQ(cudaLaunchKernel(&kernel_, 1, 32, nullptr, 0, nullptr), cudaSuccess);
    }
    ~LongKernel() {
        release();
        (void)cudaStreamSynchronize(nullptr);
    }
    void release() {
        released_ = true;
        released_.notify_all();
    }

  private:
    std::atomic<bool> released_{false};
    Kernel kernel_{[this](unsigned, void**) -> std::function<void()> {
        return [this] { released_.wait(false); };
    }};
};

class Liveness : public ::testing::Test {
  protected:
    Liveness() {
        EXPECT_TRUE(rank_.ok()) << plugin_.error();
        std::vector<float> values(kCount);
        std::iota(values.begin(), values.end(), 1.0f);
        EXPECT_TRUE(rank_.copy(in_, values.data(), kCount * sizeof(float)));
        EXPECT_EQ(plugin_.device().alloc(rank_.device(), BULKHEAD_MEMORY_DEVICE, 100, &some_),
                  BULKHEAD_OK);
        EXPECT_EQ(api().enter(rank_.plane()), BULKHEAD_OK);
    }
    const bulkhead_data_plane_api& api() const { return plugin_.plane(); }
    /// The ramp doubled.
    bulkhead_status submit() {
        const void* from[] = {in_, in_};
        const bulkhead_sum sum{sizeof sum, 2, from, 0, out_, kCount, 0, 0};
        return api().submit(rank_.plane(), &sum);
    }
    bulkhead_status finish() { return api().finish(rank_.plane(), 600'000); }
    bulkhead_status add() {
        const bulkhead_status status = submit();
        return status == BULKHEAD_OK ? finish() : status;
    }
    void expectSum() { EXPECT_EQ(rank_.read<float>(out_, kCount).back(), 2.0f * kCount); }
    /// On a thread of the training: frees memory, for which the driver waits for an idle GPU.
    std::future<void> freeSome() {
        const uint64_t before = counts().synchronisations;
        auto freed = std::async(std::launch::async,
                                [this] { plugin_.device().free(rank_.device(), some_); });
        while (counts().synchronisations == before) std::this_thread::yield();
        return freed;
    }

    support::GpuPlugin plugin_{BULKHEAD_CUDA_PLUGIN};
    support::GpuRank rank_{plugin_};
    float* in_ = rank_.floats(kCount);
    float* out_ = rank_.floats(kCount);
    void* some_ = nullptr;
};

TEST_F(Liveness, aKernelThatHasNothingToDoIsNotWaitedFor) {
    ASSERT_EQ(add(), BULKHEAD_OK) << api().why(rank_.plane());
    const std::future<void> freed = freeSome();
    EXPECT_EQ(freed.wait_for(kPatience), std::future_status::ready);
    (void)api().park(rank_.plane());
    ASSERT_EQ(add(), BULKHEAD_OK) << "it is started again";
    expectSum();
}

TEST_F(Liveness, anAbortDoesNotWaitForTheDriversLock) {
    LongKernel training;
    const std::future<void> freed = freeSome();
    auto sum = std::async(std::launch::async, [this] { return add(); });
    EXPECT_EQ(sum.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout)
        << "the kernel cannot be started now";
    api().abort(rank_.plane());
    EXPECT_EQ(sum.wait_for(kPatience), std::future_status::ready);
    training.release();
    EXPECT_EQ(sum.get(), BULKHEAD_ABORTED);
    freed.wait();
    EXPECT_EQ(rank_.read<float>(out_, kCount).back(), 0.0f) << "nothing was added afterwards";
    ASSERT_EQ(api().enter(rank_.plane()), BULKHEAD_OK) << api().why(rank_.plane());
    ASSERT_EQ(add(), BULKHEAD_OK);
    expectSum();
}

TEST_F(Liveness, aLaunchThatReturnsWhenAllIsDoneIsOne) {
    blockLaunches(true);
    auto sum = std::async(std::launch::async, [this] { return add(); });
    const bool done = sum.wait_for(kPatience) == std::future_status::ready;
    EXPECT_TRUE(done);
    if (!done) api().abort(rank_.plane());
    EXPECT_EQ(sum.get(), BULKHEAD_OK);
    blockLaunches(false);
    expectSum();
}

TEST_F(Liveness, anErrorNobodyAskedForIsNotTheNextLaunchs) {
    bulkhead_plane* other = nullptr;
    ASSERT_EQ(api().open(rank_.device(), 1, &other), BULKHEAD_OK);
    failNext("cudaFreeHost", cudaErrorInvalidValue);
    api().close(other);
    const void* from[] = {in_, in_};
    EXPECT_EQ(plugin_.device().reduce_copy(rank_.device(), out_, from, 2, kCount, BULKHEAD_F32,
                                           BULKHEAD_F32, nullptr),
              BULKHEAD_OK)
        << plugin_.error();
    expectSum();
    EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "nor is it left to whoever asks next";
}

TEST_F(Liveness, aQueryThatFoundTheGpuAtWorkIsNoErrorOfALaunch) {
    LongKernel training;
    EXPECT_EQ(cudaStreamQuery(nullptr), cudaErrorNotReady);
    const void* from[] = {in_, in_};
    EXPECT_EQ(plugin_.device().reduce_copy(rank_.device(), out_, from, 2, kCount, BULKHEAD_F32,
                                           BULKHEAD_F32, nullptr),
              BULKHEAD_OK)
        << plugin_.error();
    training.release();
    expectSum();
}

TEST_F(Liveness, aGpuThatFallsOffTheBusIsToldAndNotWaitedFor) {
    loseGpu(0, cudaErrorECCUncorrectable);
    auto sum = std::async(std::launch::async, [this] { return add(); });
    const bool done = sum.wait_for(kPatience) == std::future_status::ready;
    EXPECT_TRUE(done);
    if (!done) api().abort(rank_.plane());
    EXPECT_EQ(sum.get(), BULKHEAD_INTERNAL);
    EXPECT_THAT(api().why(rank_.plane()), HasSubstr("uncorrectable ECC"));
    EXPECT_THAT(api().why(rank_.plane()), HasSubstr("the rank must start again"));
    loseGpu(0, cudaSuccess);
}

/// Two ranks of a replica, on a GPU each.
TEST_F(Liveness, aGroupHasReachedAllItsRanksWhenItIsMade) {
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
    ASSERT_EQ(::listen(listener, 8), 0);
    ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
    const std::string data = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    const bulkhead_peer peers[] = {{"here", data.c_str(), ""}, {"here", "127.0.0.1:9", ""}};
    const bulkhead_device_api& device = plugin_.device();
    std::atomic<int> ready{0};
    std::atomic<uint64_t> before{0};
    const auto rank = [&](int32_t r) {
        bulkhead_device* gpu = nullptr;
        EXPECT_EQ(device.open(plugin_.host(), r, &gpu), BULKHEAD_OK) << plugin_.error();
        bulkhead_group_desc desc{};
        desc.struct_size = sizeof desc;
        desc.rank = r;
        desc.size = 2;
        desc.name = "pair";
        desc.peers = peers;
        desc.timeout_ms = 20'000;
        desc.listen_fd = r == 0 ? listener : -1;
        void* memory = nullptr;
        EXPECT_EQ(device.alloc(gpu, BULKHEAD_MEMORY_DEVICE, 64, &memory), BULKHEAD_OK);
        bulkhead_group* group = nullptr;
        ASSERT_EQ(device.group_create(gpu, &desc, &group), BULKHEAD_OK) << plugin_.error();
        if (++ready == 2) before = counts().allocations;
        while (before == 0) std::this_thread::yield();
        auto* bytes = static_cast<char*>(memory);
        const char own = static_cast<char>('a' + r);
        EXPECT_EQ(device.copy(gpu, bytes, &own, 1, nullptr), BULKHEAD_OK);
        EXPECT_EQ(device.all_gather(group, bytes, bytes + 8, 1, BULKHEAD_U8, nullptr), BULKHEAD_OK)
            << plugin_.error();
        const size_t one[] = {1, 1};
        EXPECT_EQ(device.all_to_all(group, bytes + 8, one, bytes + 16, one, nullptr), BULKHEAD_OK);
        EXPECT_EQ(device.barrier(group), BULKHEAD_OK);
        char read[2] = {};
        EXPECT_EQ(device.copy(gpu, read, bytes + 16, 2, nullptr), BULKHEAD_OK);
        EXPECT_EQ(std::string(read, 2), std::string(2, own)) << "what each has of this rank";
        EXPECT_EQ(counts().allocations, before) << "nothing was done for the first time";
        EXPECT_EQ(device.barrier(group), BULKHEAD_OK);
        device.group_destroy(group);
        device.free(gpu, memory);
        device.close(gpu);
    };
    std::thread other(rank, 1);
    rank(0);
    other.join();
    ::close(listener);
}

}  // namespace
}  // namespace bulkhead::fake_cuda
