// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backend/client/job_source.h"

namespace CLI {
class App;
}

namespace bulkhead::cli {

/// --job, --replicas, --shards, --steps, --seed, --name, --data, --fault, --set, --resume
void addJobOptions(CLI::App& verb, client::JobSource& job);

}  // namespace bulkhead::cli
