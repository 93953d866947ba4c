// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/planner/data/recording.h"
#include "backend/planner/plan/plan.h"

/// A plan that serves, held against its promise, from recordings as they come. Pure.
namespace bulkhead::planner {

struct ServingWatchOptions {
    double drift = 0;  ///< a figure may be so much above its range, as a part (drift.h)
    /// Tokens that count; 0: as many as the plan was made from, which its ranges are for.
    uint64_t window = 0;
    double homeCap = 1.15;  ///< where the plan does not say it
};

/// Figures of the tokens that count.
struct ServingFigures {
    uint64_t tokens = 0;               ///< that count, older ones for a part
    bool enough = false;               ///< to hold them against the promise
    std::optional<double> sends;       ///< a token, mean over layers; none from counts
    std::optional<double> copies;      ///< likewise
    double nodeLoad = 0, gpuLoad = 0;  ///< max/mean, mean over layers
    /// Figures that are above what the plan promised, in words; empty: none, or not enough tokens
    /// came. Looked at are what the plan is made for (sends, copies or GPU load) and node load.
    std::string left;
    std::string leftFirst;  ///< name of the first of those: "sends", "copies", "GPU load", ...
};

/// Part of a figure that a new plan is to save at least.
inline constexpr double kLeastSaving = 0.02;

/// Saving of a new plan that is to be expected on requests not seen.
struct ExpectedSaving {
    std::string figure;
    double found = 0;     ///< with the plan in use
    double expected = 0;  ///< of the new one: the mean of its forecast
    double part() const { return found > 0 ? 1 - expected / found : 0; }
    bool pays() const { return part() >= kLeastSaving; }
    /// "sends 0.583 expected on requests not seen, 1.5% less than 0.592 with the plan before, on
    /// the requests that the new one was made from"
    std::string text() const;
};

/// In the figure that left its range first: what was found with the plan in use, and what the
/// forecast of a plan made from the same requests expects. Precondition: a figure left its range.
[[nodiscard]] ExpectedSaving expectedSaving(const ServingFigures& found, const Forecast& forecast);

/// Recordings with tokens: the latest whole requests count, `window` tokens of them, and are
/// served as the plan's forecast takes requests to be. Of counts the newest count most: each token
/// that comes takes 1 / (window / 2) off the weight of those before, which are then worth, as a
/// sample, what `window` tokens are. Holds no more than that, whatever comes. Thread: one.
class ServingWatch {
  public:
    /// FailedPrecondition when the plan has no forecast.
    [[nodiscard]] static absl::StatusOr<ServingWatch> create(
        Plan plan, const ServingWatchOptions& options = {});

    /// Takes a recording in; whatever is refused changes nothing. InvalidArgument when it does not
    /// fit the plan, has neither tokens nor counts, or has the one where the other came before;
    /// FailedPrecondition for counts of a plan whose replicas are chosen token by token.
    [[nodiscard]] absl::Status add(const Recording& recording);

    /// InvalidArgument when nothing came, or nothing that can be scored (held_out.h).
    [[nodiscard]] absl::StatusOr<ServingFigures> figures() const;

    /// Recording that a new plan is to be made from. Precondition: something came.
    [[nodiscard]] Recording recent() const;

    /// So many tokens as count have to come before figures are enough again: after a proposal.
    void rest() { came_ = 0; }

    const Plan& plan() const { return plan_; }
    bool counted() const { return !counts_.empty(); }

  private:
    ServingWatch(Plan plan, const ServingWatchOptions& options);
    absl::Status addTokens(const Routing& routing);
    absl::Status addCounts(const Recording& recording);

    Plan plan_;
    ServingWatchOptions options_;
    uint64_t came_ = 0;  ///< tokens, since the beginning or the last rest
    std::optional<Routing> routing_;
    std::map<std::string, std::vector<double>> counts_;  ///< by domain, layers x experts
};

}  // namespace bulkhead::planner
