// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/runtime/replica/state_store.h"
#include "backend/runtime/replica/training_program.h"

namespace bulkhead::runtime {

/// Copies of a rank's state, at most one of a step, made while the program computes where it can:
/// whoever wants one (joiners, a checkpoint, parity's judgement) shares it.
/// Thread: the one of the program, before whose end this one ends.
class SnapshotCache {
  public:
    using Snapshot = std::shared_ptr<const StateSnapshot>;
    /// Gets a copy once it is whole: at once, or on whatever thread made it.
    using Taker = std::function<void(Snapshot)>;

    /// `failed` hears why a copy could not be made, likewise.
    SnapshotCache(TrainingProgram* program, std::function<void(absl::Status)> failed);

    /// Begins a copy of the state as it stands, unless there is one or it is under way; `taker`
    /// gets it. `label` is all that is said of that state, without its bytes.
    void give(StateSnapshot label, Taker taker);
    /// Likewise, and waits for it. Stays until the state is another one.
    [[nodiscard]] absl::StatusOr<const StateSnapshot*> await(StateSnapshot label);

    /// The state is another one now.
    void changed();
    /// As changed(), and no memory stays, but for what others hold.
    void clear();

  private:
    struct Copy;

    TrainingProgram* program_;
    std::function<void(absl::Status)> failed_;
    std::shared_ptr<Copy> now_;  ///< of the state as it stands; null: not begun
    /// Memory of a copy that nobody else had: fresh pages would cost more than what is copied
    /// there.
    StateBytes spare_;
};

}  // namespace bulkhead::runtime
