// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/fleet_view.h"

#include <QCoreApplication>
#include <QHBoxLayout>
#include <QHeaderView>
#include <QLabel>
#include <QPlainTextEdit>
#include <QSplitter>
#include <QToolButton>
#include <QTreeView>
#include <array>

#include "app/models/labels.h"
#include "app/models/roles.h"
#include "app/models/units.h"
#include "app/views/job_commands.h"
#include "app/widgets/table_style.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {
namespace {

struct ReplicaAction {
    const char* id;
    model::ActionKind kind;
    const char* title;
    const char* hint;
    const char* keys;
};

const std::array<ReplicaAction, 4> kActions = {{
    {"replica.drain", model::ActionKind::kDrain, QT_TRANSLATE_NOOP("fleet", "Drain"),
     QT_TRANSLATE_NOOP("fleet", "Let the selected replica leave after its current commit"),
     "Ctrl+D"},
    {"replica.hold", model::ActionKind::kHoldRejoin, QT_TRANSLATE_NOOP("fleet", "Hold"),
     QT_TRANSLATE_NOOP("fleet", "Keep the selected replica out once it is lost"), "Ctrl+H"},
    {"replica.release", model::ActionKind::kReleaseRejoin, QT_TRANSLATE_NOOP("fleet", "Release"),
     QT_TRANSLATE_NOOP("fleet", "Let a drained or held replica come back"), "Ctrl+L"},
    {"replica.restart", model::ActionKind::kRestartReplica, QT_TRANSLATE_NOOP("fleet", "Restart"),
     QT_TRANSLATE_NOOP("fleet", "Stop the selected replica and start it as a new incarnation"),
     "Ctrl+Shift+R"},
}};

QString tr2(const char* text) {
    return QCoreApplication::translate("fleet", text);
}

/// What the panel says of a replica, by line.
QString replicaDetail(const model::ReplicaView& r) {
    QStringList lines;
    lines << QStringLiteral("<b>%1</b>  %2").arg(tr2("Replica %1").arg(r.replica), label(r.state));
    if (!r.why.empty()) lines << toQt(r.why).toHtmlEscaped();
    if (r.catchUp) {
        QStringList sources;
        for (const int32_t source : r.catchUp->sources) sources << replicaName(source);
        lines << tr2("Catching up from %1: %2 of %3, at step %4")
                     .arg(sources.join(QStringLiteral(", ")), formatBytes(r.catchUp->bytesDone),
                          formatBytes(r.catchUp->bytesTotal))
                     .arg(r.catchUp->step);
    }
    if (r.ledger)
        lines << tr2("Last step: compute %1, exchange %2 (%3 exposed), vote %4, apply %5")
                     .arg(formatMs(r.ledger->computeMs), formatMs(r.ledger->exchangeMs),
                          formatMs(r.ledger->exposedMs), formatMs(r.ledger->voteMs),
                          formatMs(r.ledger->applyMs));
    if (r.losses > 0) lines << tr2("Lost %1 times in this run").arg(r.losses);
    return lines.join(QStringLiteral("<br>"));
}

}  // namespace

FleetView::FleetView(ViewContext& context, JobCommands& commands, QWidget* parent)
    : View(context, QStringLiteral("fleet"), tr("Fleet"), parent),
      commands_(commands),
      model_(context.feed),
      tree_(new QTreeView),
      detail_(new QLabel),
      output_(new QPlainTextEdit) {
    tree_->setModel(&model_);
    styleTree(tree_, tr("Replicas and ranks"));
    const std::array<int, FleetModel::kColumns> widths = {112, 112, 56, 44, 76, 96,
                                                          72,  64,  84, 64, 64, 48};
    for (int i = 0; i < FleetModel::kColumns; ++i)
        tree_->setColumnWidth(i, widths[static_cast<size_t>(i)]);
    detail_->setTextFormat(Qt::RichText);
    detail_->setWordWrap(true);
    detail_->setAlignment(Qt::AlignTop);
    detail_->setMargin(Space::kTwo);
    detail_->setAccessibleName(tr("Details of the selected replica"));
    output_->setReadOnly(true);
    output_->setFont(Theme::mono());
    output_->setMaximumBlockCount(200);
    output_->setLineWrapMode(QPlainTextEdit::NoWrap);
    output_->setPlaceholderText(tr("Select a rank to read its last lines of output."));
    output_->setAccessibleName(tr("Last output of the selected rank"));
    output_->setTabChangesFocus(true);
    auto* below = new QSplitter(Qt::Horizontal);
    below->addWidget(detail_);
    below->addWidget(output_);
    below->setSizes({420, 420});
    auto* body = new QSplitter(Qt::Vertical);
    body->addWidget(tree_);
    body->addWidget(below);
    body->setStretchFactor(0, 1);
    body->setSizes({340, 96});
    setBody(body);
    addActions();
    connect(tree_->selectionModel(), &QItemSelectionModel::currentChanged, this,
            &FleetView::refreshDetail);
    connect(&model_, &QAbstractItemModel::modelReset, tree_, &QTreeView::expandAll);
    connect(&context_.session, &Session::statusChanged, this, &FleetView::enableActions);
    enableActions();
}

void FleetView::addActions() {
    const auto addButton = [this](QAction* action, const QString& words) {
        auto* button = new QToolButton;
        button->setDefaultAction(action);
        button->setText(words);
        button->setAccessibleName(action->text());
        controls()->addWidget(button);
    };
    for (const ReplicaAction& entry : kActions) {
        QAction* action = context_.actions.add(
            QString::fromLatin1(entry.id), tr("Replica"), tr2(entry.title) + tr(" replica\u2026"),
            tr2(entry.hint), QKeySequence(QString::fromLatin1(entry.keys)),
            [this, kind = entry.kind] { actOnSelected(kind); });
        action->setIconText(tr2(entry.title));
        addButton(action, tr2(entry.title));
    }
    QAction* fault = context_.actions.add(
        QStringLiteral("replica.fault"), tr("Replica"), tr("Fault for selection\u2026"),
        tr("Compose a fault for the selected replica or rank"),
        QKeySequence(QStringLiteral("Ctrl+Shift+F")),
        [this] { Q_EMIT faultWanted(selectedReplica(), selectedShard()); });
    fault->setIconText(tr("Fault"));
    addButton(fault, tr("Fault"));
}

QWidget* FleetView::focusTarget() {
    return tree_;
}

int FleetView::selectedReplica() const {
    const QModelIndex index = tree_->currentIndex();
    return index.isValid() ? index.data(kReplicaRole).toInt() : -1;
}

int FleetView::selectedShard() const {
    const QModelIndex index = tree_->currentIndex();
    return index.isValid() ? index.data(kShardRole).toInt() : -1;
}

void FleetView::select(int replica, int shard) {
    tree_->setCurrentIndex(model_.indexOf(replica, shard));
}

void FleetView::actOnSelected(model::ActionKind kind) {
    if (selectedReplica() < 0) return;
    model::Action action;
    action.kind = kind;
    action.replica = selectedReplica();
    commands_.act(action);
}

void FleetView::enableActions() {
    const bool can = context_.session.status().canAct() && selectedReplica() >= 0;
    for (const ReplicaAction& entry : kActions)
        context_.actions.find(QString::fromLatin1(entry.id))->setEnabled(can);
    context_.actions.find(QStringLiteral("replica.fault"))->setEnabled(can);
}

void FleetView::refresh() {
    if (context_.feed.revisions().fleet == drawn_.fleet) return;
    drawn_ = context_.feed.revisions();
    const int replica = selectedReplica();
    const int shard = selectedShard();
    model_.refresh();
    tree_->setColumnHidden(FleetModel::kGpu, !model_.hasGpu());
    if (selectedReplica() < 0) select(std::max(replica, 0), replica < 0 ? -1 : shard);
    refreshDetail();
}

void FleetView::refreshDetail() {
    enableActions();
    const model::RunState& state = context_.feed.state();
    const int replica = selectedReplica();
    const model::ReplicaView* r = model::findReplica(state, replica);
    detail_->setText(r ? replicaDetail(*r) : QString());
    const RankId id{replica, std::max(selectedShard(), 0)};
    const model::RankView* rank = r ? model::findRank(state, id) : nullptr;
    const uint64_t total = rank ? rank->output.total() : 0;
    if (outputReplica_ == id.replica && outputShard_ == id.shard && outputTotal_ == total) return;
    outputReplica_ = id.replica;
    outputShard_ = id.shard;
    outputTotal_ = total;
    QString text;
    if (rank != nullptr)
        for (const model::OutputLine& line : rank->output)
            text += formatClock(line.timeNs) + QStringLiteral("  ") + toQt(line.line) + u'\n';
    output_->setPlainText(text.trimmed());
    output_->moveCursor(QTextCursor::End);
    output_->moveCursor(QTextCursor::StartOfLine);
}

}  // namespace bulkhead::ui
