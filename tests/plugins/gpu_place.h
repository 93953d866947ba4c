// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "plugins/llama_moe/gpu/machine.h"

namespace bulkhead::test {

/// A device and the machine that computes on it.
struct GpuPlace {
    std::string name;
    const bulkhead_device_api* device = nullptr;
    const llama_moe::gpu::MachineApi* machine = nullptr;
    std::string whyNot;  ///< reason that no GPU answers; empty: one does
};

/// Places on which gpu_kernel_test and gpu_model_test compute: in tests/plugins loops and threads,
/// in tests/gpu a GPU. The same for the whole program.
const std::vector<GpuPlace>& gpuPlaces();

/// A test for each of them. Skips, saying why, where no GPU answers.
class OnGpu : public testing::TestWithParam<size_t> {
  protected:
    void SetUp() override {
        if (!place().whyNot.empty()) GTEST_SKIP() << "no GPU answers: " << place().whyNot;
    }
    static const GpuPlace& place() { return gpuPlaces()[GetParam()]; }
};

inline std::string placeName(const testing::TestParamInfo<size_t>& info) {
    return gpuPlaces()[info.param].name;
}

}  // namespace bulkhead::test
