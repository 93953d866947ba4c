// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/fleet_view.h"

#include <QCoreApplication>
#include <QHBoxLayout>
#include <QHeaderView>
#include <QLabel>
#include <QPlainTextEdit>
#include <QScrollArea>
#include <QSplitter>
#include <QToolButton>
#include <QTreeView>
#include <array>

#include "app/models/event_text.h"
#include "app/models/gpu_rows.h"
#include "app/models/labels.h"
#include "app/models/roles.h"
#include "app/models/units.h"
#include "app/views/job_commands.h"
#include "app/widgets/table_style.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {
namespace {

struct FleetAction {
    const char* id;
    model::ActionKind kind;
    const char* face;
    const char* title;
    const char* hint;
    const char* keys;
    bool onNode = false;
};

const std::array<FleetAction, 6> kActions = {{
    {"replica.drain", model::ActionKind::kDrain, QT_TRANSLATE_NOOP("fleet", "Drain"),
     QT_TRANSLATE_NOOP("fleet", "Drain replica\u2026"),
     QT_TRANSLATE_NOOP("fleet", "Let the selected replica leave after its current commit"),
     "Ctrl+D"},
    {"replica.hold", model::ActionKind::kHoldRejoin, QT_TRANSLATE_NOOP("fleet", "Hold"),
     QT_TRANSLATE_NOOP("fleet", "Hold replica\u2026"),
     QT_TRANSLATE_NOOP("fleet", "Keep the selected replica out once it is lost"), "Ctrl+H"},
    {"replica.release", model::ActionKind::kReleaseRejoin, QT_TRANSLATE_NOOP("fleet", "Release"),
     QT_TRANSLATE_NOOP("fleet", "Release replica\u2026"),
     QT_TRANSLATE_NOOP("fleet", "Let a drained or held replica come back"), "Ctrl+L"},
    {"replica.restart", model::ActionKind::kRestartReplica, QT_TRANSLATE_NOOP("fleet", "Restart"),
     QT_TRANSLATE_NOOP("fleet", "Restart replica\u2026"),
     QT_TRANSLATE_NOOP("fleet", "Stop the selected replica and start it as a new incarnation"),
     "Ctrl+Shift+R"},
    {"node.cordon", model::ActionKind::kCordon, QT_TRANSLATE_NOOP("fleet", "Cordon"),
     QT_TRANSLATE_NOOP("fleet", "Cordon node\u2026"),
     QT_TRANSLATE_NOOP("fleet", "The node of the selected row takes no new ranks"), "Ctrl+G", true},
    {"node.uncordon", model::ActionKind::kUncordon, QT_TRANSLATE_NOOP("fleet", "Uncordon"),
     QT_TRANSLATE_NOOP("fleet", "Uncordon node\u2026"),
     QT_TRANSLATE_NOOP("fleet", "The node of the selected row takes ranks again"), "Ctrl+Shift+G",
     true},
}};

QString tr2(const char* text) {
    return QCoreApplication::translate("fleet", text);
}

/// The panel's text on a replica, by line.
QString replicaDetail(const model::RunState& state, const model::ReplicaView& r, int shard) {
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
    if (r.losses > 0)
        lines << (r.losses == 1 ? tr2("Lost once") : tr2("Lost %1 times").arg(r.losses));
    lines << gpuLines(state, r.replica, shard);
    return lines.join(QStringLiteral("<br>"));
}

QString nodeDetail(const model::RunState& state, const model::NodeView& n) {
    std::vector<RankId> ranks;
    for (const model::RankView& rank : state.ranks)
        if (rank.pid != 0 && rank.node == n.node) ranks.push_back(rank.rank);
    QStringList lines;
    lines << QStringLiteral("<b>%1</b>  %2, %3")
                 .arg(toQt(n.node).toHtmlEscaped(), nodeState(n.state),
                      toQt(n.address).toHtmlEscaped());
    if (!n.why.empty()) lines << toQt(n.why).toHtmlEscaped();
    lines << tr2("%1 of %2 slots used: %3")
                 .arg(ranks.size())
                 .arg(n.slots)
                 .arg(ranks.empty() ? noFigure() : ranksInWords(ranks));
    lines << gpuLines(state, n);
    return lines.join(QStringLiteral("<br>"));
}

/// Replicas of more ranks than these in all are opened one by one, by whoever wants to see them.
constexpr size_t kMostExpanded = 4096;

/// With each sample of the fleet every figure is another. Qt would look for the place of each row
/// of them on the screen, of which a few are there.
class FleetTree final : public QTreeView {
  public:
    void dataChanged(const QModelIndex&, const QModelIndex&, const QList<int>&) override {
        viewport()->update();
    }
};

}  // namespace

FleetView::FleetView(ViewContext& context, QWidget* parent)
    : View(context, QStringLiteral("fleet"), tr("Fleet"), parent),
      model_(context.feed),
      tree_(new FleetTree),
      target_(new QLabel),
      detail_(new QLabel),
      output_(new QPlainTextEdit) {
    tree_->setModel(&model_);
    styleTree(tree_, tr("Replicas, ranks and nodes"));
    tree_->setContextMenuPolicy(Qt::ActionsContextMenu);
    const std::array<int, FleetModel::kColumns> widths = {112, 112, 56, 56, 108, 104,
                                                          100, 64,  84, 64, 76,  48};
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
    auto* scroll = new QScrollArea;
    scroll->setWidget(detail_);
    scroll->setWidgetResizable(true);
    scroll->setFrameShape(QFrame::NoFrame);
    scroll->setFocusPolicy(Qt::NoFocus);
    below->addWidget(scroll);
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
    connect(&model_, &QAbstractItemModel::modelReset, this, [this] {
        if (context_.feed.state().ranks.size() <= kMostExpanded) tree_->expandAll();
    });
    connect(&context_.session, &Session::statusChanged, this, &FleetView::enableActions);
    connect(&context_.cursor, &TimeCursor::framed, this, [this] {
        const auto& frame = context_.cursor.frame();
        if (frame && frame->replica >= 0) select(frame->replica, -1);
    });
    enableActions();
}

void FleetView::addActions() {
    target_->setObjectName(QStringLiteral("Muted"));
    target_->setAccessibleName(tr("What the buttons act on"));
    controls()->addWidget(target_);
    for (const FleetAction& entry : kActions) {
        QAction* action =
            context_.actions.add(QString::fromLatin1(entry.id), tr("Fleet"), tr2(entry.title),
                                 tr2(entry.hint), QKeySequence(QString::fromLatin1(entry.keys)),
                                 [this, kind = entry.kind] { actOnSelected(kind); });
        buttons_.push_back(addButton(action, tr2(entry.face)));
        tree_->addAction(action);
    }
    QAction* fault = context_.actions.add(
        QStringLiteral("replica.fault"), tr("Fleet"), tr("Fault for selection\u2026"),
        tr("Compose a fault for the selected replica, rank or node"),
        QKeySequence(QStringLiteral("Ctrl+Shift+F")),
        [this] { Q_EMIT faultWanted(selectedReplica(), selectedShard(), selectedNode()); });
    addButton(fault, tr("Fault"));
    tree_->addAction(fault);
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

QString FleetView::selectedNode() const {
    const QModelIndex index = tree_->currentIndex();
    return index.isValid() ? index.data(kNodeRole).toString() : QString();
}

void FleetView::select(int replica, int shard) {
    tree_->setCurrentIndex(model_.indexOf(replica, shard));
}

void FleetView::selectNode(const QString& node) {
    tree_->setCurrentIndex(model_.indexOf(node));
}

void FleetView::actOnSelected(model::ActionKind kind) {
    model::Action action;
    action.kind = kind;
    if (kind == model::ActionKind::kCordon || kind == model::ActionKind::kUncordon)
        action.node = selectedNode().toStdString();
    else
        action.replica = selectedReplica();
    context_.commands.act(action);
}

void FleetView::enable(const char* id, bool can) {
    context_.actions.find(QString::fromLatin1(id))->setEnabled(can);
}

void FleetView::enableActions() {
    const bool can = context_.session.status().canAct();
    const bool onReplica = selectedReplica() >= 0;
    const std::string name = selectedNode().toStdString();
    const model::NodeView* node = model::findNode(context_.feed.state(), name);
    for (const FleetAction& entry : kActions)
        if (!entry.onNode) enable(entry.id, can && onReplica);
    enable("node.cordon", can && node && node->state == model::NodeState::kUp);
    enable("node.uncordon", can && node && node->state == model::NodeState::kCordoned);
    enable("replica.fault", can && (onReplica || node));
    // Shows the row of buttons that fits the selection; keys and palette have them all.
    for (size_t i = 0; i < kActions.size(); ++i)
        buttons_[i]->setVisible(kActions[i].onNode != onReplica);
    target_->setText(onReplica ? tr("Replica %1").arg(selectedReplica()) : selectedNode());
}

void FleetView::refresh() {
    if (context_.feed.revisions().fleet == drawn_.fleet) return;
    drawn_ = context_.feed.revisions();
    const int replica = selectedReplica();
    const int shard = selectedShard();
    const QString node = selectedNode();
    model_.refresh();
    tree_->setColumnHidden(FleetModel::kGpu, !model_.hasGpu());
    if (!tree_->currentIndex().isValid()) {
        if (replica < 0 && !node.isEmpty())
            selectNode(node);
        else
            select(std::max(replica, 0), replica < 0 ? -1 : shard);
    }
    refreshDetail();
}

void FleetView::refreshDetail() {
    enableActions();
    const model::RunState& state = context_.feed.state();
    const model::ReplicaView* r = model::findReplica(state, selectedReplica());
    const model::NodeView* n = model::findNode(state, selectedNode().toStdString());
    output_->setVisible(r != nullptr || n == nullptr);  // a node prints nothing
    QString text = r   ? replicaDetail(state, *r, selectedShard())
                   : n ? nodeDetail(state, *n)
                       : QString();
    // Qt wraps lines at the narrow space between a figure and its unit, though it must not.
    detail_->setText(text.replace(QChar(0x202F), QChar::Nbsp));
    refreshOutput();
}

void FleetView::refreshOutput() {
    const RankId id{selectedReplica(), std::max(selectedShard(), 0)};
    const model::RankView* rank = model::findRank(context_.feed.state(), id);
    const uint64_t total = rank ? rank->output.total() : 0;
    if (outputReplica_ == id.replica && outputShard_ == id.shard && outputTotal_ == total) return;
    outputReplica_ = id.replica;
    outputShard_ = id.shard;
    outputTotal_ = total;
    QString text;
    if (rank != nullptr)
        for (const model::OutputLine& line : rank->output) {
            const OutputText said = outputText(line.line);
            text += formatClock(line.timeNs) + QStringLiteral("  ");
            if (said.severity > model::Severity::kInfo)
                text += label(said.severity).toUpper() + QStringLiteral("  ");
            text += said.text + u'\n';
        }
    output_->setPlainText(text.trimmed());
    output_->moveCursor(QTextCursor::End);
    output_->moveCursor(QTextCursor::StartOfLine);
}

}  // namespace bulkhead::ui
