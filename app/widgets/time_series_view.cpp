// SPDX-License-Identifier: GPL-3.0-only
#include "app/widgets/time_series_view.h"

#include <QChart>
#include <QChartView>
#include <QContextMenuEvent>
#include <QLabel>
#include <QLineSeries>
#include <QMenu>
#include <QMouseEvent>
#include <QVBoxLayout>
#include <QValueAxis>
#include <algorithm>
#include <cmath>

#include "app/models/units.h"
#include "app/widgets/nice_range.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {
namespace {

constexpr int kGutter = 46;  // left of the plot, for the figures of y
constexpr int kTop = 8;
constexpr int kRight = 14;
constexpr int kBottom = 24;

}  // namespace

/// A chart view with the shared cursor drawn over it.
class CursorChartView final : public QChartView {
  public:
    CursorChartView(QChart* chart, QWidget* parent) : QChartView(chart, parent) {}
    std::optional<double> step;
    std::function<void(double)> picked;
    NiceRange y{0, 1, 2, 0};

  protected:
    /// The same margins in every chart, so that those above each other line up.
    void resizeEvent(QResizeEvent* event) override {
        QChartView::resizeEvent(event);
        chart()->setPlotArea(QRectF(kGutter, kTop, std::max(width() - kGutter - kRight, 10),
                                    std::max(height() - kTop - kBottom, 10)));
    }
    void drawForeground(QPainter* painter, const QRectF& rect) override {
        QChartView::drawForeground(painter, rect);
        paintScale(painter);
        if (!step || chart()->series().isEmpty()) return;
        const double x = chart()->mapToPosition(QPointF(*step, 0)).x();
        const QRectF area = chart()->plotArea();
        if (x < area.left() || x > area.right()) return;
        painter->setPen(theme().tokens().accent);
        painter->drawLine(QPointF(x, area.top()), QPointF(x, area.bottom()));
    }
    /// Qt's own labels know no thousands.
    void paintScale(QPainter* painter) const {
        const QRectF area = chart()->plotArea();
        painter->setFont(Theme::font(-1));
        painter->setPen(theme().tokens().muted);
        for (int i = 0; i < y.ticks; ++i) {
            const double share = static_cast<double>(i) / std::max(y.ticks - 1, 1);
            painter->drawText(QRectF(0, area.bottom() - area.height() * share - 8, kGutter - 6, 16),
                              Qt::AlignRight | Qt::AlignVCenter,
                              formatTick(y.least + (y.greatest - y.least) * share, y.decimals));
        }
    }
    void mousePressEvent(QMouseEvent* event) override {
        if (event->button() == Qt::LeftButton && picked && !chart()->series().isEmpty())
            picked(chart()->mapToValue(event->position()).x());
    }
};

TimeSeriesView::TimeSeriesView(const QString& title, const QString& unit, Format format,
                               QWidget* parent)
    : QWidget(parent),
      title_(title),
      unit_(unit),
      format_(std::move(format)),
      figure_(new QLabel),
      legend_(new QLabel),
      chart_(new QChart),
      x_(new QValueAxis(this)),
      y_(new QValueAxis(this)) {
    setAccessibleName(title);
    setMinimumSize(200, 120);
    auto* name = new QLabel(title);
    name->setFont(Theme::font(0, QFont::Medium));
    figure_->setFont(Theme::font(0, QFont::Medium));
    legend_->setFont(Theme::font(-1));
    legend_->setTextFormat(Qt::RichText);
    auto* head = new QHBoxLayout;
    head->setContentsMargins(Space::kOne, Space::kHalf, Space::kOne, 0);
    head->setSpacing(Space::kOne);
    head->addWidget(name);
    head->addWidget(legend_, 1);
    head->addWidget(figure_);
    chart_->setAnimationOptions(QChart::NoAnimation);
    chart_->legend()->hide();
    chart_->setMargins(QMargins(0, 0, 0, 0));
    chart_->setBackgroundRoundness(0);
    chart_->layout()->setContentsMargins(0, 0, 0, 0);
    y_->setLabelsVisible(false);
    chart_->addAxis(x_, Qt::AlignBottom);
    chart_->addAxis(y_, Qt::AlignLeft);
    view_ = new CursorChartView(chart_, this);
    view_->setFrameShape(QFrame::NoFrame);
    // The figures of the scale and the cursor are no items: a part of the view drawn anew would
    // leave the rest of them as they were.
    view_->setViewportUpdateMode(QGraphicsView::FullViewportUpdate);
    view_->setFocusPolicy(Qt::NoFocus);
    view_->viewport()->setFocusPolicy(Qt::NoFocus);
    view_->setRenderHint(QPainter::Antialiasing);
    view_->setAccessibleName(title);
    view_->picked = [this](double step) { Q_EMIT stepPicked(step); };
    auto* column = new QVBoxLayout(this);
    column->setContentsMargins(0, 0, 0, 0);
    column->setSpacing(0);
    column->addLayout(head);
    column->addWidget(view_, 1);
    connect(&theme(), &Theme::changed, this, &TimeSeriesView::restyle);
    restyle();
}

QLineSeries* TimeSeriesView::lineAt(size_t i) {
    while (series_.size() <= i) {
        auto* series = new QLineSeries;
        chart_->addSeries(series);
        series->attachAxis(x_);
        series->attachAxis(y_);
        series_.push_back(series);
    }
    return series_[i];
}

void TimeSeriesView::set(std::vector<Line> lines) {
    if (lines == lines_) return;
    const bool sameLook =
        lines.size() == lines_.size() &&
        std::equal(lines.begin(), lines.end(), lines_.begin(), [](const Line& a, const Line& b) {
            return a.color == b.color && a.faint == b.faint && a.dashed == b.dashed &&
                   a.name == b.name;
        });
    lines_ = std::move(lines);
    fill();
    if (!sameLook) restyle();
    rescale();
    showFigure();
}

void TimeSeriesView::setShown(std::optional<Range> range) {
    if (range == shown_) return;
    shown_ = range;
    fill();
    rescale();
}

Points TimeSeriesView::shownOf(const Line& line) const {
    if (!shown_) return line.points;
    const auto before = [](const QPointF& p, double step) { return p.x() < step; };
    auto first = std::lower_bound(line.points.begin(), line.points.end(), shown_->first, before);
    auto last = std::lower_bound(first, line.points.end(), shown_->last, before);
    if (first != line.points.begin()) --first;
    if (last != line.points.end()) ++last;
    return {first, last};
}

void TimeSeriesView::fill() {
    const auto buckets = static_cast<size_t>(std::max(view_->width() / 2, 60));
    for (size_t i = 0; i < lines_.size(); ++i) {
        const Points shown = decimated(shownOf(lines_[i]), buckets);
        lineAt(i)->replace(QList<QPointF>(shown.begin(), shown.end()));
    }
    for (size_t i = lines_.size(); i < series_.size(); ++i) series_[i]->clear();
}

void TimeSeriesView::setCursorStep(std::optional<double> step) {
    if (cursor_ == step) return;
    cursor_ = step;
    view_->step = step;
    view_->viewport()->update();
    showFigure();
}

void TimeSeriesView::showFigure() {
    // The last line is the one in front: the smoothed one where there is a raw one behind it.
    const Line* front = nullptr;
    for (const Line& line : lines_)
        if (!line.points.empty() && (front == nullptr || front->faint)) front = &line;
    std::optional<double> value;
    if (front != nullptr)
        value = cursor_ ? valueAt(front->points, *cursor_) : front->points.back().y();
    figure_->setText(value ? format_(*value) : noFigure());
    QString when = cursor_ ? tr("at step %1").arg(std::floor(*cursor_)) : tr("newest");
    if (front != nullptr && !front->name.isEmpty()) when += QStringLiteral(", ") + front->name;
    figure_->setToolTip(when);
    setAccessibleDescription(title_ + u' ' + figure_->text());
}

void TimeSeriesView::rescale() {
    double least = 0;
    double greatest = 1;
    double xLeast = 0;
    double xGreatest = 1;
    bool first = true;
    for (const Line& line : lines_)
        for (const QPointF& p : shownOf(line)) {
            least = first ? p.y() : std::min(least, p.y());
            greatest = first ? p.y() : std::max(greatest, p.y());
            xLeast = first ? p.x() : std::min(xLeast, p.x());
            xGreatest = first ? p.x() : std::max(xGreatest, p.x());
            first = false;
        }
    if (shown_ && !first) {
        xGreatest = std::min(xGreatest, shown_->last);
        xLeast = std::clamp(shown_->first, xLeast, xGreatest);
    }
    if (fromZero_) least = std::min(least, 0.0);
    if (most_ && least == greatest) least *= 0.9;
    NiceRange y = niceRange(least, greatest, height() > 220 ? 5 : 4);
    while (most_ && y.ticks > 2 && y.tick(y.ticks - 2) >= *most_ - 1e-9) {
        y.greatest = y.tick(y.ticks - 2);
        --y.ticks;
    }
    view_->y = y;
    y_->setTickCount(y.ticks);
    y_->setRange(y.least, y.greatest);
    // In jumps of a fiftieth, so that the axis is not laid out anew with every step.
    const double jump =
        std::max(std::pow(2.0, std::ceil(std::log2((xGreatest - xLeast) / 50))), 1.0);
    const NiceRange x = niceRange(xLeast, xGreatest, std::max(width() / 56, 4));
    x_->setTickType(QValueAxis::TicksDynamic);
    x_->setTickAnchor(0);
    x_->setTickInterval(std::max((x.greatest - x.least) / std::max(x.ticks - 1, 1), 1.0));
    // Qt lays labels and grid out with this, and not whenever ticks or the range of an axis change.
    x_->setLabelFormat(QStringLiteral("%.0f"));
    x_->setRange(xLeast, std::max(std::ceil(xGreatest / jump) * jump, xLeast + 1));
}

void TimeSeriesView::resizeEvent(QResizeEvent* event) {
    QWidget::resizeEvent(event);
    rescale();
}

void TimeSeriesView::restyle() {
    const Tokens& t = theme().tokens();
    chart_->setBackgroundBrush(t.surface);
    chart_->setBackgroundPen(Qt::NoPen);
    view_->setBackgroundBrush(t.surface);
    for (QValueAxis* axis : {x_, y_}) {
        axis->setLabelsFont(Theme::font(-1));
        axis->setLabelsColor(t.muted);
        axis->setLinePen(QPen(t.border));
        axis->setGridLinePen(QPen(blend(t.surface, t.border, 0.6)));
    }
    x_->setGridLineVisible(false);
    y_->setLineVisible(false);
    QString legend;
    for (size_t i = 0; i < lines_.size(); ++i) {
        const Line& line = lines_[i];
        const QColor full = t.series[static_cast<size_t>(line.color) % t.series.size()];
        QPen pen(line.faint ? blend(t.surface, full, 0.35) : full, line.faint ? 1.0 : 1.6);
        if (line.dashed) pen.setStyle(Qt::DashLine);
        pen.setCosmetic(true);
        lineAt(i)->setPen(pen);
        if (!line.name.isEmpty())
            legend += QStringLiteral(
                          "<span style='color:%1'>%3</span>&nbsp;<span "
                          "style='color:%2'>%4</span>&nbsp;&nbsp; ")
                          .arg(pen.color().name(), t.muted.name(),
                               line.dashed ? QStringLiteral("\u2505") : QStringLiteral("\u2501"),
                               line.name.toHtmlEscaped());
    }
    legend_->setText(legend);
}

QString TimeSeriesView::csv() const {
    QString out = QStringLiteral("step");
    for (const Line& line : lines_)
        out += QStringLiteral(",%1 %2 (%3)").arg(title_, line.name, unit_);
    out += u'\n';
    for (size_t i = 0; !lines_.empty() && i < lines_[0].points.size(); ++i) {
        const double step = lines_[0].points[i].x();
        out += QString::number(step, 'f', 0);
        for (const Line& line : lines_) {
            const auto value = valueAt(line.points, step);
            out += u',' + (value ? QString::number(*value, 'g', 17) : QString());
        }
        out += u'\n';
    }
    return out;
}

void TimeSeriesView::contextMenuEvent(QContextMenuEvent* event) {
    auto* menu = new QMenu(this);
    menu->setAttribute(Qt::WA_DeleteOnClose);
    menu->addAction(tr("Save picture\u2026"), this, [this] { Q_EMIT exportWanted(true); });
    menu->addAction(tr("Save figures as CSV\u2026"), this, [this] { Q_EMIT exportWanted(false); });
    menu->popup(event->globalPos());
}

}  // namespace bulkhead::ui
