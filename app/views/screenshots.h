// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QObject>
#include <QString>
#include <QTimer>
#include <vector>

#include "app/models/narrator.h"
#include "app/session/session.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {

class MainWindow;

/// Takes a picture of the window and of every view alone, in one scheme or both, as soon as there
/// is something to see; then says how it went. What `./dev run` does without a display.
class Screenshots final : public QObject {
    Q_OBJECT
  public:
    struct Options {
        QString folder;
        std::vector<Scheme> schemes = {Scheme::kDark, Scheme::kLight};
        int seconds = 30;  ///< of the live job to wait for, at least
        /// In an embedded demo: lose a replica on the way, so that the timeline has something to
        /// say.
        bool killOne = true;
    };
    Screenshots(MainWindow& window, RunFeed& feed, Session& session, Options options);
    /// finished() follows.
    void start();

  Q_SIGNALS:
    void finished(bool ok, const QString& words);

  private:
    void look();
    bool full() const;
    void nextPicture();

    MainWindow& window_;
    RunFeed& feed_;
    Session& session_;
    Options options_;
    Narrator narrator_;
    QTimer timer_;
    client::SteadyTime started_;
    size_t scheme_ = 0;
    size_t view_ = 0;  ///< 0: the whole window, then the views
    bool killed_ = false;
    int saved_ = 0;
};

}  // namespace bulkhead::ui
