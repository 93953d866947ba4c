// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "backend/model/run_state.h"

namespace bulkhead::campaign {

/// A campaign as one HTML file that needs nothing else: verdict per criterion, effective training
/// time and contributors over time, every fault with its fate, every incident with its phases.
/// Light or dark as the reader's system says, and fit for printing. `run` names it; `nowNs` is for
/// a campaign that still goes on. Everything that came from a file or a job is escaped. Pure.
[[nodiscard]] std::string reportHtml(const model::RunState& state,
                                     const model::CampaignView& campaign, const std::string& run,
                                     int64_t nowNs);

/// The report's style sheet.
extern const char* const kReportStyle;

}  // namespace bulkhead::campaign
