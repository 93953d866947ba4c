// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "backend/client/client.h"

namespace bulkhead::client {

class Connection;

/// Client::exportRun.
void startExport(Connection& connection, ExportRequest request,
                 std::function<void(std::string)> chunk, Reply<Done> reply);

}  // namespace bulkhead::client
