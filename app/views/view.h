// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QWidget>

#include "app/models/run_feed.h"
#include "app/models/time_cursor.h"
#include "app/session/session.h"
#include "app/widgets/action_registry.h"
#include "app/widgets/confirm.h"
#include "backend/model/incident_card.h"

class QHBoxLayout;
class QLabel;
class QSettings;
class QStackedLayout;
class QToolButton;

namespace bulkhead::ui {

class JobCommands;

/// The dependencies of every view. All outlive the views.
struct ViewContext {
    RunFeed& feed;
    TimeCursor& cursor;
    Session& session;
    ActionRegistry& actions;
    Confirmer& confirmer;
    JobCommands& commands;
    QSettings& settings;
    model::Prices prices = {};  ///< of what lost time costs
};

/// A page the operator sees: a header with title and controls, and a body. refresh() is called when
/// the run moved on and the view can be seen; a hidden view does no work until it is shown.
/// While there is no run, the body gives way to words that say what to do.
class View : public QWidget {
    Q_OBJECT
  public:
    View(ViewContext& context, const QString& id, const QString& title, QWidget* parent = nullptr);

    const QString& id() const { return id_; }
    const QString& title() const { return title_; }
    /// The strip above the body; a dock takes it as its title bar.
    QWidget* header() const { return header_; }
    /// Off where a tab says it already.
    void setTitleShown(bool shown);
    /// The widget that gets the focus when the view is raised.
    virtual QWidget* focusTarget() = 0;
    /// A page whose tab lies behind another's counts as visible all the same, so that no
    /// showEvent() says when it comes to the front. What the run did meanwhile is shown then.
    void setInFront(bool inFront);

  protected:
    /// Called when the page comes to the front.
    virtual void raised() {}
    virtual void refresh() = 0;
    /// True when the body has something to show; called before refresh().
    virtual bool hasContent() const { return context_.feed.hasRun(); }
    /// True when the body shows how the job is now: it loses its colours when nobody knows.
    virtual bool isOfNow() const { return true; }
    /// False when what the body shows does not come from the run: its empty text holds without one.
    virtual bool isOfRun() const { return true; }
    void setBody(QWidget* body);
    /// The body's text while the run has nothing of this kind yet.
    void setEmptyText(const QString& headline, const QString& advice);
    virtual QString emptyText() const { return emptyText_; }
    QHBoxLayout* controls() const { return controls_; }
    /// A button in the header for an action of the registry; `face` is its short text.
    QToolButton* addButton(QAction* action, const QString& face);
    void showEvent(QShowEvent* event) override;
    /// Calls refresh() now if the view can be seen, else when it is shown.
    void touch();
    bool canBeSeen() const { return inFront_ && isVisible(); }

    ViewContext& context_;

  private:
    void sayWhyEmpty();
    void noteStatus();

    QString id_;
    QString title_;
    QWidget* header_;
    QHBoxLayout* controls_;
    QLabel* name_;
    QStackedLayout* stack_;
    QLabel* empty_;
    QString emptyText_;
    bool dirty_ = true;
    bool inFront_ = true;
};

/// "Headline" in bold above advice, centred: what an empty place says.
QString emptyWords(const QString& headline, const QString& advice);

}  // namespace bulkhead::ui
