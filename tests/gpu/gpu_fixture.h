// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include "tests/support/gpu_plugin.h"

namespace bulkhead::support {

/// Skips, saying why, where no GPU answers.
class GpuTest : public ::testing::Test {
  protected:
    void SetUp() override {
        if (const std::string why = plugin_.whyNot(); !why.empty())
            GTEST_SKIP() << "no GPU answers: " << why;
    }
    GpuPlugin plugin_{BULKHEAD_CUDA_PLUGIN};
};

}  // namespace bulkhead::support
