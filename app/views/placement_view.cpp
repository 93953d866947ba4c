// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/placement_view.h"

#include <QCheckBox>
#include <QDoubleSpinBox>
#include <QHBoxLayout>
#include <QHeaderView>
#include <QLabel>
#include <QScrollArea>
#include <QSpinBox>
#include <QSplitter>
#include <QStackedWidget>
#include <QTabBar>
#include <QTabWidget>
#include <QTableView>
#include <QVBoxLayout>

#include "app/models/units.h"
#include "app/views/job_commands.h"
#include "app/views/plan_front_panel.h"
#include "app/views/plan_progress.h"
#include "app/views/proposal_banner.h"
#include "app/views/rules_panel.h"
#include "app/widgets/file_drag.h"
#include "app/widgets/placement_board.h"
#include "app/widgets/table_style.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {
namespace {

BoardLayer boardLayer(const Placement& p, int layer) {
    BoardLayer out;
    const auto l = static_cast<size_t>(layer);
    out.name = p.names.value(layer);
    out.load = p.shown().layers[l].load;
    out.loadNow = p.now.layers[l].load;
    for (int e = 0; e < p.experts(); ++e) {
        const size_t at = l * p.job.counts.experts + static_cast<size_t>(e);
        out.chips.push_back({e,
                             p.shown().expertShard[at],
                             p.now.expertShard[at],
                             p.share(layer, e),
                             p.tokens(layer, e),
                             -1,
                             {}});
    }
    for (const model::ExpertRule& rule : p.job.rules) {
        if (rule.layer != l || rule.expert >= out.chips.size()) continue;
        BoardLayer::Chip& chip = out.chips[rule.expert];
        const auto shard = static_cast<int>(rule.shard);
        if (rule.pins)
            chip.pinned = shard;
        else
            chip.forbidden.push_back(shard);
    }
    return out;
}

QString reasonOf(const absl::Status& status) {
    return toQt(std::string(status.message()));
}

/// Fits the height to its rows.
void fitRows(QTableView* table, int rows) {
    const int row = table->verticalHeader()->defaultSectionSize();
    table->setFixedHeight(table->horizontalHeader()->sizeHint().height() + rows * row + 4);
    table->setVerticalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
}

}  // namespace

PlacementView::PlacementView(ViewContext& context, QWidget* parent)
    : View(context, QStringLiteral("placement"), tr("Placement"), parent),
      desk_(context.feed),
      gain_({tr("In steps like the recent ones"), tr("Now"), tr("Proposed"), tr("5 to 95 %"),
             tr("As counted"), tr("Change")},
            {1, 2, 3, 4, 5}),
      layers_({tr("Layer"), tr("Remote"), tr("Then"), tr("Busiest"), tr("Then"), tr("Moves")},
              {1, 2, 3, 4, 5}),
      experts_({tr("Expert"), tr("On"), tr("From"), tr("Load over mean"), tr("Tokens")}, {3, 4}),
      layouts_({tr("Layout"), tr("After step"), tr("At"), tr("Outcome"), tr("Experts"), tr("Moved"),
                tr("Samples"), tr("Remote before"), tr("Predicted"), tr("Measured"), tr("Off"),
                tr("A step before"), tr("A step after"), tr("Why")},
               {0, 1, 2, 4, 5, 7, 8, 9, 10, 11, 12}),
      words_(new QLabel),
      group_(new QCheckBox(tr("Group samples by domain"))),
      cap_(new QDoubleSpinBox),
      effort_(new QSpinBox),
      told_(new QStackedWidget),
      layerTable_(tableOf(layers_, tr("Layers"), {72, 68, 68, 68, 68, 60})),
      layerName_(new QLabel),
      board_(new PlacementBoard),
      details_(new QTabWidget),
      front_(new PlanFrontPanel) {
    setAcceptDrops(true);
    addActions();
    auto* middle = new QSplitter(Qt::Horizontal);
    middle->addWidget(layerTable_);
    middle->addWidget(makeBoard());
    middle->setStretchFactor(1, 1);
    middle->setSizes({430, 480});  // all columns of the layers
    auto* lower = new QSplitter(Qt::Vertical);
    lower->addWidget(middle);
    lower->addWidget(makeDetails());
    lower->setStretchFactor(0, 2);
    lower->setStretchFactor(1, 1);
    lower->setSizes({360, 220});
    for (QSplitter* splitter : {middle, lower}) splitter->setChildrenCollapsible(false);
    auto* body = new QWidget;
    auto* column = new QVBoxLayout(body);
    column->setContentsMargins(0, 0, 0, 0);
    column->setSpacing(0);
    column->addWidget(makeHead());
    column->addWidget(lower, 1);
    setBody(body);
    connect(&desk_, &PlanDesk::changed, this, [this] {
        drawn_ = {};
        touch();
    });
    connect(&desk_, &PlanDesk::progressed, this, &PlacementView::showProgress);
    connect(&context_.session, &Session::statusChanged, this, &PlacementView::enableActions);
    connect(layerTable_->selectionModel(), &QItemSelectionModel::currentRowChanged, this,
            &PlacementView::showLayer);
    connect(board_, &PlacementBoard::moved, this, &PlacementView::move);
    connect(board_, &PlacementBoard::ruled, this, &PlacementView::addRule);
    connect(board_, &PlacementBoard::freed, this, &PlacementView::freeExpert);
    connect(board_, &PlacementBoard::currentChanged, this,
            [this](int expert) { expertTable_->selectRow(expert); });
    connect(expertTable_->selectionModel(), &QItemSelectionModel::currentRowChanged, this,
            [this](const QModelIndex& row) { board_->setCurrent(row.row()); });
    enableActions();
}

QTableView* PlacementView::tableOf(RowsModel& model, const QString& name,
                                   std::initializer_list<int> widths) {
    auto* table = new QTableView;
    table->setModel(&model);
    styleTable(table, name);
    int column = 0;
    for (const int width : widths) table->setColumnWidth(column++, width);
    // A last column of figures stays beside the others.
    if (column == model.columnCount()) table->horizontalHeader()->setStretchLastSection(false);
    return table;
}

void PlacementView::addActions() {
    ActionRegistry& a = context_.actions;
    const QString menu = tr("Experts");
    propose_ = a.add(QStringLiteral("placement.propose"), menu, tr("Propose a plan"),
                     tr("From the job's own routing; nothing moves yet"),
                     QKeySequence(QStringLiteral("Ctrl+Shift+M")), [this] { propose(); });
    stop_ = a.add(QStringLiteral("placement.stop"), menu, tr("Stop the search for plans"),
                  tr("The best plans so far are proposed"),
                  QKeySequence(QStringLiteral("Ctrl+Alt+M")), [this] { desk_.stop(); });
    apply_ = a.add(QStringLiteral("placement.apply"), menu, tr("Apply the proposed plan\u2026"),
                   tr("Every replica moves its experts after its current step"),
                   QKeySequence(QStringLiteral("Ctrl+Shift+Y")), [this] { apply(); });
    drop_ = a.add(QStringLiteral("placement.drop"), menu, tr("Drop the proposed plan"),
                  tr("Look at what is in use again"), QKeySequence(QStringLiteral("Ctrl+Shift+H")),
                  [this] { desk_.drop(); });
    rollBack_ =
        a.add(QStringLiteral("placement.rollback"), menu, tr("Roll the last move back\u2026"),
              tr("Experts and samples to where they were before it"),
              QKeySequence(QStringLiteral("Ctrl+Shift+Z")), [this] { rollBack(); });
    a.add(QStringLiteral("placement.import"), menu, tr("Import a plan\u2026"),
          tr("One that bulkheadctl or this page wrote; also by drag and drop"),
          QKeySequence(QStringLiteral("Ctrl+Shift+V")), [this] { askImport(); });
    export_ =
        a.add(QStringLiteral("placement.export"), menu, tr("Export the placement\u2026"),
              tr("As our own file, or as SGLang, TensorRT-LLM or vLLM-Ascend read it; drag the "
                 "button to where the file should go"),
              QKeySequence(QStringLiteral("Ctrl+Shift+C")), [this] { askExport(); });
    addRuleActions(menu);
    addButton(propose_, tr("Propose"));
    addButton(apply_, tr("Apply\u2026"));
    addButton(drop_, tr("Drop"));
    addButton(rollBack_, tr("Roll back\u2026"));
    addButton(a.find(QStringLiteral("placement.import")), tr("Import\u2026"));
    new FileDrag(addButton(export_, tr("Export\u2026")), [this] { return fileToDrag(); });
}

QWidget* PlacementView::makeHead() {
    words_->setWordWrap(true);
    words_->setAccessibleName(tr("What is proposed"));
    told_->setMinimumHeight(2 * words_->fontMetrics().lineSpacing());
    progress_ = new PlanProgress(stop_);
    told_->addWidget(words_);
    told_->addWidget(progress_);
    words_->setAlignment(Qt::AlignLeft | Qt::AlignTop);
    group_->setChecked(true);
    group_->setAccessibleName(group_->text());
    group_->setToolTip(tr("A plan also says which shards compute which domain's samples"));
    cap_->setRange(1, 100);
    cap_->setSingleStep(0.05);
    cap_->setDecimals(2);
    cap_->setValue(planner::LiveOptions().loadCap);
    cap_->setSuffix(QStringLiteral("\u202f\u00d7"));
    cap_->setAccessibleName(tr("Load allowed on the busiest shard, over the mean"));
    effort_->setRange(1, 1000);
    effort_->setSuffix(QStringLiteral("\u202f\u00d7"));
    effort_->setAccessibleName(tr("How long to search, 1 is usual"));
    effort_->setToolTip(tr("So many times the usual number of groupings is tried"));
    auto* options = new QHBoxLayout;
    options->setSpacing(Space::kOne);
    options->addWidget(group_);
    options->addSpacing(Space::kOne);
    options->addWidget(new QLabel(tr("Busiest shard at most")));
    options->addWidget(cap_);
    options->addSpacing(Space::kOne);
    options->addWidget(new QLabel(tr("Search")));
    options->addWidget(effort_);
    options->addStretch();
    QTableView* gain =
        tableOf(gain_, tr("Now beside what is proposed"), {300, 88, 88, 144, 88, 120});
    gain->setFocusPolicy(Qt::StrongFocus);
    fitRows(gain, 5);
    auto* head = new QWidget;
    auto* column = new QVBoxLayout(head);
    column->setContentsMargins(Space::kOne, Space::kOne, Space::kOne, Space::kOne);
    column->setSpacing(Space::kOne);
    banner_ = new ProposalBanner(look_, dismiss_);
    column->addWidget(banner_);
    column->addLayout(options);
    column->addWidget(told_);
    column->addWidget(gain);
    return head;
}

QWidget* PlacementView::makeBoard() {
    layerName_->setFont(Theme::font(0, QFont::Medium));
    auto* key = new QLabel(
        tr("Colour: tokens over the layer's mean, blue below, orange above. Framed: would move "
           "here; dashed: leaves. Dot: pinned; struck ring: forbidden somewhere; red: "
           "broken. Drag, or Shift with the arrows up and down; the menu does the rest."));
    key->setObjectName(QStringLiteral("Muted"));
    key->setWordWrap(true);
    auto* scroll = new QScrollArea;
    scroll->setWidget(board_);
    scroll->setWidgetResizable(true);
    scroll->setFrameShape(QFrame::NoFrame);
    scroll->setFocusPolicy(Qt::NoFocus);
    scroll->setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
    auto* box = new QWidget;
    auto* column = new QVBoxLayout(box);
    column->setContentsMargins(Space::kOne, Space::kOne, Space::kOne, Space::kOne);
    column->setSpacing(Space::kHalf);
    column->addWidget(layerName_);
    column->addWidget(scroll, 1);
    column->addWidget(key);
    return box;
}

QWidget* PlacementView::makeDetails() {
    expertTable_ = tableOf(experts_, tr("Experts of the layer"), {72, 96, 96, 128, 88});
    homeTable_ = new QTableView;
    styleTable(homeTable_, tr("Samples of each domain by shard"));
    anywhere_ = new QLabel(tr("Samples of any domain go to any shard."));
    anywhere_->setObjectName(QStringLiteral("Muted"));
    anywhere_->setAlignment(Qt::AlignCenter);
    auto* homes = new QWidget;
    auto* column = new QVBoxLayout(homes);
    column->setContentsMargins(0, 0, 0, 0);
    column->addWidget(homeTable_);
    column->addWidget(anywhere_);
    QTableView* layouts = tableOf(layouts_, tr("Moves of this run"),
                                  {56, 80, 64, 92, 68, 76, 84, 104, 80, 80, 68, 104, 104});
    details_->setDocumentMode(true);
    details_->setAccessibleName(tr("Details of the placement"));
    details_->tabBar()->setAccessibleName(tr("Details of the placement"));
    connect(front_, &PlanFrontPanel::picked, &desk_, &PlanDesk::choose);
    details_->addTab(expertTable_, tr("Experts of the layer"));
    details_->addTab(homes, tr("Samples"));
    details_->addTab(front_, tr("Plans to choose from"));
    details_->addTab(layouts, tr("Plan history"));
    rules_ = new RulesPanel(free_);
    connect(rules_, &RulesPanel::picked, this, [this](int layer, int expert) {
        layerTable_->selectRow(layer);
        board_->setCurrent(expert);
    });
    details_->addTab(rules_, tr("Pinned and forbidden"));
    return details_;
}

QWidget* PlacementView::focusTarget() {
    return board_;
}

bool PlacementView::hasContent() const {
    return context_.feed.hasRun() && planner::liveJob(context_.feed.state()).ok();
}

QString PlacementView::emptyText() const {
    QString words = reasonOf(planner::liveJob(context_.feed.state()).status());
    if (!words.isEmpty()) words[0] = words[0].toUpper();
    return emptyWords(tr("Nothing to plan"), words + u'.');
}

bool PlacementView::differs() const {
    const auto& proposal = desk_.proposal();
    return proposal && placement_ &&
           (proposal->expertShard != placement_->job.expertShard ||
            proposal->domainShare != placement_->job.domainShare);
}

QString PlacementView::words() const {
    if (desk_.isPlanning())
        return tr("Planning from the counts up to step %1\u2026")
            .arg(formatCount(context_.feed.state().experts.step));
    if (!desk_.refusal().ok()) return tr("No plan: %1.").arg(reasonOf(desk_.refusal()));
    if (desk_.proposal() && !differs())
        return desk_.front() == nullptr || desk_.front()->recommended != 0
                   ? tr("That is what is in use: nothing would move.")
               : desk_.front()->stopped
                   ? tr("Stopped before anything better than what is in use was found.")
                   : tr("The planner finds nothing better than what is in use.");
    if (desk_.proposal()) {
        const QString origin[] = {tr("Proposed by the planner."),
                                  tr("Back to before the last move."), tr("Proposed by a file."),
                                  tr("Moved by hand."), tr("Proposed when routing drifted.")};
        const bool searched = desk_.front() != nullptr && desk_.chosen() >= 0;
        return origin[static_cast<size_t>(desk_.proposal()->origin)] + u' ' +
               previewWords(*placement_) +
               (searched ? u' ' + moreWords(desk_.front()->more) : QString());
    }
    if (desk_.voidSince() > 0) return tr("Placement applied (layout %1).").arg(desk_.voidSince());
    const QString begin = tr("Let the planner propose, or drag an expert to another shard.");
    return (model::openProposal(context_.feed.state()) == nullptr ? tr("Nothing is proposed.")
                                                                  : tr("This is what is in use.")) +
           u' ' + begin;
}

void PlacementView::refresh() {
    const Revisions& now = context_.feed.revisions();
    if (now.experts == drawn_.experts && now.steps == drawn_.steps) return;
    drawn_ = now;
    showPlacement();
}

void PlacementView::showPlacement() {
    absl::StatusOr<planner::LiveJob> job = planner::liveJob(context_.feed.state());
    if (!job.ok()) return;
    std::optional<PlacementChange> change;
    if (const auto& p = desk_.proposal(); p && p->expertShard.size() == job->expertShard.size())
        change = {p->expertShard, p->domainShare, p->optimism};
    placement_ = placementOf(context_.feed.state(), *std::move(job), change);
    words_->setText(words());
    showProgress();
    gain_.setRows(gainRows(*placement_));
    layers_.setRows(layerRows(*placement_));
    for (const int column : {2, 4, 5})
        layerTable_->setColumnHidden(column, !placement_->then.has_value());
    if (!layerTable_->currentIndex().isValid()) layerTable_->selectRow(0);
    layouts_.setRows(layoutRows(context_.feed.state()));
    front_->set(desk_.front(), desk_.chosen());
    showHomes();
    showLayer();
    showRules();
    showWaiting();
    enableActions();
}

void PlacementView::showProgress() {
    progress_->set(desk_.progress());
    // A search that ends at once shows no bar.
    told_->setCurrentIndex(desk_.isPlanning() && desk_.progress().of > 0 ? 1 : 0);
}

void PlacementView::showLayer() {
    const int layer = layerTable_->currentIndex().row();
    if (!placement_ || layer < 0 || layer >= placement_->layers()) return;
    layerName_->setText(placement_->names.value(layer));
    board_->set(boardLayer(*placement_, layer));
    experts_.setRows(expertRows(*placement_, layer));
    if (!expertTable_->currentIndex().isValid()) expertTable_->selectRow(board_->current());
}

void PlacementView::showHomes() {
    if (!homes_ || homes_->columnCount() != placement_->shards() + 1) {
        QStringList titles{tr("Domain")};
        std::vector<int> figures;
        for (int s = 0; s < placement_->shards(); ++s) {
            titles << tr("Shard %1").arg(s);
            figures.push_back(s + 1);
        }
        auto next = std::make_unique<RowsModel>(titles, figures);
        homeTable_->setModel(next.get());
        homes_ = std::move(next);
    }
    homes_->setRows(homeRows(*placement_));
    const bool grouped = homes_->rowCount() > 0;
    homeTable_->setVisible(grouped);
    anywhere_->setVisible(!grouped);
}

void PlacementView::enableActions() {
    const bool can = context_.session.status().canAct();
    propose_->setEnabled(context_.feed.hasRun() && !desk_.isPlanning());
    stop_->setEnabled(desk_.isPlanning());
    export_->setEnabled(placement_.has_value());
    drop_->setEnabled(desk_.proposal().has_value());
    apply_->setEnabled(can && differs());
    rollBack_->setEnabled(can && !context_.feed.state().shardBefore.empty());
    enableRules(can && placement_.has_value());
}

void PlacementView::propose() {
    planner::LiveOptions options;
    options.group = group_->isChecked();
    options.loadCap = cap_->value();
    options.effort = effort_->value();
    desk_.propose(options);
}

void PlacementView::rollBack() {
    desk_.proposeRollback();
    apply();
}

void PlacementView::apply() {
    showPlacement();
    if (!differs()) return;
    const model::Action action =
        planner::planWith(placement_->job, desk_.proposal()->expertShard,
                          desk_.proposal()->domainShare, desk_.proposal()->optimism)
            .action;
    std::vector<ConfirmRequest::Figure> figures;
    for (const RowsModel::Row& row : gainRows(*placement_))
        if (row[2].text != noFigure()) figures.push_back({row[0].text, row[1].text, row[2].text});
    context_.commands.act(action, figures);
}

}  // namespace bulkhead::ui
