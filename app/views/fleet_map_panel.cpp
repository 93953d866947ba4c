// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/fleet_map_panel.h"

#include <QComboBox>
#include <QHBoxLayout>
#include <QLabel>
#include <QLineEdit>
#include <QSettings>
#include <QShortcut>
#include <QToolButton>
#include <QVBoxLayout>
#include <algorithm>

#include "app/models/units.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {
namespace {

const QString kFigureSetting = QStringLiteral("fleet/figure");
constexpr int kFindWidth = 136;
constexpr int kReadableCell = 40;

/// Buttons in a row, as many of them as there is room for.
class ChipRow final : public QWidget {
  public:
    using QWidget::QWidget;
    QSize sizeHint() const override { return {0, childHeight()}; }
    QSize minimumSizeHint() const override { return {0, childHeight()}; }
    void arrange() {
        int x = 0;
        for (QObject* child : children()) {
            auto* chip = qobject_cast<QToolButton*>(child);
            if (chip == nullptr) continue;
            const int wanted = chip->sizeHint().width();
            const bool fits = !chip->text().isEmpty() && x + wanted <= width();
            chip->setGeometry(x, 0, wanted, height());
            chip->setVisible(fits);
            x += wanted + Space::kHalf;
        }
    }

  protected:
    void resizeEvent(QResizeEvent*) override { arrange(); }

  private:
    int childHeight() const {
        const auto* chip = findChild<QToolButton*>();
        return chip == nullptr ? 0 : chip->sizeHint().height();
    }
};

QString nameOfChip(size_t i, const QString& words) {
    return FleetMapPanel::tr("Number %1 of the worst: %2")
        .arg(i + 1)
        .arg(words.isEmpty() ? noFigure() : words);
}

}  // namespace

FleetMapPanel::FleetMapPanel(QSettings& settings, QWidget* parent)
    : QWidget(parent),
      settings_(settings),
      figure_(new QComboBox),
      find_(new QLineEdit),
      found_(new QLabel),
      worstTitle_(new QLabel(tr("Worst"))),
      chipRow_(new ChipRow),
      map_(new FleetMap) {
    for (int i = 0; i < kFleetFigures; ++i) figure_->addItem(label(static_cast<FleetFigure>(i)));
    figure_->setAccessibleName(tr("Figure that colours the map"));
    figure_->setToolTip(figure_->accessibleName());
    figure_->setCurrentIndex(
        std::clamp(settings_.value(kFigureSetting, 0).toInt(), 0, kFleetFigures - 1));
    find_->setPlaceholderText(tr("Find r0s1, r0, a node"));
    find_->setAccessibleName(tr("Find a rank, a replica or a node on the map"));
    find_->setClearButtonEnabled(true);
    find_->setFixedWidth(kFindWidth);
    found_->setObjectName(QStringLiteral("Muted"));
    found_->setAccessibleName(tr("Ranks that match"));
    found_->hide();
    worstTitle_->setObjectName(QStringLiteral("Muted"));
    for (size_t i = 0; i < kWorst; ++i) {
        auto* chip = new QToolButton(chipRow_);
        chip->setObjectName(QStringLiteral("Framed"));
        chip->setFocusPolicy(Qt::StrongFocus);
        chip->setAccessibleName(nameOfChip(i, {}));
        connect(chip, &QToolButton::clicked, this, [this, i] { goTo(i); });
        chips_.push_back(chip);
    }
    auto* tools = new QHBoxLayout;
    tools->setContentsMargins(Space::kOne, Space::kHalf, Space::kOne, Space::kHalf);
    tools->setSpacing(Space::kOne);
    tools->addWidget(figure_);
    tools->addWidget(find_);
    tools->addWidget(found_);
    tools->addSpacing(Space::kOne);
    tools->addWidget(worstTitle_);
    tools->addWidget(chipRow_, 1);
    const auto addZoom = [&](const QString& text, const QString& name, auto act) {
        auto* button = new QToolButton;
        button->setText(text);
        button->setObjectName(QStringLiteral("Framed"));
        button->setFocusPolicy(Qt::StrongFocus);
        button->setAccessibleName(name);
        button->setToolTip(name);
        connect(button, &QToolButton::clicked, map_, act);
        tools->addWidget(button);
    };
    addZoom(QStringLiteral("+"), tr("Zoom in on the map (+)"), [this] { map_->zoom(1); });
    addZoom(QStringLiteral("\u2212"), tr("Zoom out (\u2212)"), [this] { map_->zoom(-1); });
    addZoom(tr("All"), tr("Show the whole fleet (Home)"), [this] { map_->showAll(); });
    auto* column = new QVBoxLayout(this);
    column->setContentsMargins(0, 0, 0, 0);
    column->setSpacing(0);
    column->addLayout(tools);
    column->addWidget(map_, 1);
    connect(figure_, &QComboBox::activated, this, &FleetMapPanel::chooseFigure);
    connect(find_, &QLineEdit::textChanged, this, &FleetMapPanel::find);
    connect(find_, &QLineEdit::returnPressed, map_, qOverload<>(&QWidget::setFocus));
    auto* leave = new QShortcut(Qt::Key_Escape, find_, nullptr, nullptr, Qt::WidgetShortcut);
    connect(leave, &QShortcut::activated, this, [this] {
        find_->clear();
        map_->setFocus();
    });
    connect(map_, &FleetMap::picked, this, &FleetMapPanel::picked);
    connect(map_, &FleetMap::nodePicked, this, &FleetMapPanel::nodePicked);
}

FleetFigure FleetMapPanel::figure() const {
    return static_cast<FleetFigure>(figure_->currentIndex());
}

void FleetMapPanel::chooseFigure() {
    settings_.setValue(kFigureSetting, figure_->currentIndex());
    nextWorst_ = 0;
    if (state_ != nullptr) setFleet(*state_, unseenMs_);
}

void FleetMapPanel::setFleet(const model::RunState& state, double unseenMs) {
    state_ = &state;
    unseenMs_ = unseenMs;
    map_->setFleet(state, figure(), unseenMs);
    if (!find_->text().isEmpty()) map_->setMatch(findRanks(map_->shape(), find_->text()));
    fillWorst();
}

void FleetMapPanel::focusFind() {
    find_->setFocus(Qt::ShortcutFocusReason);
    find_->selectAll();
}

void FleetMapPanel::find() {
    auto match = findRanks(map_->shape(), find_->text());
    found_->setVisible(match.has_value());
    if (match)
        found_->setText(match->count == 0   ? tr("no match")
                        : match->count == 1 ? tr("1 rank")
                                            : tr("%1 ranks").arg(formatCount(match->count)));
    const int replica = match ? match->replica : -1;
    const int shard = match ? match->shard : -1;
    map_->setMatch(std::move(match));
    if (replica >= 0) Q_EMIT picked(replica, shard);
}

void FleetMapPanel::fillWorst() {
    worst_.clear();
    const std::vector<uint32_t> places = worstRanks(map_->figures(), kWorst);
    for (const uint32_t place : places) worst_.push_back(map_->shape().ranks[place]);
    for (size_t i = 0; i < chips_.size(); ++i) {
        QString words;
        if (i < worst_.size())
            words = QStringLiteral("%1  %2").arg(rankName(worst_[i]),
                                                 figureWords(map_->figures(), places[i]));
        chips_[i]->setText(words);
        chips_[i]->setAccessibleName(nameOfChip(i, words));
    }
    worstTitle_->setText(worst_.empty() ? tr("Nothing stands out") : tr("Worst"));
    static_cast<ChipRow*>(chipRow_)->arrange();
}

void FleetMapPanel::goTo(size_t worst) {
    if (worst >= worst_.size()) return;
    const RankId rank = worst_[worst];
    nextWorst_ = worst + 1;
    Q_EMIT picked(rank.replica, rank.shard);
    if (map_->cellOf(rank).width() < kReadableCell) map_->goTo(rank.replica, rank.shard);
}

void FleetMapPanel::goToNextWorst() {
    if (worst_.empty()) return;
    goTo(nextWorst_ % worst_.size());
}

}  // namespace bulkhead::ui
