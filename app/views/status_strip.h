// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QFrame>
#include <QTimer>
#include <QWidget>
#include <array>

#include "app/models/labels.h"
#include "app/models/message_log.h"
#include "app/models/run_feed.h"
#include "app/session/session.h"

class QLabel;
class QPushButton;
class QToolButton;

namespace bulkhead::ui {

/// A mark per replica, coloured and shaped by its state.
class ReplicaMarks final : public QWidget {
    Q_OBJECT
  public:
    explicit ReplicaMarks(const RunFeed& feed, QWidget* parent = nullptr);
    QSize sizeHint() const override;
    QSize minimumSizeHint() const override { return sizeHint(); }

  protected:
    void paintEvent(QPaintEvent* event) override;

  private:
    const RunFeed& feed_;
};

/// Over the whole width while nobody knows how the job is: since when, why, and what is done.
class LinkBanner final : public QFrame {
    Q_OBJECT
  public:
    explicit LinkBanner(const Session& session, QWidget* parent = nullptr);

  Q_SIGNALS:
    void retryWanted();

  private:
    void refresh();

    const Session& session_;
    QLabel* headline_;
    QLabel* words_;
    QPushButton* retry_;
};

/// Shows problems first, then the phase of the job, the figures that matter, how fresh
/// all this is, and below, always, why anything waits.
class StatusStrip final : public QWidget {
    Q_OBJECT
  public:
    StatusStrip(const RunFeed& feed, const Session& session, QWidget* parent = nullptr);

    /// A word on something done or gone wrong, shown until the next one or for a while; messages()
    /// has it after that.
    void say(const QString& words, Tone tone);
    MessageLog& messages() { return log_; }
    QString explanation() const;

  Q_SIGNALS:
    /// The operator wants to look at the plan that waits.
    void planWanted();
    /// The operator wants to know what to do about what is wrong.
    void incidentsWanted();
    /// The operator wants to read what was said before.
    void messagesWanted();

  private:
    enum Tile { kPhase, kStep, kContributors, kEffective, kLoss, kTokens, kTiles };
    void refresh();
    void refreshLink();
    void refreshFigures();
    void refreshExplanation();
    void refreshMessage();
    QWidget* makeTile(Tile tile, const QString& caption, QWidget* extra = nullptr);

    const RunFeed& feed_;
    const Session& session_;
    std::array<QLabel*, kTiles> figures_{};
    QLabel* link_;
    QLabel* detail_;
    QPushButton* plan_;
    QLabel* explanation_;
    QPushButton* problems_;
    QLabel* message_;
    QToolButton* history_;
    MessageLog log_;
    QString said_;
    Tone saidTone_ = Tone::kNeutral;
    QTimer expiry_;
    ReplicaMarks* marks_;
    Revisions drawn_;
};

/// The sentence that says why something waits, or that nothing does. Pure.
struct Explanation {
    QString words;
    Tone tone = Tone::kMuted;
};
Explanation explain(const model::RunState& state);

}  // namespace bulkhead::ui
