// SPDX-License-Identifier: GPL-3.0-only
#include <QLabel>
#include <QTabWidget>
#include <QTableView>

#include "app/views/job_commands.h"
#include "app/views/placement_view.h"
#include "app/views/proposal_banner.h"
#include "app/views/rules_panel.h"
#include "app/widgets/placement_board.h"
#include "backend/model/expert_rules.h"

/// Experts that are pinned or forbidden, and the plan that the backend proposed;
/// placement_view.cpp has the page itself.
namespace bulkhead::ui {

void PlacementView::addRuleActions(const QString& menu) {
    ActionRegistry& a = context_.actions;
    look_ = a.add(QStringLiteral("placement.waiting"), menu, tr("Review the proposed plan"),
                  tr("The backend proposed it when routing drifted; nothing moves yet"),
                  QKeySequence(QStringLiteral("Ctrl+Alt+O")), [this] { desk_.proposeWaiting(); });
    dismiss_ = a.add(QStringLiteral("placement.dismiss"), menu, tr("Dismiss the proposed plan"),
                     tr("While routing stays drifted another one comes after the cool-down"),
                     QKeySequence(QStringLiteral("Ctrl+Alt+X")), [this] { dismiss(); });
    pin_ = a.add(QStringLiteral("placement.pin"), menu, tr("Pin the expert to its shard"),
                 tr("Every plan from now on keeps it there; nothing moves yet"),
                 QKeySequence(QStringLiteral("Ctrl+Alt+P")), [this] { ruleCurrent(true); });
    forbid_ = a.add(QStringLiteral("placement.forbid"), menu, tr("Forbid the expert on its shard"),
                    tr("Every plan from now on puts it on another; nothing moves yet"),
                    QKeySequence(QStringLiteral("Ctrl+Alt+F")), [this] { ruleCurrent(false); });
    free_ = a.add(QStringLiteral("placement.free"), menu, tr("Free the expert"),
                  tr("It is neither pinned nor forbidden anywhere any more"),
                  QKeySequence(QStringLiteral("Ctrl+Alt+U")),
                  [this] { freeExpert(board_->current()); });
}

void PlacementView::showRules() {
    rules_->set(*placement_);
    const auto count = placement_->job.rules.size();
    details_->setTabText(
        details_->indexOf(rules_),
        count == 0 ? tr("Pinned and forbidden") : tr("Pinned and forbidden (%1)").arg(count));
}

void PlacementView::showWaiting() {
    const model::RunState& state = context_.feed.state();
    const model::ProposalView* waiting = model::openProposal(state);
    if (waiting == nullptr) return banner_->set({}, {});
    banner_->set(waitingHeadline(state, *waiting), waitingWords(state, *waiting));
}

void PlacementView::enableRules(bool can) {
    const bool waits = model::openProposal(context_.feed.state()) != nullptr;
    const auto& shown = desk_.proposal();
    look_->setEnabled(waits && !(shown && shown->origin == PlanOrigin::kBackend));
    dismiss_->setEnabled(waits && can);
    for (QAction* action : {pin_, forbid_, free_}) action->setEnabled(can);
    board_->setRulable(can);
}

void PlacementView::move(int expert, int shard) {
    const int layer = layerTable_->currentIndex().row();
    for (const model::ExpertRule& r : context_.feed.state().expertRules) {
        if (static_cast<int>(r.layer) != layer || static_cast<int>(r.expert) != expert ||
            (static_cast<int>(r.shard) == shard) == r.pins)
            continue;
        const QString words = (r.pins ? tr("%1, expert %2, is pinned to shard %3")
                                      : tr("%1, expert %2, is forbidden on shard %3"))
                                  .arg(layerName_->text())
                                  .arg(r.expert)
                                  .arg(r.shard);
        return context_.commands.complain(client::localFailure(
            client::FailureCode::kRefused, words.toStdString(), tr("Free it first").toStdString()));
    }
    desk_.move(layer, expert, shard);
}

void PlacementView::rule(const std::vector<model::ExpertRule>& rules) {
    model::Action action;
    action.kind = model::ActionKind::kRuleExperts;
    action.rules = rules;
    context_.commands.actNow(action);
}

void PlacementView::ruleCurrent(bool pins) {
    const int layer = layerTable_->currentIndex().row(), expert = board_->current();
    if (!placement_ || layer < 0 || layer >= placement_->layers()) return;
    const size_t at =
        static_cast<size_t>(layer) * placement_->job.counts.experts + static_cast<size_t>(expert);
    addRule(expert, placement_->shown().expertShard[at], pins);
}

void PlacementView::addRule(int expert, int shard, bool pins) {
    const int layer = layerTable_->currentIndex().row();
    if (layer < 0) return;
    rule(model::withRule(context_.feed.state().expertRules,
                         {static_cast<uint32_t>(layer), static_cast<uint32_t>(expert),
                          static_cast<uint32_t>(shard), pins}));
}

void PlacementView::freeExpert(int expert) {
    const int layer = layerTable_->currentIndex().row();
    const std::vector<model::ExpertRule>& rules = context_.feed.state().expertRules;
    if (layer < 0) return;
    auto left =
        model::withoutRules(rules, static_cast<uint32_t>(layer), static_cast<uint32_t>(expert));
    if (left.size() != rules.size()) rule(left);
}

void PlacementView::dismiss() {
    const model::ProposalView* waiting = model::openProposal(context_.feed.state());
    if (waiting == nullptr) return;
    model::Action action;
    action.kind = model::ActionKind::kDismissPlan;
    action.step = waiting->plan.step;
    if (desk_.proposal() && desk_.proposal()->origin == PlanOrigin::kBackend) desk_.drop();
    context_.commands.actNow(action);
}

}  // namespace bulkhead::ui
