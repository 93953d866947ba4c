// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QFrame>

#include "app/session/session.h"
#include "app/widgets/action_registry.h"

class QComboBox;
class QLabel;
class QProgressBar;
class QSlider;
class QToolButton;

namespace bulkhead::ui {

/// Says that what is on screen is a replay, and moves it: play, speed, scrubber, step by step.
/// While a run is read, how far that is, and a way to give it up. Hidden while the run is live.
class ReplayBar final : public QFrame {
    Q_OBJECT
  public:
    ReplayBar(Session& session, ActionRegistry& actions, QWidget* parent = nullptr);

  private:
    void addActions(ActionRegistry& actions);
    void refresh();
    void seekStep(int64_t by);
    void seekTime(bool end);
    void askStep();
    void showProgress(std::optional<double> share);

    Session& session_;
    QLabel* words_;
    QToolButton* play_;
    QSlider* scrubber_;
    QLabel* clock_;
    QComboBox* speed_;
    QToolButton* leave_;
    QProgressBar* progress_;
};

}  // namespace bulkhead::ui
