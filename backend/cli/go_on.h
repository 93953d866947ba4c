// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "backend/cli/session.h"

/// Earlier runs of a daemon. Each function blocks for its calls.
namespace bulkhead::cli {

/// The job that was cut off and that the daemon has taken up again, or could not (its phase is
/// failed then); nullopt if there is none.
client::Result<std::optional<model::JobInfo>> leftUnfinished(Session& session);

/// Likewise one that has ended since the daemon began, if there is no other.
client::Result<std::optional<model::JobInfo>> leftOrEnded(Session& session);

/// The newest run that committed a step; nullopt if there is none.
client::Result<std::optional<model::RunInfo>> newestRun(Session& session);

/// Returns what `--resume` names in the words of the daemon: the newest run's id for "latest",
/// kNotFound without one, and all else as it is.
client::Result<std::string> resumedFrom(Session& session, const std::string& resume);

}  // namespace bulkhead::cli
