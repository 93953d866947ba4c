// SPDX-License-Identifier: GPL-3.0-only
#include "app/session/session.h"

#include <QDateTime>
#include <QDir>
#include <QFileInfo>
#include <QStandardPaths>
#include <algorithm>
#include <utility>

#include "app/models/labels.h"

namespace bulkhead::ui {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kFrame{100};  // ten deliveries a second
constexpr int kSilenceTickMs = 250;
constexpr double kSilentSeconds = 2.0;

QString dataFile(const QString& name) {
    const QString folder = QStandardPaths::writableLocation(QStandardPaths::AppLocalDataLocation);
    QDir().mkpath(folder);
    return folder + u'/' + name;
}

bool goesOn(const model::JobInfo& job) {
    return job.phase != model::JobPhase::kFinished && job.phase != model::JobPhase::kFailed;
}

}  // namespace

QString inWords(const client::Failure& failure) {
    QStringList sentences;
    const std::string& remedy = failure.remedy;
    for (const std::string* part : {&failure.cause, &remedy}) {
        QString sentence = toQt(*part).trimmed();
        if (sentence.isEmpty()) continue;
        if (!sentence.endsWith(u'.') && !sentence.endsWith(u'?')) sentence += u'.';
        // A cause may begin with a name or a path, a remedy with the name of a program.
        if (part == &remedy && !sentence.startsWith(QStringLiteral("bulkhead")))
            sentence[0] = sentence[0].toUpper();
        sentences << sentence;
    }
    return sentences.join(u' ');
}

Session::Session(RunFeed& feed, OpenClient openClient, QObject* parent)
    : QObject(parent), feed_(feed), openClient_(std::move(openClient)) {
    deliverTimer_.setSingleShot(true);
    deliverTimer_.setTimerType(Qt::PreciseTimer);
    connect(&deliverTimer_, &QTimer::timeout, this, &Session::deliver);
    connect(&silenceTimer_, &QTimer::timeout, this, &Session::checkSilence);
    silenceTimer_.start(kSilenceTickMs);
}

Session::~Session() {
    forgetClient();
}

void Session::forgetClient() {
    ++generation_;
    if (runOpening_) endOpening();
    runWatch_.reset();
    jobsWatch_.reset();
    runBox_.reset();
    jobsBox_.reset();
    client_.reset();
    watched_ = {};
    run_.clear();
    replay_.clear();
    connected_ = false;
    jobsLost_.reset();
    runLost_.reset();
    deliverTimer_.stop();
}

void Session::close() {
    endOpening();
    forgetClient();
    candidate_.reset();
    daemon_.reset();
    pendingJob_.reset();
    returning_ = false;
    way_.reset();
    before_.reset();
    status_ = {};
    feed_.clear();
    Q_EMIT statusChanged();
}

void Session::startEmbedded(const client::JobSource& job, uint32_t nodes, const QString& runFile) {
    close();
    status_.embedded = true;
    status_.target = job.file.empty() ? tr("demo") : QFileInfo(toQt(job.file)).fileName();
    auto text = client::readJob(job);
    if (!text.ok()) {
        status_.link = Link::kFailed;
        status_.failure = text.failure();
        return void(Q_EMIT statusChanged());
    }
    client::PrivateDaemonOptions options;
    options.runFile = (runFile.isEmpty() ? dataFile(QStringLiteral("runs.db"))
                                         : QFileInfo(runFile).absoluteFilePath())
                          .toStdString();
    options.agents = nodes;
    // Checkpoints and commit log: beside a history of the operator's own, as bulkheadctl up has it;
    // of the demo only as long as a crash may have cut it off.
    if (!runFile.isEmpty()) {
        options.stateDir = options.runFile + ".state";
    } else if (job.file.empty()) {
        options.stateDir = dataFile(QStringLiteral("demo")).toStdString();
        options.scratch = true;
    }
    pendingJob_ = std::move(text).value();
    host(std::move(options));
}

void Session::returnTo(const QString& target) {
    close();
    status_.embedded = true;
    status_.link = Link::kConnecting;
    returning_ = true;
    client::Options options;
    options.target = target.toStdString();
    way_ = Way{options, tr("demo"), true};
    open(std::move(options), tr("demo"));
}

void Session::openRunFile(const QString& path, Leave leave) {
    const QString name = QFileInfo(path).fileName();
    cancelOpening();
    if (!isOpen()) {
        close();
        status_.link = Link::kStarting;
        status_.target = name;
    }
    status_.opening = SessionStatus::Opening{name, std::nullopt};
    const auto failed = [this](const client::Failure& failure) {
        endOpening();
        if (isOpen()) {
            Q_EMIT complained(failure);
        } else {
            status_.link = Link::kFailed;
            status_.failure = failure;
        }
        Q_EMIT statusChanged();
    };
    const auto opened = [this, name, leave](FileOpening::Opened file) {
        // While an operator is asked, the two ways to go on keep the file; it may be cancelled.
        const auto kept = std::make_shared<FileOpening::Opened>(std::move(file));
        const auto isWanted = [this, mine = fileOpening_.get()] {
            return fileOpening_.get() == mine;
        };
        leave(
            [this, name, kept, isWanted] {
                if (isWanted()) adopt(std::move(*kept), name);
            },
            [this, isWanted] {
                if (isWanted()) cancelOpening();
            });
    };
    fileOpening_ = std::make_unique<FileOpening>(
        path, openClient_,
        FileOpening::Told{[this](std::optional<double> share) { setProgress(share); }, opened,
                          failed});
    Q_EMIT statusChanged();
}

void Session::adopt(FileOpening::Opened file, const QString& name) {
    std::optional<Way> back = status_.offline ? before_ : way_;
    close();
    before_ = std::move(back);
    status_.wayBack = before_ ? before_->words : QString();
    status_.offline = true;
    status_.target = name;
    status_.link = Link::kConnecting;
    target_ = file.options.target;
    daemon_ = std::move(file.daemon);
    client_ = std::move(file.client);
    watchJobs();
    if (file.run) showReplay(*std::move(file.run));
    Q_EMIT statusChanged();
}

void Session::goBack() {
    const Way way = *before_;
    close();
    way_ = way;
    status_.embedded = way.embedded;
    status_.link = Link::kConnecting;
    open(way.options, way.words);
}

void Session::setProgress(std::optional<double> share) {
    if (!status_.opening) return;
    status_.opening->share = share;
    Q_EMIT statusChanged();
}

void Session::endOpening() {
    status_.opening.reset();
    runOpening_.reset();
    fileOpening_.reset();
}

void Session::cancelOpening() {
    if (!status_.opening) return;
    endOpening();
    if (!isOpen()) close();
    Q_EMIT statusChanged();
}

bool Session::canRead(const client::JobSource& job) {
    const auto text = client::readJob(job);
    if (!text.ok()) Q_EMIT complained(text.failure());
    return text.ok();
}

void Session::host(client::PrivateDaemonOptions options) {
    daemon_ = std::make_unique<DaemonHost>();
    connect(daemon_.get(), &DaemonHost::failed, this, [this](const client::Failure& failure) {
        status_.link = Link::kFailed;
        status_.failure = failure;
        Q_EMIT statusChanged();
    });
    connect(daemon_.get(), &DaemonHost::ready, this, [this](const QString& target) {
        client::Options way;
        way.target = target.toStdString();
        open(std::move(way), status_.target);
    });
    status_.link = Link::kStarting;
    Q_EMIT statusChanged();
    daemon_->start(std::move(options));
}

/// Continues the job that a killed console left unfinished, instead of a new one.
void Session::keepInsteadOfPending(const model::JobInfo& job) {
    if (!pendingJob_) return;
    pendingJob_.reset();
    Q_EMIT noticed(tr("%1: recovered at step %2. For a new job name another run file.")
                       .arg(toQt(job.id))
                       .arg(job.step));
}

void Session::startPendingJob() {
    if (pendingJob_) show(*std::exchange(pendingJob_, std::nullopt));
}

void Session::show(client::JobText text) {
    client_->startJob(std::move(text), {}, here<model::JobInfo>([this](auto result) {
                          if (result.ok()) {
                              leaveReplay();
                              watchJob(result.value());
                          } else if (status_.job) {
                              Q_EMIT complained(result.failure());
                          } else {
                              status_.link = Link::kFailed;
                              status_.failure = result.failure();
                          }
                          Q_EMIT statusChanged();
                      }));
}

void Session::attach(const QString& target, const QString& tokenFile, const QString& certs,
                     const Leave& leave) {
    client::Options options;
    options.target = target.toStdString();
    options.tokenFile = tokenFile.toStdString();
    options.certs = certs.toStdString();
    if (!feed_.hasRun()) return leave([=, this] { switchTo(options, target); }, [] {});
    auto opened = openClient_(options);
    if (!opened.ok()) return void(Q_EMIT complained(opened.failure()));
    candidate_ = std::move(opened).value();
    Q_EMIT noticed(tr("Connecting to %1\u2026").arg(target));
    candidate_->handshake(here<model::ServerInfo>([=, this, mine = candidate_.get()](auto answer) {
        const auto isWanted = [this, mine] { return candidate_.get() == mine; };
        if (!isWanted()) return;
        if (!answer.ok()) {
            candidate_.reset();
            return void(Q_EMIT complained(answer.failure()));
        }
        leave(
            [=, this] {
                if (isWanted()) switchTo(options, target);
            },
            [=, this] {
                if (isWanted()) candidate_.reset();
            });
    }));
}

void Session::switchTo(const client::Options& options, const QString& target) {
    close();
    status_.link = Link::kConnecting;
    way_ = Way{options, target, false};
    open(options, target);
}

void Session::open(client::Options options, const QString& words) {
    status_.target = words;
    target_ = options.target;
    options.who =
        qEnvironmentVariable("USER", QStringLiteral("operator")).toStdString() + "@console";
    auto opened = openClient_(std::move(options));
    if (!opened.ok()) {
        status_.link = Link::kFailed;
        status_.failure = opened.failure();
        Q_EMIT statusChanged();
        return;
    }
    client_ = std::move(opened).value();
    watchJobs();
    Q_EMIT statusChanged();
}

void Session::watchJobs() {
    const auto box = std::make_shared<Mailbox>([this] {
        QMetaObject::invokeMethod(
            this, [this] { deliverSoon(); }, Qt::QueuedConnection);
    });
    jobsBox_ = box;
    client::JobsHandlers handlers;
    handlers.onConnected = [box](model::ServerInfo info) { box->putConnected(std::move(info)); };
    handlers.onJobs = [box](std::vector<model::JobInfo> jobs) { box->putJobs(std::move(jobs)); };
    handlers.onDisconnected = [box](client::Failure failure, client::SteadyTime next) {
        box->putLost(std::move(failure), next);
    };
    jobsWatch_ = client_->watchJobs(std::move(handlers));
}

void Session::deliverSoon() {
    if (moving_ && runBox_ && runBox_->hasSnapshot()) return deliver();
    if (deliverTimer_.isActive()) return;
    const auto since = steady_clock::now() - lastDelivery_;
    if (since >= kFrame) return deliver();
    deliverTimer_.start(std::chrono::duration_cast<std::chrono::milliseconds>(kFrame - since));
}

void Session::deliver() {
    deliverTimer_.stop();
    lastDelivery_ = steady_clock::now();
    if (jobsBox_) takeJobs(jobsBox_->take());
    if (runBox_) takeRun(runBox_->take());
}

void Session::takeJobs(Delivery delivery) {
    if (delivery.lost) {
        jobsLost_ = delivery.lost;
        lose();
    }
    if (delivery.connected) {
        connected_ = true;
        returning_ = false;
        jobsLost_.reset();
        judgeLink();
        status_.readOnly = delivery.connected->readOnly;
        status_.server = *delivery.connected;
        Q_EMIT runsChanged();
        if (status_.readOnly && watched_.replay.empty()) showNewestRun();
    }
    if (delivery.jobs) {
        status_.jobs = std::move(*delivery.jobs);
        const auto& jobs = status_.jobs;
        const auto going = std::find_if(jobs.begin(), jobs.end(), goesOn);
        if (going != jobs.end()) keepInsteadOfPending(*going);
        startPendingJob();
        const auto mine = std::find_if(jobs.begin(), jobs.end(), [&](const model::JobInfo& j) {
            return status_.job && j.id == status_.job->id;
        });
        if (mine != jobs.end())
            status_.job = *mine;
        else if (going != jobs.end())
            watchJob(*going);
        else if (!jobs.empty())
            watchJob(jobs.front());
        Q_EMIT runsChanged();
    }
    if (delivery.lost || delivery.connected || delivery.jobs) Q_EMIT statusChanged();
}

void Session::lose() {
    // Nobody is there to come back to: begin anew, outside of what is being delivered.
    if (std::exchange(returning_, false))
        return void(QMetaObject::invokeMethod(
            this, [this] { startEmbedded(); }, Qt::QueuedConnection));
    judgeLink();
}

/// Live only while both watches get through: the list of jobs says nothing of the run on screen.
void Session::judgeLink() {
    const auto& lost = jobsLost_ ? jobsLost_ : runLost_;
    if (!lost) {
        if (!connected_) return;
        status_.link = Link::kLive;
        status_.failure.reset();
        return;
    }
    status_.failure = lost->failure;
    status_.nextAttempt = lost->nextAttempt;
    if (!lost->failure.retryable)
        status_.link = Link::kFailed;
    else if (status_.link != Link::kStarting)
        status_.link = Link::kReconnecting;
}

void Session::watchJob(const model::JobInfo& job) {
    status_.job = job;
    run_ = job.run;
    if (replay_.empty()) watchRun({job.id, {}});
}

void Session::watchRun(client::WatchTarget target) {
    runWatch_.reset();
    runLost_.reset();
    moving_ = false;
    judgeLink();
    lastWord_ = steady_clock::now();
    watched_ = target;
    status_.replay = !target.replay.empty();
    if (!status_.replay) status_.position.reset();
    const auto box = std::make_shared<Mailbox>([this] {
        QMetaObject::invokeMethod(
            this, [this] { deliverSoon(); }, Qt::QueuedConnection);
    });
    runBox_ = box;
    client::WatchHandlers handlers;
    handlers.onSnapshot = [box](client::StatePtr state) { box->putSnapshot(std::move(state)); };
    handlers.onEvents = [box](std::vector<model::Event> e) { box->putEvents(std::move(e)); };
    handlers.onPosition = [box](model::ReplayPosition p) { box->putPosition(p); };
    handlers.onDisconnected = [box](client::Failure failure, client::SteadyTime next) {
        box->putLost(std::move(failure), next);
    };
    runWatch_ = client_->watch(std::move(target), std::move(handlers));
    Q_EMIT statusChanged();
}

void Session::takeRun(Delivery delivery) {
    if (delivery.overflowed) return watchRun(watched_);
    const bool anything = delivery.snapshot || !delivery.events.empty() || delivery.position;
    if (delivery.lost) {
        runLost_ = delivery.lost;
        lose();
    }
    const bool back = anything && !delivery.lost && (runLost_ || status_.unknown);
    if (anything) lastWord_ = steady_clock::now();
    if (back) {
        runLost_.reset();
        judgeLink();
        checkSilence();
    }
    if (delivery.position) status_.position = delivery.position;
    if (delivery.snapshot) {
        moving_ = false;
        feed_.reset(*delivery.snapshot);
    }
    feed_.apply(delivery.events);
    if (delivery.position || delivery.lost || back) Q_EMIT statusChanged();
}

void Session::showNewestRun() {
    listRuns({}, [this](client::Result<std::vector<model::RunInfo>> runs) {
        if (runs.ok() && !runs.value().empty()) return replayRun(toQt(runs.value().front().id));
        if (!runs.ok()) Q_EMIT complained(runs.failure());
    });
}

void Session::checkSilence() {
    const bool wasUnknown = status_.unknown;
    const model::JobPhase phase = feed_.state().phase;
    const bool past =
        status_.replay || phase == model::JobPhase::kFinished || phase == model::JobPhase::kFailed;
    status_.silentSeconds = std::chrono::duration<double>(steady_clock::now() - lastWord_).count();
    status_.unknown = feed_.hasRun() && !past &&
                      (status_.link != Link::kLive || status_.silentSeconds > kSilentSeconds);
    feed_.setUnseen(status_.unknown ? status_.silentSeconds * 1000 : 0);
    if (status_.unknown || wasUnknown || status_.link == Link::kReconnecting)
        Q_EMIT statusChanged();
}

void Session::retryNow() {
    if (jobsWatch_) jobsWatch_->retryNow();
    if (runWatch_) runWatch_->retryNow();
}

QString Session::releaseEmbedded() {
    if (daemon_) daemon_->release();
    client::Options options;
    options.target = daemon_ ? daemon_->target().toStdString() : target_;
    way_ = Way{options, status_.target, true};
    return toQt(options.target);
}

void Session::endOwn(std::function<void()> done) {
    if (!daemon_) return done();
    way_.reset();
    forgetClient();
    daemon_->stop(std::move(done));
}

void Session::stopEmbedded(std::function<void()> done) {
    if (daemon_) return endOwn(std::move(done));
    if (!client_ || !status_.embedded) return done();
    way_.reset();
    // One that was come back to is nobody's child any more; it ends when asked.
    client_->shutdown({}, here<client::Done>([this, done = std::move(done)](auto result) {
                          if (!result.ok()) Q_EMIT complained(result.failure());
                          if (result.ok()) done();
                      }));
}

}  // namespace bulkhead::ui
