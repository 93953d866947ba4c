// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "backend/client/client.h"

namespace bulkhead::client {

class Connection;

/// Client::watch and Client::watchJobs.
std::unique_ptr<Watch> startWatch(Connection& connection, const WatchTarget& target,
                                  WatchHandlers handlers);
std::unique_ptr<Watch> startJobsWatch(Connection& connection, JobsHandlers handlers);

}  // namespace bulkhead::client
