// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/common/fields.h"
#include "backend/model/command.h"

/// A fault campaign as a run's history tells it: what was planned when it began, what could not be
/// put, how it ended. backend/campaign makes plans of files and judges them.
namespace bulkhead::model {

enum class CampaignOutcome {
    kPassed,
    kFailed,   ///< a criterion does not hold
    kAborted,  ///< by an operator
    kCutOff,   ///< the job ended, or the controller was away until it was over
};

enum class CampaignCheck {
    kFaults,         ///< enough of the planned faults took effect
    kInvariants,     ///< none broken
    kHashes,         ///< all contributors hold the same bits, and nothing but a fault changed that
    kLedger,         ///< every sample below the high water exactly once
    kEffectiveTime,  ///< 0..1, over the campaign alone
    kStall,          ///< survivors' longest, ms
    kRejoin,         ///< longest from loss to the next commit with it, ms
};

enum class VerdictState { kOpen, kPassed, kFailed };

struct CampaignCriteria {
    double minInjected = 0.5;     ///< part of the planned faults that must take effect, 0..1
    double minEffectiveTime = 0;  ///< 0..1; 0: not asked
    uint64_t maxStallMs = 0;      ///< 0: not asked
    uint64_t maxRejoinMs = 0;     ///< 0: not asked
    bool operator==(const CampaignCriteria&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("min_injected", self.minInjected);
        visit("min_effective_time", self.minEffectiveTime);
        visit("max_stall_ms", self.maxStallMs);
        visit("max_rejoin_ms", self.maxRejoinMs);
    }
};

/// A fault is known by its place in the plan, from 1.
struct PlannedFault {
    uint64_t atMs = 0;  ///< after the campaign's begin; the plan is in this order
    FaultSpec spec;
    bool operator==(const PlannedFault&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("at_ms", self.atMs);
        visit("spec", self.spec);
    }
};

struct CampaignVerdict {
    CampaignCheck check = CampaignCheck::kFaults;
    VerdictState state = VerdictState::kOpen;
    double measured = 0;  ///< in the unit of the check
    double limit = 0;
    std::string words;  ///< "longest stall 640 ms, at most 5 s"
    bool operator==(const CampaignVerdict&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("check", self.check);
        visit("state", self.state);
        visit("measured", self.measured);
        visit("limit", self.limit);
        visit("words", self.words);
    }
};

struct CampaignStarted {
    static constexpr std::string_view kType = "campaign_started";
    uint64_t campaign = 0;  ///< counts from 1 within a run
    std::string name;
    std::string about;
    uint64_t seed = 0;
    uint64_t durationMs = 0;    ///< faults come within this
    uint64_t settleMs = 0;      ///< at most so long after it until all are back
    uint32_t keepTraining = 1;  ///< contributors that every fault must leave
    bool allowLasting = false;  ///< lasting effects were accepted
    CampaignCriteria criteria;
    std::vector<PlannedFault> plan;
    std::string requestId;
    std::string by;
    bool operator==(const CampaignStarted&) const = default;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("campaign", self.campaign);
        visit("name", self.name);
        visit("about", self.about);
        visit("seed", self.seed);
        visit("duration_ms", self.durationMs);
        visit("settle_ms", self.settleMs);
        visit("keep_training", self.keepTraining);
        visit("allow_lasting", self.allowLasting);
        visit("criteria", self.criteria);
        visit("plan", self.plan);
        visit("request_id", self.requestId);
        visit("by", self.by);
    }
};

/// A planned fault that was not, or could not be, injected.
struct CampaignSkipped {
    static constexpr std::string_view kType = "campaign_skipped";
    uint64_t campaign = 0;
    uint64_t planned = 0;  ///< its place in the plan, from 1
    std::string why;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("campaign", self.campaign);
        visit("planned", self.planned);
        visit("why", self.why);
    }
};

struct CampaignEnded {
    static constexpr std::string_view kType = "campaign_ended";
    uint64_t campaign = 0;
    CampaignOutcome outcome = CampaignOutcome::kPassed;
    std::string why;
    std::vector<CampaignVerdict> verdicts;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("campaign", self.campaign);
        visit("outcome", self.outcome);
        visit("why", self.why);
        visit("verdicts", self.verdicts);
    }
};

/// A campaign as whoever asks for it sends it: the text of its file, and what is to be otherwise.
struct CampaignText {
    std::string text;
    std::string fileName;          ///< for messages
    uint64_t durationMs = 0;       ///< instead of the file's; 0: as it says
    std::optional<uint64_t> seed;  ///< instead of the file's
    bool allowLasting = false;     ///< take faults that cannot be undone
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("text", self.text);
        visit("file_name", self.fileName);
        visit("duration_ms", self.durationMs);
        visit("seed", self.seed);
        visit("allow_lasting", self.allowLasting);
    }
};

/// The preview of a campaign.
struct CampaignPreflight {
    Preflight preflight;
    CampaignStarted campaign;  ///< as it would begin
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("preflight", self.preflight);
        visit("campaign", self.campaign);
    }
};

/// The value of FaultInjected::by for planned fault `planned` of a campaign: "campaign 2, fault
/// 17".
[[nodiscard]] std::string campaignFault(uint64_t campaign, uint64_t planned);
/// Its inverse: the place in the plan; 0 when `by` is not of this campaign.
[[nodiscard]] uint64_t plannedOf(std::string_view by, uint64_t campaign);

}  // namespace bulkhead::model

namespace bulkhead {
template <>
struct EnumNames<model::CampaignOutcome> {
    static constexpr std::array<std::string_view, 4> kNames = {"passed", "failed", "aborted",
                                                               "cut_off"};
};
template <>
struct EnumNames<model::CampaignCheck> {
    static constexpr std::array<std::string_view, 7> kNames = {
        "faults", "invariants", "hashes", "ledger", "effective_time", "stall", "rejoin"};
};
template <>
struct EnumNames<model::VerdictState> {
    static constexpr std::array<std::string_view, 3> kNames = {"open", "passed", "failed"};
};
}  // namespace bulkhead
