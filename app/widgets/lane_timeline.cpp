// SPDX-License-Identifier: GPL-3.0-only
#include "app/widgets/lane_timeline.h"

#include <QHelpEvent>
#include <QKeyEvent>
#include <QToolTip>
#include <algorithm>
#include <cmath>

#include "app/models/labels.h"
#include "app/models/units.h"
#include "app/widgets/lane_metrics.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {

using namespace lanes;

namespace {

constexpr int64_t kLeastSpan = 20'000'000;      // 20 ms
constexpr int64_t kFirstSpan = 30'000'000'000;  // before anything is known
constexpr double kFollowMargin = 0.03;

}  // namespace

bool lanes::stands(model::JobPhase phase) {
    using enum model::JobPhase;
    return phase == kPaused || phase == kWaiting || phase == kStopping;
}

LaneTimeline::LaneTimeline(QWidget* parent)
    : QWidget(parent), scroll_(new QScrollBar(Qt::Vertical, this)) {
    scroll_->setAccessibleName(tr("Lanes"));
    scroll_->hide();
    connect(scroll_, &QScrollBar::valueChanged, this, qOverload<>(&QWidget::update));
    setFocusPolicy(Qt::StrongFocus);
    setAccessibleName(tr("Timeline of replicas"));
    setAccessibleDescription(
        tr("A lane per replica; the incident table below says the same in words"));
    setAttribute(Qt::WA_OpaquePaintEvent);
    connect(&theme(), &Theme::changed, this, qOverload<>(&QWidget::update));
}

void LaneTimeline::setState(const model::RunState* state) {
    state_ = state;
    follow_ = true;
    all_ = true;
    advance();
}

void LaneTimeline::advance() {
    if (state_ != nullptr && follow_) {
        const int64_t now = std::max(state_->lastEventNs, state_->startedNs + kFirstSpan / 10);
        if (all_) begin_ = state_->startedNs;
        const int64_t span = all_ ? now - begin_ : end_ - begin_;
        end_ = now + static_cast<int64_t>(static_cast<double>(span) * kFollowMargin);
        if (!all_) begin_ = end_ - span;
    }
    if (state_ != nullptr) {
        // A few lanes do not need all the height there is.
        const auto lanes = std::max<int>(static_cast<int>(state_->replicas.size()), 3);
        setMaximumHeight(kAxis + lanes * kMaxLane + kCommitRow + 8);
        placeScrollBar();
    }
    update();
}

void LaneTimeline::setCursorTime(std::optional<int64_t> timeNs) {
    cursor_ = timeNs;
    update();
}

void LaneTimeline::setRange(int64_t beginNs, int64_t endNs) {
    if (endNs - beginNs < kLeastSpan) endNs = beginNs + kLeastSpan;
    begin_ = beginNs;
    end_ = endNs;
    follow_ = false;
    update();
    Q_EMIT rangeChanged();
}

void LaneTimeline::zoom(double factor) {
    zoomAt(factor, cursor_ ? x(*cursor_) : follow_ ? plot().right() : plot().center().x());
}

void LaneTimeline::zoomAt(double factor, double at) {
    const bool stays = follow_;
    const auto fixed = static_cast<double>(timeAt(at));
    const auto place = [&](int64_t t) {
        return static_cast<int64_t>(fixed + (static_cast<double>(t) - fixed) / factor);
    };
    setRange(place(begin_), place(end_));
    all_ = false;
    follow_ = stays;
    if (follow_) advance();
}

void LaneTimeline::pan(double share) {
    const auto by = static_cast<int64_t>(static_cast<double>(end_ - begin_) * share);
    setRange(begin_ + by, end_ + by);
}

void LaneTimeline::showAll() {
    follow_ = true;
    all_ = true;
    advance();
    Q_EMIT rangeChanged();
}

void LaneTimeline::followPresent() {
    follow_ = true;
    advance();
    Q_EMIT cursorPicked(std::nullopt);
    Q_EMIT rangeChanged();
}

QRect LaneTimeline::plot() const {
    const int bar = scroll_->maximum() > 0 ? kScrollBar : 0;
    return rect().adjusted(kGutter, kAxis, -Space::kOne - bar, -kCommitRow);
}

int LaneTimeline::laneHeight() const {
    const auto count = static_cast<int>(state_->replicas.size());
    return std::clamp(plot().height() / std::max(count, 1), kMinLane, kMaxLane);
}

QRect LaneTimeline::lane(size_t i) const {
    const QRect p = plot();
    const int height = laneHeight();
    return {p.left(), p.top() + static_cast<int>(i) * height - scroll_->value(), p.width(), height};
}

void LaneTimeline::placeScrollBar() {
    if (state_ == nullptr) return;
    const QRect p = plot();
    const int all = laneHeight() * static_cast<int>(state_->replicas.size());
    scroll_->setRange(0, std::max(0, all - p.height()));
    scroll_->setPageStep(std::max(p.height(), 1));
    scroll_->setSingleStep(laneHeight());
    scroll_->setGeometry(width() - kScrollBar, p.top(), kScrollBar, p.height());
    scroll_->setVisible(scroll_->maximum() > 0);
}

void LaneTimeline::resizeEvent(QResizeEvent* event) {
    QWidget::resizeEvent(event);
    placeScrollBar();
}

double LaneTimeline::x(int64_t timeNs) const {
    const QRect p = plot();
    return p.left() + static_cast<double>(timeNs - begin_) * p.width() /
                          static_cast<double>(std::max<int64_t>(end_ - begin_, 1));
}

int64_t LaneTimeline::timeAt(double px) const {
    const QRect p = plot();
    return begin_ + static_cast<int64_t>((px - p.left()) * static_cast<double>(end_ - begin_) /
                                         std::max(p.width(), 1));
}

void LaneTimeline::keyPressEvent(QKeyEvent* event) {
    switch (event->key()) {
        case Qt::Key_Left:
            return pan(-0.1);
        case Qt::Key_Right:
            return pan(0.1);
        case Qt::Key_Up:
            return scroll_->triggerAction(QAbstractSlider::SliderSingleStepSub);
        case Qt::Key_Down:
            return scroll_->triggerAction(QAbstractSlider::SliderSingleStepAdd);
        case Qt::Key_Plus:
        case Qt::Key_Equal:
            return zoom(1.5);
        case Qt::Key_Minus:
            return zoom(1 / 1.5);
        case Qt::Key_Home:
            return showAll();
        case Qt::Key_End:
            return followPresent();
        case Qt::Key_Escape:
            return void(Q_EMIT cursorPicked(std::nullopt));
        default:
            QWidget::keyPressEvent(event);
    }
}

void LaneTimeline::wheelEvent(QWheelEvent* event) {
    if (event->modifiers() & Qt::ShiftModifier)
        pan(-event->angleDelta().y() / 1200.0);
    else
        zoomAt(std::pow(1.0015, event->angleDelta().y()), event->position().x());
    event->accept();
}

void LaneTimeline::mousePressEvent(QMouseEvent* event) {
    pressed_ = event->pos();
    dragged_ = false;
}

void LaneTimeline::mouseMoveEvent(QMouseEvent* event) {
    if (!pressed_ || state_ == nullptr) return;
    const int by = pressed_->x() - event->pos().x();
    if (!dragged_ && std::abs(by) < 4) return;
    dragged_ = true;
    pan(static_cast<double>(by) / std::max(plot().width(), 1));
    pressed_ = event->pos();
}

void LaneTimeline::mouseReleaseEvent(QMouseEvent* event) {
    const bool click = pressed_ && !dragged_;
    pressed_.reset();
    if (!click || state_ == nullptr || event->pos().x() < plot().left()) return;
    Q_EMIT cursorPicked(timeAt(event->pos().x()));
    for (const model::IncidentView& incident : state_->incidents)
        if (std::abs(x(incident.openedNs) - event->pos().x()) < 5)
            Q_EMIT incidentPicked(incident.incident);
}

QString LaneTimeline::stallWords(const model::StallInterval& stall) const {
    if (stall.incident == 0) return tr("No step");
    const model::IncidentView* incident = model::findIncident(*state_, stall.incident);
    const bool outage =
        incident != nullptr && incident->cause == model::EvidenceKind::kControllerLost;
    return outage ? tr("No controller") : QString();
}

QString LaneTimeline::jobWordsAt(int64_t timeNs, int32_t replica) const {
    const auto then = [timeNs](int64_t beginNs, int64_t endNs) {
        return beginNs <= timeNs && (endNs == 0 || timeNs < endNs);
    };
    const auto words = [&](const model::StallInterval& stall) {
        if (stall.replica == replica || !then(stall.beginNs, stall.endNs)) return QString();
        const QString why = stallWords(stall);
        return why.isEmpty() ? tr("Stall") : why;
    };
    if (const auto frozen = model::frozenStretch(*state_))
        if (const QString why = words(*frozen); !why.isEmpty()) return why;
    for (const model::StallInterval& stall : state_->stalls)
        if (const QString why = words(stall); !why.isEmpty()) return why;
    for (const model::JobInterval& phase : state_->phases)
        if (stands(phase.phase) && then(phase.beginNs, phase.endNs)) return label(phase.phase);
    return {};
}

QString LaneTimeline::severalWords(int32_t replica, const model::LaneInterval& several) const {
    const double whole = model::durationMs(several.beginNs, several.endNs);
    return tr("Replica %1: %2 states between %3 and %4, training for %5 of the time. Replay the "
              "run at this moment to see each.")
        .arg(replica)
        .arg(several.stretches)
        .arg(formatElapsed(several.beginNs - state_->startedNs),
             formatElapsed(several.endNs - state_->startedNs),
             formatShare(whole > 0 ? several.trained() / whole : 0));
}

QString LaneTimeline::wordsAt(const QPoint& at) const {
    if (state_ == nullptr || !plot().contains(at)) return {};
    const int64_t time = timeAt(at.x());
    for (size_t i = 0; i < state_->replicas.size(); ++i) {
        if (!lane(i).contains(at)) continue;
        for (const model::LaneInterval& v : state_->replicas[i].lane) {
            const int64_t end = v.endNs == 0 ? state_->lastEventNs : v.endNs;
            if (time < v.beginNs || time > end) continue;
            if (v.stretches > 1) return severalWords(state_->replicas[i].replica, v);
            const QString job = v.state == model::ReplicaState::kTraining
                                    ? jobWordsAt(time, state_->replicas[i].replica)
                                    : QString();
            if (!job.isEmpty())
                return tr("Replica %1: %2").arg(state_->replicas[i].replica).arg(job);
            return tr("Replica %1: %2 for %3, incarnation %4, from step %5")
                .arg(state_->replicas[i].replica)
                .arg(label(v.state), formatMs(static_cast<double>(end - v.beginNs) / 1e6))
                .arg(v.incarnation)
                .arg(v.step);
        }
    }
    return {};
}

bool LaneTimeline::event(QEvent* event) {
    if (event->type() == QEvent::ToolTip) {
        const auto* help = static_cast<QHelpEvent*>(event);
        const QString words = wordsAt(help->pos());
        if (words.isEmpty())
            QToolTip::hideText();
        else
            QToolTip::showText(help->globalPos(), words, this);
        return true;
    }
    return QWidget::event(event);
}

}  // namespace bulkhead::ui
