// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <prometheus/metric_family.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "backend/model/listing.h"
#include "backend/model/run_state.h"

namespace bulkhead::cli {

/// A daemon as `bulkheadctl metrics` knows it at one moment.
struct Observed {
    bool up = false;           ///< the connection to it is live
    model::ServerInfo server;  ///< `build` is empty while it is not known
    std::vector<model::JobInfo> jobs;
    /// By job id; a job without an entry has not sent its state yet.
    std::map<std::string, model::RunState> states;
};

/// Prometheus metric families: one series for each job, for each
/// state of its replicas and for each node, none for each rank, so that a job of 100,000 ranks has
/// about as many series as nodes. Times are Unix seconds, durations seconds, shares 0 to 1. A
/// figure that is not known has no series. Pure. Thread: any.
std::vector<prometheus::MetricFamily> metricFamilies(const Observed& observed);

}  // namespace bulkhead::cli
