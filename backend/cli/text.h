// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "backend/client/failure.h"
#include "backend/model/event.h"
#include "backend/model/ledger_audit.h"
#include "backend/model/run_state.h"

/// Text for terminals: what names and messages of a run hold, line breaks too, cannot look like
/// lines of ours (model::printable). Pure; thread: any.
namespace bulkhead::cli {

/// Columns as wide as their widest cell, two spaces between; the first row is the heading.
std::string table(std::vector<std::vector<std::string>> rows);

/// "12:03:44.120"
std::string clockTime(int64_t unixNs);
/// "2026-11-21 12:03:44"
std::string dateTime(int64_t unixNs);

/// One line: time, severity, type, and the event's own short fields.
std::string eventLine(const model::Event& event);
/// Worth a line of its own while a job runs.
bool isNotable(const model::Event& event);

/// "step 53/200  loss 2.31  4/4 replicas  2048 tok/s  ett 98.1%  training"
std::string summaryLine(const model::RunState& state);
/// The same as one JSON object.
std::string summaryJson(const model::RunState& state);
/// Several lines: phase, replicas, incidents, faults.
std::string stateText(const model::RunState& state);
std::string incidentsText(const model::RunState& state);

/// A line for each finding of a ledger's check: what is off and what to do.
std::string findingsText(const model::LedgerReport& report);

/// The reason for which a run ended badly, in its own words.
client::Failure runFailed(const model::RunFinished& finished);

}  // namespace bulkhead::cli
