// SPDX-License-Identifier: Apache-2.0
// Products of the workload's GPU module that cuBLAS refuses.
#include <dlfcn.h>
#include <gmock/gmock.h>

#include <string>

#include "plugins/llama_moe/gpu/machine.h"
#include "tests/support/gpu_plugin.h"

namespace bulkhead::llama_moe::gpu {
namespace {

using ::testing::HasSubstr;

class Products : public ::testing::Test {
  protected:
    Products() {
        void* module = ::dlopen(BULKHEAD_MODULE, RTLD_NOW | RTLD_LOCAL);
        EXPECT_NE(module, nullptr) << ::dlerror();
        api_ = reinterpret_cast<GetMachine>(::dlsym(module, BULKHEAD_LLAMA_MOE_GET_MACHINE))();
        EXPECT_EQ(plugin_.device().open(plugin_.host(), 0, &device_), BULKHEAD_OK);
        for (void** at : {&workspace_, &memory_})
            EXPECT_EQ(plugin_.device().alloc(device_, BULKHEAD_MEMORY_DEVICE, size_t{1} << 20, at),
                      BULKHEAD_OK);
        EXPECT_EQ(api_->open(plugin_.host(), workspace_, size_t{1} << 20, &machine_), BULKHEAD_OK)
            << plugin_.error();
    }
    ~Products() override {
        api_->close(machine_);
        for (void* memory : {workspace_, memory_}) plugin_.device().free(device_, memory);
        plugin_.device().close(device_);
    }
    Bf16* at(size_t element) const { return static_cast<Bf16*>(memory_) + element; }
    /// Of 64 x 64 matrices that lie apart, without gaps.
    MatrixProduct good() const {
        return {0, 0, 1, 64, 64, 64, at(0), 64, at(4096), 64, at(8192), 64, 1, 0};
    }
    bulkhead_status run(const MatrixProduct& product) const {
        api_->product(machine_, &product);
        EXPECT_EQ(plugin_.device().stream_synchronize(device_, nullptr), BULKHEAD_OK);
        return api_->check(machine_);
    }

    mutable support::GpuPlugin plugin_{BULKHEAD_CUDA_PLUGIN};
    const MachineApi* api_ = nullptr;
    bulkhead_device* device_ = nullptr;
    void* workspace_ = nullptr;
    void* memory_ = nullptr;
    Machine* machine_ = nullptr;
};

TEST_F(Products, ThatAreNoneSayWhy) {
    EXPECT_EQ(run(good()), BULKHEAD_OK) << plugin_.error();
    float host[4096] = {};
    const auto bad = [&](auto&& change) {
        MatrixProduct product = good();
        change(product);
        return run(product);
    };
    EXPECT_EQ(bad([](MatrixProduct& p) { p.lda = 63; }), BULKHEAD_INTERNAL) << "rows overlap";
    EXPECT_THAT(plugin_.error(), HasSubstr("a matrix product: CUBLAS_STATUS_INVALID_VALUE"));
    EXPECT_EQ(bad([](MatrixProduct& p) { p.c = p.ldc + const_cast<Bf16*>(p.a); }),
              BULKHEAD_INTERNAL)
        << "the result is an operand";
    EXPECT_EQ(bad([&](MatrixProduct& p) { p.c = host; }), BULKHEAD_INTERNAL) << "of the host";
    EXPECT_EQ(bad([](MatrixProduct& p) { p.m = 65536; }), BULKHEAD_INTERNAL)
        << "behind the allocation's end";
    EXPECT_EQ(run(good()), BULKHEAD_OK) << "what went wrong was told once";
}

TEST_F(Products, LeaveNoMoreRoomThanThereIs) {
    api_->spare(machine_, 1000);  // one multiprocessor is left at least
    EXPECT_EQ(api_->check(machine_), BULKHEAD_OK);
}

}  // namespace
}  // namespace bulkhead::llama_moe::gpu
