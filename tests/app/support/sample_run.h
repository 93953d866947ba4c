// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include "tests/support/made_run.h"

namespace bulkhead::test {

/// A made-up run of 4 replicas x 2 shards: it loses replica 2 at step 40 and replica 1 at step 90.
/// Feeds models, GUI tests and pictures.
class SampleRun : public MadeRun {
  public:
    static constexpr int32_t kReplicas = 4;
    static constexpr int32_t kShards = 2;
};

}  // namespace bulkhead::test
