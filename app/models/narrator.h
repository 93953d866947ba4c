// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <chrono>
#include <cstdint>
#include <iosfwd>

#include "backend/model/run_state.h"

namespace bulkhead::ui {

/// Says on a terminal what a window would show: a line a second while steps are committed, and one
/// for each incident opened or closed, and each trouble of a GPU, since the last look.
class Narrator {
  public:
    explicit Narrator(std::ostream& out) : out_(out) {}
    /// Call as often as you like with the state of one run.
    void look(const model::RunState& state);

  private:
    void incidents(const model::RunState& state);
    void gpuTroubles(const model::RunState& state);

    std::ostream& out_;
    std::chrono::steady_clock::time_point lastLine_;
    uint64_t lastStep_ = 0;
    uint64_t opened_ = 0;    ///< highest incident announced
    uint64_t closed_ = 0;    ///< highest incident whose end was announced
    uint64_t troubles_ = 0;  ///< of GPUs, announced
};

}  // namespace bulkhead::ui
