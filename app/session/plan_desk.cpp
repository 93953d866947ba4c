// SPDX-License-Identifier: GPL-3.0-only
#include "app/session/plan_desk.h"

#include <QFile>
#include <QFileInfo>
#include <chrono>

#include "backend/common/file_system.h"
#include "backend/planner/plan/plan_json.h"

namespace bulkhead::ui {
namespace {

using std::chrono::steady_clock;

/// Time between two tellings of how far a search is.
constexpr std::chrono::milliseconds kTell{50};

absl::StatusOr<planner::LivePlan> planOf(const planner::LiveJob& job, const QString& path,
                                         bool group) {
    const std::string name = QFileInfo(path).fileName().toStdString();
    const auto text = readAtMost(QFile::encodeName(path).toStdString(), planner::kMostPlanBytes);
    if (!text.ok()) return text.status();
    const absl::StatusOr<planner::Plan> plan = planner::parsePlan(*text, name);
    if (!plan.ok()) return plan.status();
    planner::LiveOptions options;
    options.group = group;
    return planner::planFromFile(job, *plan, options);
}

}  // namespace

PlanDesk::PlanDesk(const RunFeed& feed, QObject* parent) : QObject(parent), feed_(feed) {
    connect(&feed, &RunFeed::wasReset, this, [this] {
        forget();
        front_.reset();
        Q_EMIT changed();
    });
    connect(&feed, &RunFeed::updated, this, &PlanDesk::noteLayout);
}

PlanDesk::~PlanDesk() {
    stop();
}

void PlanDesk::stop() {
    if (stop_) *stop_ = true;
}

void PlanDesk::forget() {
    stop();
    stop_.reset();
    ++asked_;
    planning_ = false;
    progress_ = {};
    proposal_.reset();
    refusal_ = absl::OkStatus();
    voidSince_ = 0;
}

void PlanDesk::drop() {
    forget();
    Q_EMIT changed();
}

void PlanDesk::take(PlanOrigin origin, const absl::StatusOr<planner::LivePlan>& plan) {
    forget();
    refusal_ = plan.status();
    if (plan.ok())
        proposal_ = {origin, plan->preview.layout, plan->action.expertShard,
                     plan->action.domainShare, plan->preview.forecast.optimism()};
    noteLayout();
    Q_EMIT changed();
}

void PlanDesk::propose(const planner::LiveOptions& options) {
    const absl::StatusOr<planner::LiveJob> job = planner::liveJob(feed_.state());
    if (!job.ok()) return take(PlanOrigin::kPlanner, job.status());
    forget();
    planning_ = true;
    stop_ = std::make_shared<std::atomic<bool>>(false);
    const uint64_t question = asked_;
    // This waits for the search when it is destroyed (Background).
    const auto tell = [this, question, stop = stop_,
                       told = steady_clock::now()](const planner::LiveFrontProgress& at) mutable {
        if (const auto now = steady_clock::now(); now - told >= kTell) {
            told = now;
            QMetaObject::invokeMethod(
                this, [this, question, at] { noteProgress(question, at); }, Qt::QueuedConnection);
        }
        return !*stop;
    };
    background_.run([job = *job, options, tell] { return planner::liveFront(job, options, tell); },
                    [this, question](const absl::StatusOr<planner::LiveFront>& front) {
                        if (question == asked_) takeFront(front);
                    });
    Q_EMIT changed();
}

void PlanDesk::noteProgress(uint64_t question, const planner::LiveFrontProgress& at) {
    if (question != asked_) return;
    progress_ = at;
    Q_EMIT progressed();
}

void PlanDesk::takeFront(absl::StatusOr<planner::LiveFront> front) {
    if (!front.ok()) return take(PlanOrigin::kPlanner, front.status());
    front_ = *std::move(front);
    take(PlanOrigin::kPlanner, front_->points[front_->recommended].plan);
}

void PlanDesk::choose(int point) {
    if (front_ && point >= 0 && point < static_cast<int>(front_->points.size()))
        take(PlanOrigin::kPlanner, front_->points[static_cast<size_t>(point)].plan);
}

int PlanDesk::chosen() const {
    for (size_t i = 0; front_ && proposal_ && i < front_->points.size(); ++i) {
        const model::Action& action = front_->points[i].plan.action;
        if (action.expertShard == proposal_->expertShard &&
            action.domainShare == proposal_->domainShare)
            return static_cast<int>(i);
    }
    return -1;
}

void PlanDesk::proposeFile(const QString& path, bool group) {
    const absl::StatusOr<planner::LiveJob> job = planner::liveJob(feed_.state());
    if (!job.ok()) return take(PlanOrigin::kFile, job.status());
    forget();
    planning_ = true;
    background_.run([job = *job, path, group] { return planOf(job, path, group); },
                    [this, question = asked_](const absl::StatusOr<planner::LivePlan>& plan) {
                        if (question == asked_) take(PlanOrigin::kFile, plan);
                    });
    Q_EMIT changed();
}

void PlanDesk::proposeWaiting() {
    take(PlanOrigin::kBackend, planner::planProposed(feed_.state()));
}

void PlanDesk::proposeRollback() {
    take(PlanOrigin::kRollback, planner::planBefore(feed_.state()));
}

void PlanDesk::move(int layer, int expert, int shard) {
    const absl::StatusOr<planner::LiveJob> job = planner::liveJob(feed_.state());
    if (!job.ok() || shard < 0 || shard >= static_cast<int>(job->shards)) return;
    PlanProposal next =
        proposal_.value_or(PlanProposal{{}, job->layout, job->expertShard, job->domainShare, 0});
    const size_t at =
        static_cast<size_t>(layer) * job->counts.experts + static_cast<size_t>(expert);
    if (at >= next.expertShard.size() || next.expertShard[at] == shard) return;
    next.expertShard[at] = shard;
    next.origin = PlanOrigin::kByHand;
    forget();
    const bool back = next.expertShard == job->expertShard && next.domainShare == job->domainShare;
    if (!back) proposal_ = std::move(next);
    Q_EMIT changed();
}

void PlanDesk::noteLayout() {
    const uint64_t layout = feed_.state().layout;
    const bool stale = proposal_ ? proposal_->layout != layout
                                 : front_ && front_->points[0].plan.preview.layout != layout;
    if (!stale) return;
    forget();
    front_.reset();
    voidSince_ = layout;
    Q_EMIT changed();
}

}  // namespace bulkhead::ui
