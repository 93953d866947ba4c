// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/model/run_state.h"

/// Judges the progress of a campaign and its criteria, from the run's state alone. Pure; thread:
/// any.
namespace bulkhead::campaign {

enum class Stage { kInjecting, kSettling, kOver };

struct Progress {
    Stage stage = Stage::kInjecting;
    double elapsedMs = 0;  ///< since it began; when it is over, all it took
    size_t planned = 0;
    size_t injected = 0;  ///< took effect
    size_t skipped = 0;
    size_t acting = 0;         ///< injected and not over
    size_t openIncidents = 0;  ///< of those that opened during it
    double effectiveTime = 1;  ///< 0..1, since it began
};

/// `nowNs` is Unix time; ignored when the campaign is over.
[[nodiscard]] Progress progressOf(const model::RunState& state, const model::CampaignView& campaign,
                                  int64_t nowNs);

/// The check that needs the commit log: it covers the data exactly once.
struct LedgerFinding {
    bool exact = false;
    std::string words;
};

/// One verdict for each criterion asked, in the order of CampaignCheck. While it goes on a verdict
/// is open unless it has failed already; `isLast` with a finding gives the final ones. Of a
/// campaign that is over: what stands in its end.
[[nodiscard]] std::vector<model::CampaignVerdict> judge(
    const model::RunState& state, const model::CampaignView& campaign, int64_t nowNs,
    bool isLast = false, const std::optional<LedgerFinding>& ledger = std::nullopt);

/// The incidents that opened while it went on, oldest first; pointers into `state`.
[[nodiscard]] std::vector<const model::IncidentView*> incidentsOf(
    const model::RunState& state, const model::CampaignView& campaign);

/// One planned fault and what came of it.
struct FaultFate {
    uint64_t planned = 0;  ///< from 1
    uint64_t atMs = 0;     ///< planned
    model::FaultSpec spec;
    const model::FaultView* fault = nullptr;      ///< into `state`; null: not injected
    const model::SkippedView* skipped = nullptr;  ///< into the campaign; null: not skipped
};
[[nodiscard]] std::vector<FaultFate> fatesOf(const model::RunState& state,
                                             const model::CampaignView& campaign);

/// Effective training time (model/ett.h) of a stretch alone: steps that a rollback within it undid
/// are taken back, time without a commit counts as idle. Where the state has forgotten the first
/// steps (it keeps 20,000), of the rest.
[[nodiscard]] double effectiveTimeOf(const model::RunState& state, int64_t beginNs, int64_t endNs);

}  // namespace bulkhead::campaign
