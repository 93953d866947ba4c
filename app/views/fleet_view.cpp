// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/fleet_view.h"

#include <QCoreApplication>
#include <QHBoxLayout>
#include <QHeaderView>
#include <QLabel>
#include <QPlainTextEdit>
#include <QScrollArea>
#include <QSettings>
#include <QSplitter>
#include <QStackedWidget>
#include <QToolButton>
#include <QTreeView>
#include <array>

#include "app/models/event_text.h"
#include "app/models/gpu_rows.h"
#include "app/models/labels.h"
#include "app/models/roles.h"
#include "app/models/units.h"
#include "app/views/fleet_map_panel.h"
#include "app/views/job_commands.h"
#include "app/widgets/elided_label.h"
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

/// A fleet of so many ranks is shown as a map until the operator chooses.
constexpr size_t kLeastOfAMap = 256;
/// A page with a map that is less high has no details below it.
constexpr int kRoomForDetails = 320;
constexpr int kBreathMs = 25;  // longer than what is left to do with the events that came
const QString kShownSetting = QStringLiteral("fleet/shown");

/// With each sample of the fleet every figure is another. Qt would look for the place of each row
/// of them on the screen, of which a few are there.
class FleetTree final : public QTreeView {
  public:
    void dataChanged(const QModelIndex&, const QModelIndex&, const QList<int>&) override {
        viewport()->update();
    }
};

/// Details of a large replica have some thirty lines. Qt would lay them out several times with each
/// sample to find the least size that they could have.
class DetailLabel final : public QLabel {
  public:
    QSize sizeHint() const override { return {kLeastDetail, 0}; }
    QSize minimumSizeHint() const override { return sizeHint(); }

  private:
    static constexpr int kLeastDetail = 160;
};

}  // namespace

FleetView::FleetView(ViewContext& context, QWidget* parent)
    : View(context, QStringLiteral("fleet"), tr("Fleet"), parent),
      model_(context.feed),
      tree_(new FleetTree),
      panel_(new FleetMapPanel(context.settings)),
      pages_(new QStackedWidget),
      target_(new ElidedLabel),
      below_(new QSplitter(Qt::Horizontal)),
      detail_(new DetailLabel),
      output_(new QPlainTextEdit) {
    tree_->setModel(&model_);
    styleTree(tree_, tr("Replicas, ranks and nodes"));
    tree_->setContextMenuPolicy(Qt::ActionsContextMenu);
    panel_->map().setContextMenuPolicy(Qt::ActionsContextMenu);
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
    auto* scroll = new QScrollArea;
    scroll->setWidget(detail_);
    scroll->setWidgetResizable(true);
    scroll->setFrameShape(QFrame::NoFrame);
    scroll->setFocusPolicy(Qt::NoFocus);
    below_->addWidget(scroll);
    below_->addWidget(output_);
    below_->setSizes({420, 420});
    auto* body = new QSplitter(Qt::Vertical);
    pages_->addWidget(tree_);
    pages_->addWidget(panel_);
    body->addWidget(pages_);
    body->addWidget(below_);
    body->setStretchFactor(0, 1);
    body->setSizes({340, 96});
    setBody(body);
    addSwitch();
    addActions();
    turnTo(false);
    connect(tree_->selectionModel(), &QItemSelectionModel::currentChanged, this,
            [this](const QModelIndex& now) {
                if (marking_ || !now.isValid()) return;
                const int replica = now.data(kReplicaRole).toInt();
                setSelected(replica, now.data(kShardRole).toInt(),
                            replica < 0 ? now.data(kNodeRole).toString() : QString());
            });
    fill_.setSingleShot(true);
    fill_.setInterval(kBreathMs);
    connect(&fill_, &QTimer::timeout, this, &FleetView::fillShown);
    connect(panel_, &FleetMapPanel::picked, this, &FleetView::select);
    connect(panel_, &FleetMapPanel::nodePicked, this, &FleetView::selectNode);
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
        panel_->map().addAction(action);
    }
    QAction* fault = context_.actions.add(
        QStringLiteral("replica.fault"), tr("Fleet"), tr("Fault for selection\u2026"),
        tr("Compose a fault for the selected replica, rank or node"),
        QKeySequence(QStringLiteral("Ctrl+Shift+F")),
        [this] { Q_EMIT faultWanted(selectedReplica(), selectedShard(), selectedNode()); });
    addButton(fault, tr("Fault"));
    tree_->addAction(fault);
    panel_->map().addAction(fault);
}

/// A button for each of the two, of which the one in use is pressed.
void FleetView::addSwitch() {
    ActionRegistry& a = context_.actions;
    auto* both = new QHBoxLayout;
    both->setSpacing(0);
    controls()->addLayout(both);
    const auto add = [&](const char* id, const QString& title, const QString& hint,
                         const char* keys, const QString& face, bool map) {
        QAction* action =
            a.add(QString::fromLatin1(id), tr("Fleet"), title, hint,
                  QKeySequence(QString::fromLatin1(keys)), [this, map] { choose(map); });
        action->setCheckable(true);
        QToolButton* button = addButton(action, face);
        button->setObjectName(QStringLiteral("Switch"));
        both->addWidget(button);
    };
    add("fleet.map", tr("Fleet as a map"), tr("All ranks on one screen, coloured by a figure"),
        "Ctrl+B", tr("Map"), true);
    add("fleet.table", tr("Fleet as a table"), tr("The same in rows, with all figures"),
        "Ctrl+Alt+B", tr("Table"), false);
    a.add(QStringLiteral("fleet.find"), tr("Fleet"), tr("Find a rank on the map"),
          tr("By its name, its replica or its node"), QKeySequence(QStringLiteral("Ctrl+Alt+G")),
          [this] {
              choose(true);
              panel_->focusFind();
          });
    a.add(QStringLiteral("fleet.worst"), tr("Fleet"), tr("Go to the next worst rank"),
          tr("By the figure that colours the map"), QKeySequence(QStringLiteral("Ctrl+Alt+W")),
          [this] {
              choose(true);
              panel_->goToNextWorst();
          });
}

bool FleetView::showsMap() const {
    return pages_->currentWidget() == panel_;
}

void FleetView::choose(bool map) {
    context_.settings.setValue(kShownSetting,
                               map ? QStringLiteral("map") : QStringLiteral("table"));
    turnTo(map);
    if (hasContent()) fillShown();
}

void FleetView::turnTo(bool map) {
    context_.actions.find(QStringLiteral("fleet.map"))->setChecked(map);
    context_.actions.find(QStringLiteral("fleet.table"))->setChecked(!map);
    const QWidget* before = pages_->currentWidget();
    const QWidget* focus = window()->focusWidget();
    const bool hadFocus = focus != nullptr && (before == focus || before->isAncestorOf(focus));
    pages_->setCurrentIndex(map ? 1 : 0);
    if (hadFocus && before != pages_->currentWidget()) focusTarget()->setFocus();
    makeRoom();
}

void FleetView::resizeEvent(QResizeEvent* event) {
    View::resizeEvent(event);
    makeRoom();
}

/// A map needs the room more than the details do, which its tool tips have as well.
void FleetView::makeRoom() {
    below_->setVisible(!showsMap() || height() >= kRoomForDetails);
}

QWidget* FleetView::focusTarget() {
    return showsMap() ? static_cast<QWidget*>(&panel_->map()) : tree_;
}

int FleetView::selectedReplica() const {
    return replica_;
}

int FleetView::selectedShard() const {
    return shard_;
}

QString FleetView::selectedNode() const {
    if (replica_ < 0) return node_;
    const model::RunState& state = context_.feed.state();
    const model::RankView* rank =
        shard_ < 0 ? nullptr : model::findRank(state, RankId{replica_, shard_});
    if (rank != nullptr && !rank->node.empty()) return toQt(rank->node);
    const model::ReplicaView* replica = model::findReplica(state, replica_);
    return replica == nullptr ? QString() : toQt(replica->node);
}

void FleetView::select(int replica, int shard) {
    setSelected(replica, shard, {});
}

void FleetView::selectNode(const QString& node) {
    setSelected(-1, -1, node);
}

void FleetView::setSelected(int replica, int shard, const QString& node) {
    replica_ = replica;
    shard_ = shard;
    node_ = node;
    markSelected();
    refreshDetail();
}

void FleetView::markSelected() {
    panel_->map().setSelected(replica_, shard_, node_);
    if (showsMap()) return;  // its rows are those of when it was last in front
    const QModelIndex row =
        replica_ >= 0 ? model_.indexOf(replica_, shard_) : model_.indexOf(node_);
    if (row == tree_->currentIndex().siblingAtColumn(0)) return;
    marking_ = true;
    tree_->setCurrentIndex(row);
    marking_ = false;
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
    // Shows the row of buttons that fits the selection; keys and palette have them all. Both rows
    // at once would widen a small window.
    for (const bool shown : {false, true})
        for (size_t i = 0; i < kActions.size(); ++i)
            if ((kActions[i].onNode != onReplica) == shown) buttons_[i]->setVisible(shown);
    target_->setText(onReplica ? tr("Replica %1").arg(selectedReplica()) : selectedNode());
}

void FleetView::refresh() {
    if (context_.feed.revisions().fleet == drawn_.fleet) return;
    drawn_ = context_.feed.revisions();
    const QString wanted = context_.settings.value(kShownSetting).toString();
    const model::RunState& state = context_.feed.state();
    turnTo(wanted.isEmpty() ? state.ranks.size() >= kLeastOfAMap : wanted == u"map");
    keepSelection();
    if (!showsMap()) return fillShown();
    // Folding in the sample of a large fleet took long enough: whatever waits comes first.
    if (!fill_.isActive()) fill_.start();
}

/// Lets go of what this run does not have; something is selected where there is anything.
void FleetView::keepSelection() {
    const model::RunState& state = context_.feed.state();
    if (model::findReplica(state, replica_) == nullptr) replica_ = shard_ = -1;
    if (model::findRank(state, RankId{replica_, shard_}) == nullptr) shard_ = -1;
    if (model::findNode(state, node_.toStdString()) == nullptr) node_.clear();
    if (replica_ < 0 && node_.isEmpty() && !state.replicas.empty())
        replica_ = state.replicas.front().replica;
}

/// Only what is in front is kept up to date.
void FleetView::fillShown() {
    const model::RunState& state = context_.feed.state();
    if (showsMap()) {
        panel_->setFleet(state, context_.feed.unseenMs());
    } else {
        marking_ = true;
        model_.refresh();
        marking_ = false;
        tree_->setColumnHidden(FleetModel::kGpu, !model_.hasGpu());
    }
    markSelected();
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
