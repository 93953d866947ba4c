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
/// whoever wants one (joiners, a checkpoint, parity's judgement) shares it. Parity looks back, so
/// the copy of the state before the last update is kept beside it.
/// Thread: the one of the program, before whose end this one ends.
class SnapshotDesk {
  public:
    using Snapshot = std::shared_ptr<const StateSnapshot>;
    /// Gets a copy once it is whole: at once, or on whatever thread made it.
    using Taker = std::function<void(Snapshot)>;

    /// `failed` hears why a copy could not be made, likewise.
    SnapshotDesk(TrainingProgram* program, std::function<void(absl::Status)> failed);

    /// Begins a copy of the state as it stands, unless there is one or it is under way. `label` is
    /// all that is said of that state, without its bytes.
    void begin(StateSnapshot label);
    /// As begin(); `taker` gets the copy.
    void give(StateSnapshot label, Taker taker);
    /// As begin(), and waits for it. Stays until the state is another one.
    [[nodiscard]] absl::StatusOr<const StateSnapshot*> await(StateSnapshot label);

    /// As await(), and the copy is before() from now on; what was so far is not needed any more.
    [[nodiscard]] absl::Status keepBefore(StateSnapshot label);
    /// nullptr: none was kept.
    const StateSnapshot* before() const;

    /// The state is another one now.
    void changed();
    /// As changed(), and the one before is not wanted: no memory stays, but for what others hold.
    void clear();

  private:
    struct Copy;
    void recycle(std::shared_ptr<Copy> copy);

    TrainingProgram* program_;
    std::function<void(absl::Status)> failed_;
    std::shared_ptr<Copy> now_;     ///< of the state as it stands; null: not begun
    std::shared_ptr<Copy> before_;  ///< whole
    /// Of a copy that nobody else had: fresh pages would cost more than what is copied there.
    std::vector<std::byte> spare_;
};

}  // namespace bulkhead::runtime
