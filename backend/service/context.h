// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>

#include "absl/status/status.h"
#include "backend/model/listing.h"
#include "backend/service/backend.h"
#include "backend/service/gate.h"
#include "backend/service/job_feeds.h"
#include "backend/service/job_list.h"
#include "backend/service/open.h"
#include "backend/service/request_log.h"
#include "backend/service/run_library.h"
#include "backend/service/workers.h"

namespace bulkhead::service {

/// State that the four services share; owned by Server, outlives them.
struct Context {
    const Gate& gate;
    Auditor& auditor;
    access::AuditLog* audit = nullptr;  ///< null: none is kept
    Backend* backend = nullptr;         ///< null: read-only, no jobs
    RunLibrary* runs = nullptr;         ///< null: no history
    JobFeeds* feeds = nullptr;          ///< null as backend
    JobListFeed& jobList;
    RequestLog& requests;
    Open& open;
    Workers& reads;    ///< calls that answer soon and change nothing
    Workers& changes;  ///< calls that change something: no number of reads keeps them waiting
    Workers& stops;    ///< stops of jobs: nothing else keeps them waiting
    Workers& checks;   ///< those that read all of a run
    Workers& exports;  ///< those that go on as long as their reader reads
    Workers& streams;  ///< updates of watches
    Shares& exportShares;
    Shares& watchShares;
    std::chrono::milliseconds exportPatience;
    std::function<model::ServerInfo()> info;  ///< but for what it says of the caller
    std::function<absl::Status()> shutdown;
};

/// Errors of calls that need jobs or history, in a daemon that has none.
inline absl::Status readOnly() {
    return absl::FailedPreconditionError(
        "this daemon serves a run file and has no jobs; start a daemon without --run");
}
inline absl::Status noHistory() {
    return absl::FailedPreconditionError("this daemon keeps no history; start it with --db");
}

}  // namespace bulkhead::service
