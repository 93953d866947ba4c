// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QMainWindow>
#include <QSettings>
#include <functional>

#include "app/models/run_feed.h"
#include "app/models/time_cursor.h"
#include "app/session/recents.h"
#include "app/session/session.h"
#include "app/views/dock_layout.h"
#include "app/views/view.h"
#include "app/widgets/action_registry.h"
#include "app/widgets/confirm.h"

namespace bulkhead::ui {

class JobCommands;
class StatusStrip;

/// Holds the parts together and wires them; decides nothing itself.
class MainWindow final : public QMainWindow {
    Q_OBJECT
  public:
    /// References outlive the window.
    struct Parts {
        RunFeed& feed;
        TimeCursor& cursor;
        Session& session;
        ActionRegistry& actions;
        Confirmer& confirmer;
        QSettings& settings;
        model::Prices prices = {};
    };
    explicit MainWindow(Parts parts, QWidget* parent = nullptr);
    ~MainWindow() override;

    DockLayout& layout() { return docks_; }
    StatusStrip& strip() { return *strip_; }
    /// "unix:/path", "host:port" or the path of a run file; remembered among the recents. Asks
    /// first when an embedded job would be left.
    void open(const Recent& target);

  protected:
    void closeEvent(QCloseEvent* event) override;
    void dragEnterEvent(QDragEnterEvent* event) override;
    void dropEvent(QDropEvent* event) override;

  private:
    void makeViews();
    void wireViews();
    void makeTop();
    void addFileActions();
    void addViewActions();
    void addJobActions();
    void addHelpActions();
    void fillMenus();
    void enableActions();
    void noteStatus();
    /// Asks what becomes of an embedded job that trains, then goes on; not when cancelled.
    void leaveJob(
        const std::function<void()>& then, const std::function<void()>& otherwise = [] {});
    void startDemo();
    void askJob(const QString& file, const QString& resume);
    void askRunFile();
    void askAttach();

    Parts parts_;
    Recents recents_;
    JobCommands* commands_;
    ViewContext context_;
    StatusStrip* strip_;
    DockLayout docks_;
    Link lastLink_ = Link::kNone;
    QString lastOpened_;
    bool closing_ = false;
};

}  // namespace bulkhead::ui
