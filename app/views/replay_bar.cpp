// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/replay_bar.h"

#include <QComboBox>
#include <QHBoxLayout>
#include <QInputDialog>
#include <QLabel>
#include <QProgressBar>
#include <QSignalBlocker>
#include <QSlider>
#include <QToolButton>
#include <algorithm>
#include <array>
#include <climits>
#include <initializer_list>

#include "app/models/labels.h"
#include "app/models/units.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {
namespace {

constexpr int kTicks = 10'000;
constexpr std::array kSpeeds = {0.25, 1.0, 4.0, 16.0, 64.0, 256.0};

}  // namespace

ReplayBar::ReplayBar(Session& session, ActionRegistry& actions, QWidget* parent)
    : QFrame(parent),
      session_(session),
      words_(new QLabel),
      play_(new QToolButton),
      scrubber_(new QSlider(Qt::Horizontal)),
      clock_(new QLabel),
      speed_(new QComboBox),
      leave_(new QToolButton),
      progress_(new QProgressBar) {
    setObjectName(QStringLiteral("Banner"));
    setAccessibleName(tr("Replay"));
    words_->setFont(Theme::font(0, QFont::Medium));
    scrubber_->setRange(0, kTicks);
    scrubber_->setAccessibleName(tr("Position in the run"));
    scrubber_->setPageStep(kTicks / 20);
    clock_->setAccessibleName(tr("Time and step of the replay"));
    speed_->setAccessibleName(tr("Speed of the replay"));
    for (const double speed : kSpeeds) speed_->addItem(tr("%1\u00d7").arg(speed), speed);
    speed_->setCurrentIndex(1);
    auto* row = new QHBoxLayout(this);
    row->setContentsMargins(Space::kTwo, Space::kHalf, Space::kOne, Space::kHalf);
    row->setSpacing(Space::kTwo);
    row->addWidget(words_);
    row->addWidget(play_);
    row->addWidget(scrubber_, 1);
    row->addWidget(clock_);
    row->addWidget(speed_);
    row->addWidget(progress_, 1);
    row->addWidget(leave_);
    progress_->setAccessibleName(tr("Part of the run that is read"));
    progress_->setTextVisible(false);
    progress_->setFixedHeight(Space::kOne);
    addActions(actions);
    connect(scrubber_, &QSlider::valueChanged, this, [this](int value) {
        const auto& position = session_.status().position;
        if (!position) return;
        model::ReplayControl order;
        order.seekTimeNs =
            position->beginNs + (position->endNs - position->beginNs) / kTicks * value;
        session_.controlReplay(order);
    });
    connect(speed_, &QComboBox::activated, this, [this] {
        model::ReplayControl order;
        order.speed = speed_->currentData().toDouble();
        session_.controlReplay(order);
    });
    connect(&session_, &Session::statusChanged, this, &ReplayBar::refresh);
    refresh();
}

void ReplayBar::addActions(ActionRegistry& actions) {
    play_->setDefaultAction(actions.add(QStringLiteral("replay.play"), tr("Runs"),
                                        tr("Play or pause"), tr("Let the replay run, or hold it"),
                                        QKeySequence(QStringLiteral("Ctrl+Space")), [this] {
                                            const auto& position = session_.status().position;
                                            model::ReplayControl order;
                                            order.paused = position && !position->paused;
                                            if (position && position->atEnd)
                                                order.seekTimeNs = position->beginNs;
                                            session_.controlReplay(order);
                                        }));
    actions.add(QStringLiteral("replay.back"), tr("Runs"), tr("One step back"),
                tr("To the commit before"), QKeySequence(QStringLiteral("Ctrl+Left")),
                [this] { seekStep(-1); });
    actions.add(QStringLiteral("replay.forward"), tr("Runs"), tr("One step on"),
                tr("To the next commit"), QKeySequence(QStringLiteral("Ctrl+Right")),
                [this] { seekStep(1); });
    actions.add(QStringLiteral("replay.begin"), tr("Runs"), tr("To the beginning of the replay"),
                tr("Before the first commit"), QKeySequence(QStringLiteral("Ctrl+Home")),
                [this] { seekTime(false); });
    actions.add(QStringLiteral("replay.end"), tr("Runs"), tr("To the end of the replay"),
                tr("The run as it was at its end"), QKeySequence(QStringLiteral("Ctrl+End")),
                [this] { seekTime(true); });
    actions.add(QStringLiteral("replay.step"), tr("Runs"), tr("Go to a step of the replay\u2026"),
                tr("By its number"), QKeySequence(QStringLiteral("Ctrl+Shift+Home")),
                [this] { askStep(); });
    leave_->setDefaultAction(actions.add(QStringLiteral("replay.leave"), tr("Runs"),
                                         tr("Leave the replay"), tr("Back to the live job"),
                                         QKeySequence(QStringLiteral("Ctrl+Shift+L")), [this] {
                                             if (session_.status().opening)
                                                 session_.cancelOpening();
                                             else
                                                 session_.leaveReplay();
                                         }));
    play_->setAccessibleName(tr("Play or pause"));
    leave_->setAccessibleName(tr("Leave the replay"));
    connect(&session_, &Session::statusChanged, this, [this, &actions] {
        const SessionStatus& status = session_.status();
        for (const char* id : {"replay.play", "replay.back", "replay.forward", "replay.begin",
                               "replay.end", "replay.step"})
            actions.find(QString::fromLatin1(id))->setEnabled(status.replay && !status.opening);
        actions.find(QStringLiteral("replay.leave"))
            ->setEnabled(status.replay || status.opening.has_value() || !status.wayBack.isEmpty());
    });
}

void ReplayBar::seekStep(int64_t by) {
    const auto& position = session_.status().position;
    if (!position) return;
    model::ReplayControl order;
    order.seekStep =
        static_cast<uint64_t>(std::max<int64_t>(1, static_cast<int64_t>(position->step) + by));
    order.paused = true;
    session_.controlReplay(order);
}

void ReplayBar::seekTime(bool end) {
    const auto& position = session_.status().position;
    if (!position) return;
    model::ReplayControl order;
    order.seekTimeNs = end ? position->endNs : position->beginNs;
    session_.controlReplay(order);
}

void ReplayBar::askStep() {
    const auto& position = session_.status().position;
    if (!position) return;
    auto* dialog = new QInputDialog(this);
    dialog->setAttribute(Qt::WA_DeleteOnClose);
    dialog->setInputMode(QInputDialog::IntInput);
    dialog->setWindowTitle(tr("Go to a step"));
    dialog->setLabelText(tr("Step, 1 to %1").arg(position->endStep));
    dialog->setIntRange(1, static_cast<int>(std::clamp<uint64_t>(position->endStep, 1, INT_MAX)));
    dialog->setIntValue(static_cast<int>(std::min<uint64_t>(position->step, INT_MAX)));
    connect(dialog, &QInputDialog::intValueSelected, this, [this](int step) {
        model::ReplayControl order;
        order.seekStep = static_cast<uint64_t>(step);
        order.paused = true;
        session_.controlReplay(order);
    });
    dialog->open();
}

void ReplayBar::showProgress(std::optional<double> share) {
    progress_->setRange(0, share ? kTicks : 0);  // to 0: it goes on, nobody knows how far
    if (share) progress_->setValue(static_cast<int>(kTicks * *share));
}

void ReplayBar::refresh() {
    const SessionStatus& status = session_.status();
    const bool opening = status.opening.has_value();
    const auto& p = status.position;
    const bool left = !status.wayBack.isEmpty();
    setVisible(status.replay || opening || left);
    const bool moves = opening || (p && p->loading);
    progress_->setVisible(moves);
    // The scrubber stays while a move takes its time: it may be under the operator's hand.
    for (QWidget* part : std::initializer_list<QWidget*>{play_, scrubber_, clock_, speed_})
        part->setVisible(!opening && status.replay);
    if (moves) showProgress(opening ? status.opening->share : p->loading);
    if (opening) {
        words_->setText(tr("Reading %1").arg(status.opening->name));
        leave_->setVisible(true);
        return leave_->setText(tr("Cancel"));
    }
    leave_->setVisible(status.job.has_value() || left);
    leave_->setText(tr("Back to live"));
    leave_->setToolTip(left ? tr("Back to %1").arg(status.wayBack) : tr("Back to the live job"));
    words_->setText(status.replay ? tr("Replay, not live")
                                  : tr("%1 has no run").arg(status.target));
    if (!p || !status.replay) return;
    words_->setText(tr("Replay of %1, not live").arg(toQt(p->run)));
    play_->setText(p->atEnd ? tr("Replay from start") : p->paused ? tr("Play") : tr("Pause"));
    clock_->setText(tr("%1 / %2   step %3 of %4")
                        .arg(formatElapsed(p->timeNs - p->beginNs),
                             formatElapsed(p->endNs - p->beginNs), formatCount(p->step),
                             formatCount(p->endStep)));
    if (!scrubber_->isSliderDown()) {
        const QSignalBlocker quiet(scrubber_);
        const double span = static_cast<double>(std::max<int64_t>(p->endNs - p->beginNs, 1));
        scrubber_->setValue(
            static_cast<int>(kTicks * static_cast<double>(p->timeNs - p->beginNs) / span));
    }
    const int speed = speed_->findData(p->speed);
    if (speed >= 0) speed_->setCurrentIndex(speed);
}

}  // namespace bulkhead::ui
