// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "backend/cli/cli.h"
#include "backend/client/failure.h"
#include "backend/planner/data/recording.h"

namespace CLI {
class App;
}

namespace bulkhead::cli {

/// Options of every verb of `plan` that reads routing.
struct RoutingArguments {
    std::vector<std::string> routing;  ///< PATH or DOMAIN=PATH
    std::string model;                 ///< name in the catalogue, or a catalogue's file and #NAME
    std::string part;                  ///< one of several models in one file
};

/// --routing, --model, --part.
void addRoutingOptions(CLI::App& verb, RoutingArguments& arguments);

/// InvalidArgument when a file that is to be written is one of them.
absl::Status checkNotRead(const std::string& out, const RoutingArguments& arguments);

/// Reads and joins them.
client::Result<planner::Recording> readRouting(const RoutingArguments& arguments);

/// A status of the planner as a failure of this program.
client::Failure planFailure(std::string title, const absl::Status& status);

// One for each verb of `plan` with a file of its own.
void addPlanExport(CLI::App& plan, Cli& cli);

}  // namespace bulkhead::cli
