// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QObject>
#include <QString>
#include <atomic>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "app/models/run_feed.h"
#include "app/session/background.h"
#include "backend/planner/live/live_front.h"

namespace bulkhead::ui {

/// The author of a proposal.
enum class PlanOrigin { kPlanner, kRollback, kFile, kByHand, kBackend };

/// A placement that is considered: nothing of it has happened to the job.
struct PlanProposal {
    PlanOrigin origin = PlanOrigin::kPlanner;
    uint64_t layout = 0;  ///< in use when it was thought of; void in another
    std::vector<int32_t> expertShard;
    std::vector<uint32_t> domainShare;
    double optimism = 0;  ///< as in planner::LivePreview
    bool operator==(const PlanProposal&) const = default;
};

/// The one placement plan that the operator considers for the run on screen: asked of the planner,
/// off the GUI's thread, or of a file, of the past, or moved by hand. It ends when the experts have
/// moved or another run is shown. Thread: the GUI's.
class PlanDesk final : public QObject {
    Q_OBJECT
  public:
    explicit PlanDesk(const RunFeed& feed, QObject* parent = nullptr);
    ~PlanDesk() override;

    /// Several of the planner's own, of which the recommended one becomes the proposal.
    void propose(const planner::LiveOptions& options);
    /// The search ends soon, with the best plans so far.
    void stop();
    /// Another of these instead.
    void choose(int point);
    /// A plan that was made elsewhere, our own JSON; `group`: with its homes.
    void proposeFile(const QString& path, bool group);
    /// The plan that the backend proposed.
    void proposeWaiting();
    /// Back to before the last move.
    void proposeRollback();
    /// The proposed layout, or else the one in use, with one expert moved.
    void move(int layer, int expert, int shard);
    void drop();

    bool isPlanning() const { return planning_; }
    /// Progress of the search of propose(); `of` is 0 until it has begun.
    const planner::LiveFrontProgress& progress() const { return progress_; }
    const std::optional<PlanProposal>& proposal() const { return proposal_; }
    /// The plans that propose() made; null when there are none for what is in use.
    const planner::LiveFront* front() const { return front_ ? &*front_ : nullptr; }
    /// Index of the one that is the proposal; -1: none.
    int chosen() const;
    /// The reason for which a requested proposal does not exist; OK otherwise.
    const absl::Status& refusal() const { return refusal_; }
    /// Number of the layout that voided the last proposal; 0: none did.
    uint64_t voidSince() const { return voidSince_; }

  Q_SIGNALS:
    void changed();
    void progressed();

  private:
    void take(PlanOrigin origin, const absl::StatusOr<planner::LivePlan>& plan);
    void takeFront(absl::StatusOr<planner::LiveFront> front);
    /// All but the front: a choice among its points stays open.
    void forget();
    void noteLayout();
    void noteProgress(uint64_t question, const planner::LiveFrontProgress& at);

    const RunFeed& feed_;
    Background background_;
    std::optional<PlanProposal> proposal_;
    std::optional<planner::LiveFront> front_;
    absl::Status refusal_;
    bool planning_ = false;
    planner::LiveFrontProgress progress_;
    std::shared_ptr<std::atomic<bool>> stop_;  ///< polled by the running search
    uint64_t asked_ = 0;                       ///< the answer to an older question is dropped
    uint64_t voidSince_ = 0;
};

}  // namespace bulkhead::ui
