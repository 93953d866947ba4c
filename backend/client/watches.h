// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "backend/client/client.h"

namespace bulkhead::client {

class Connection;

/// Client::watch and Client::watchJobs.
std::unique_ptr<Watch> startWatch(const std::shared_ptr<Connection>& connection,
                                  const WatchTarget& target, WatchHandlers handlers);
std::unique_ptr<Watch> startJobsWatch(const std::shared_ptr<Connection>& connection,
                                      JobsHandlers handlers);

}  // namespace bulkhead::client
