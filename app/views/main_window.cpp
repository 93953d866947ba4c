// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/main_window.h"

#include <QCloseEvent>
#include <QDockWidget>
#include <QFileDialog>
#include <QMenuBar>
#include <QMimeData>
#include <QVBoxLayout>

#include "app/models/policy_form.h"
#include "app/views/connect_dialog.h"
#include "app/views/faults_view.h"
#include "app/views/fleet_view.h"
#include "app/views/incidents_view.h"
#include "app/views/job_commands.h"
#include "app/views/job_dialog.h"
#include "app/views/jobs_dialog.h"
#include "app/views/messages_dialog.h"
#include "app/views/placement_view.h"
#include "app/views/policy_dialog.h"
#include "app/views/replay_bar.h"
#include "app/views/runs_view.h"
#include "app/views/status_strip.h"
#include "app/widgets/command_palette.h"
#include "app/widgets/theme.h"

namespace bulkhead::ui {
namespace {

const QString kGoesOn = QStringLiteral("embedded/goesOnAt");

}  // namespace

MainWindow::MainWindow(Parts parts, QWidget* parent)
    : QMainWindow(parent),
      parts_(parts),
      recents_(parts.settings),
      commands_(new JobCommands(parts.session, parts.confirmer, this)),
      context_{parts.feed, parts.cursor, parts.session, parts.actions, parts.confirmer, *commands_,
               parts.settings, parts.prices},
      strip_(nullptr),
      docks_(*this) {
    setWindowTitle(tr("Bulkhead"));
    setAcceptDrops(true);
    setDockNestingEnabled(true);
    setTabPosition(Qt::AllDockWidgetAreas, QTabWidget::North);
    resize(1600, 1000);
    addFileActions();
    makeViews();
    addViewActions();
    addJobActions();
    makeTop();
    addHelpActions();
    fillMenus();
    docks_.arrange();
    docks_.restore(parts_.settings);
    const auto complain = [this](const client::Failure& failure) {
        strip_->say(toQt(failure.title) + QStringLiteral(": ") + inWords(failure), Tone::kBad);
    };
    connect(commands_, &JobCommands::failed, this, complain);
    connect(&parts_.session, &Session::complained, this, complain);
    const auto note = [this](const QString& words) { strip_->say(words, Tone::kNeutral); };
    connect(commands_, &JobCommands::succeeded, this, note);
    connect(&parts_.session, &Session::noticed, this, note);
    wireViews();
    connect(&parts_.session, &Session::statusChanged, this, &MainWindow::noteStatus);
    noteStatus();
    docks_.views().front()->focusTarget()->setFocus();
}

MainWindow::~MainWindow() = default;

void MainWindow::makeViews() {
    for (const Page& page : pages()) docks_.add(page.make(context_), page.place);
}

/// Connects requests of a page to another page or the window.
void MainWindow::wireViews() {
    auto* faults = docks_.find<FaultsView>();
    connect(docks_.find<FleetView>(), &FleetView::faultWanted, this,
            [this, faults](int replica, int shard, const QString& node) {
                faults->aimAt(replica, shard, node);
                docks_.raise(faults);
            });
    connect(docks_.find<RunsView>(), &RunsView::resumeWanted, this,
            [this](const QString& run) { askJob({}, run); });
}

void MainWindow::makeTop() {
    strip_ = new StatusStrip(parts_.feed, parts_.session);
    connect(strip_, &StatusStrip::planWanted, this,
            [this] { docks_.raise(docks_.find<PlacementView>()); });
    connect(strip_, &StatusStrip::incidentsWanted, this, [this] {
        auto* incidents = docks_.find<IncidentsView>();
        docks_.raise(incidents);
        incidents->showFirst();
    });
    connect(strip_, &StatusStrip::messagesWanted, parts_.actions.find("view.messages"),
            &QAction::trigger);
    auto* top = new QWidget;
    auto* column = new QVBoxLayout(top);
    column->setContentsMargins(0, 0, 0, 0);
    column->setSpacing(0);
    column->addWidget(new QMenuBar(top));
    column->addWidget(strip_);
    auto* banner = new LinkBanner(parts_.session);
    connect(banner, &LinkBanner::retryWanted, &parts_.session, &Session::retryNow);
    column->addWidget(banner);
    column->addWidget(new ReplayBar(parts_.session, parts_.actions));
    setMenuWidget(top);
}

void MainWindow::addFileActions() {
    ActionRegistry& a = parts_.actions;
    const QString file = tr("File");
    a.add("file.demo", file, tr("Start the demo"), tr("A private daemon trains the demo job"),
          QKeySequence("Ctrl+N"), [this] { startDemo(); });
    a.add("file.job", file, tr("Start a job\u2026"),
          tr("A job file of yours, or the demo with changes; here or on the attached daemon"),
          QKeySequence("Ctrl+J"), [this] { askJob({}, {}); });
    a.add("file.attach", file, tr("Attach to a daemon\u2026"), tr("By socket or address"),
          QKeySequence("Ctrl+T"), [this] { askAttach(); });
    a.add("file.open", file, tr("Open a run file\u2026"),
          tr("Look at past runs; also by drag and drop"), QKeySequence("Ctrl+O"),
          [this] { askRunFile(); });
    a.add("file.retry", file, tr("Retry the connection now"), tr("Do not wait for the countdown"),
          QKeySequence("F5"), [this] { parts_.session.retryNow(); });
    a.add("file.quit", file, tr("Quit"), tr("Asks whether a job of this console is stopped or kept"),
          QKeySequence("Ctrl+Q"), [this] { close(); });
}

void MainWindow::addViewActions() {
    ActionRegistry& a = parts_.actions;
    const QString view = tr("View");
    int number = 1;
    for (View* v : docks_.views())
        a.add("view." + v->id(), view, v->title(), tr("Bring %1 to the front").arg(v->title()),
              QKeySequence(QStringLiteral("%1+%2")
                               .arg(number < 10 ? QStringLiteral("Ctrl") : QStringLiteral("Alt"))
                               .arg(number % 10)),
              [this, v] { docks_.raise(v); }),
            ++number;
    a.add("view.only", view, tr("This view alone"), tr("Or everything as it was before"),
          QKeySequence("F11"), [this] { docks_.toggleOnly(docks_.current()); });
    a.add("view.reset", view, tr("Default arrangement"), tr("Put every view back in its place"),
          QKeySequence("Ctrl+Shift+0"), [this] { docks_.arrange(); });
    a.add("view.messages", view, tr("Messages\u2026"), tr("What the console said so far"),
          QKeySequence("F8"),
          [this] { (new MessagesDialog(strip_->messages(), this))->open(); });
    a.add("view.theme", view, tr("Light or dark"), tr("Switch the colours at once"),
          QKeySequence("Ctrl+Shift+T"), [this] {
              theme().setScheme(theme().scheme() == Scheme::kDark ? Scheme::kLight : Scheme::kDark);
              parts_.settings.setValue("theme",
                                       theme().scheme() == Scheme::kDark ? "dark" : "light");
          });
}

void MainWindow::addJobActions() {
    using enum model::ActionKind;
    const struct {
        const char* id;
        model::ActionKind kind;
        QString title, hint, keys;
    } entries[] = {
        {"job.pause", kPause, tr("Pause\u2026"), tr("No step begins after the current one"),
         "Ctrl+P"},
        {"job.resume", kResume, tr("Resume\u2026"), tr("Go on after a pause"), "Ctrl+Shift+P"},
        {"job.checkpoint", kCheckpoint, tr("Checkpoint\u2026"), tr("Write one of the next commit"),
         "Ctrl+S"},
        {"job.stop", kStop, tr("Stop with a checkpoint\u2026"), tr("Ends the job"), "Ctrl+Shift+Q"},
        {"job.stopNow", kStopNow, tr("Stop without a checkpoint\u2026"),
         tr("Loses every step since the last one; also ends a stop that waits for it"),
         "Ctrl+Alt+Q"}};
    for (const auto& entry : entries)
        parts_.actions.add(entry.id, tr("Job"), entry.title, entry.hint, QKeySequence(entry.keys),
                           [this, kind = entry.kind] {
                               model::Action action;
                               action.kind = kind;
                               commands_->act(action);
                           });
    const auto change = [this](const QString& key) {
        (new PolicyDialog(context_, key, this))->open();
    };
    parts_.actions.add("job.policy", tr("Job"), tr("Change a policy\u2026"),
                       tr("Learning rate, batch, recovery and the others"), QKeySequence("Ctrl+Y"),
                       [change] { change({}); });
    parts_.actions.add("jobs.switch", tr("Job"), tr("Show another job\u2026"),
                       tr("Of those that the daemon runs"), QKeySequence("Ctrl+Shift+J"),
                       [this] { (new JobsDialog(parts_.session, this))->open(); });
    for (const PolicyField& field : policyFields()) {
        const QString key = toQt(field.key);
        parts_.actions.add("job.policy." + key, tr("Job") + u'/' + tr("Policies"),
                           tr("Policy: %1\u2026").arg(field.title), field.hint, {},
                           [change, key] { change(key); });
    }
}

void MainWindow::addHelpActions() {
    ActionRegistry& a = parts_.actions;
    a.add("help.palette", tr("Help"), tr("Command palette"), tr("Any action by a few letters"),
          QKeySequence("Ctrl+K"), [this] { (new CommandPalette(parts_.actions, this))->open(); });
    a.add("help.keys", tr("Help"), tr("Keyboard shortcuts"), tr("All of them on one sheet"),
          QKeySequence("F1"), [this] { (new ShortcutSheet(parts_.actions, this))->open(); });
}

void MainWindow::fillMenus() {
    auto* bar = menuWidget()->findChild<QMenuBar*>();
    bar->setAccessibleName(tr("Menu"));
    QHash<QString, QMenu*> menus;
    const auto menuOf = [&](const QString& path, const auto& self) -> QMenu* {
        QMenu*& menu = menus[path];
        if (menu != nullptr) return menu;
        const auto slash = path.lastIndexOf(u'/');
        QMenu* made = slash < 0 ? bar->addMenu(path)
                                : self(path.left(slash), self)->addMenu(path.mid(slash + 1));
        return menus[path] = made;
    };
    for (const QString& name :
         {tr("File"), tr("View"), tr("Job"), tr("Fleet"), tr("Faults"), tr("Runs")})
        menuOf(name, menuOf);
    for (const ActionRegistry::Entry& entry : parts_.actions.entries()) {
        addAction(entry.action);
        menuOf(entry.category, menuOf)->addAction(entry.action);
    }
}

void MainWindow::enableActions() {
    const SessionStatus& status = parts_.session.status();
    for (const ActionRegistry::Entry& entry : parts_.actions.entries())
        if (entry.id.startsWith("job.")) entry.action->setEnabled(status.canAct());
    parts_.actions.find("jobs.switch")->setEnabled(status.link == Link::kLive && !status.readOnly);
    parts_.actions.find("file.retry")->setEnabled(status.link == Link::kReconnecting);
}

void MainWindow::noteStatus() {
    enableActions();
    const SessionStatus& status = parts_.session.status();
    setWindowTitle(status.target.isEmpty() ? tr("Bulkhead")
                                           : tr("%1 \u2013 Bulkhead").arg(status.target));
    if (status.link == lastLink_) return;
    lastLink_ = status.link;
    if (status.link == Link::kLive) recents_.setStatus(lastOpened_, tr("connected last time"));
    if (status.link == Link::kFailed && status.failure)
        recents_.setStatus(lastOpened_, toQt(status.failure->cause));
}

void MainWindow::leaveJob(const std::function<void()>& then,
                          const std::function<void()>& otherwise) {
    const SessionStatus& status = parts_.session.status();
    if (!status.leavesJob()) return then();
    ConfirmRequest request;
    request.title = tr("Job %1 is still running").arg(status.target);
    request.effect = tr("This console started it. Stop or keep it?");
    request.choices = {tr("Stop with a checkpoint"), tr("Keep running")};
    request.destructive = false;
    parts_.confirmer.ask(this, request, [this, then, otherwise](int choice) {
        if (choice == Confirmer::kCancelled) return otherwise();
        if (choice == 1) {
            parts_.settings.setValue(kGoesOn, parts_.session.releaseEmbedded());
            return then();
        }
        parts_.settings.remove(kGoesOn);
        strip_->say(tr("Writing a checkpoint\u2026"), Tone::kBusy);
        parts_.session.stopEmbedded(then);
    });
}

void MainWindow::startDemo() {
    leaveJob([this] {
        // A demo that was told to go on is the one to come back to.
        const QString running = parts_.settings.value(kGoesOn).toString();
        if (running.isEmpty())
            parts_.session.startEmbedded();
        else
            parts_.session.returnTo(running);
    });
}

void MainWindow::open(const Recent& target) {
    const auto remember = [this, target] {
        recents_.remember(target);
        lastOpened_ = target.target;
        lastLink_ = Link::kNone;
    };
    const Session::Leave leave = [this, remember](auto go, auto stay) {
        leaveJob(
            [remember, go] {
                remember();
                go();
            },
            stay);
    };
    if (target.kind == Recent::Kind::kFile)
        parts_.session.openRunFile(target.target, leave);
    else
        parts_.session.attach(target.target, target.tokenFile, target.certs, leave);
}

void MainWindow::askJob(const QString& file, const QString& resume) {
    const SessionStatus& status = parts_.session.status();
    auto* dialog = new JobDialog(status.link == Link::kLive && !status.readOnly, this);
    dialog->setFile(file);
    dialog->setResume(resume);
    connect(dialog, &QDialog::accepted, this, [this, dialog] {
        const client::JobSource job = dialog->source();
        if (!dialog->onOwnDaemon()) return parts_.session.startJob(job);
        if (!parts_.session.canRead(job)) return;
        leaveJob([this, job, nodes = dialog->nodes(), runFile = dialog->runFile()] {
            parts_.session.startEmbedded(job, nodes, runFile);
        });
    });
    dialog->open();
}

void MainWindow::askRunFile() {
    auto* dialog =
        new QFileDialog(this, tr("Open a run file"), {}, tr("Runs (*.db);;All files (*)"));
    dialog->setAttribute(Qt::WA_DeleteOnClose);
    connect(dialog, &QFileDialog::fileSelected, this, [this](const QString& path) {
        open({Recent::Kind::kFile, path, {}, {}});
    });
    dialog->open();
}

void MainWindow::askAttach() {
    auto* dialog = new ConnectDialog(recents_, this);
    dialog->setAttribute(Qt::WA_DeleteOnClose);
    connect(dialog, &QDialog::accepted, this, [this, dialog] { open(dialog->chosen()); });
    dialog->open();
}

void MainWindow::closeEvent(QCloseEvent* event) {
    docks_.save(parts_.settings);
    if (closing_ || !parts_.session.status().leavesJob()) return event->accept();
    event->ignore();
    leaveJob([this] {
        closing_ = true;
        // Not from within this event: a window that is closing takes no second close.
        QMetaObject::invokeMethod(this, &QWidget::close, Qt::QueuedConnection);
    });
}

void MainWindow::dragEnterEvent(QDragEnterEvent* event) {
    if (event->mimeData()->hasUrls()) event->acceptProposedAction();
}

void MainWindow::dropEvent(QDropEvent* event) {
    const QList<QUrl> urls = event->mimeData()->urls();
    if (urls.isEmpty() || !urls.first().isLocalFile()) return;
    event->acceptProposedAction();
    const QString path = urls.first().toLocalFile();
    if (path.endsWith(QStringLiteral(".toml")))
        askJob(path, {});
    else
        open({Recent::Kind::kFile, path, {}, {}});
}

}  // namespace bulkhead::ui
