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
    for (const std::string& part : {failure.cause, failure.remedy}) {
        QString sentence = toQt(part).trimmed();
        if (sentence.isEmpty()) continue;
        if (!sentence.endsWith(u'.') && !sentence.endsWith(u'?')) sentence += u'.';
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
    forgetClient();
    daemon_.reset();
    pendingJob_.reset();
    returning_ = false;
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
    open(std::move(options), tr("demo"));
}

void Session::openRunFile(const QString& path, Leave leave) {
    const QString name = QFileInfo(path).fileName();
    if (!isOpen()) {
        close();
        status_.link = Link::kStarting;
        status_.target = name;
    }
    if (reader_) abandonReader();
    reader_ = std::make_unique<DaemonHost>();
    beginOpening(name);
    connect(reader_.get(), &DaemonHost::failed, this, [this](const client::Failure& failure) {
        status_.opening.reset();
        Q_EMIT statusChanged();
        if (isOpen()) return void(Q_EMIT complained(failure));
        status_.link = Link::kFailed;
        status_.failure = failure;
        Q_EMIT statusChanged();
    });
    connect(reader_.get(), &DaemonHost::ready, this, [this, name, leave](const QString& target) {
        leave(
            [this, name, target] {
                if (!reader_) return;  // it was cancelled meanwhile
                close();
                daemon_ = std::move(reader_);
                status_.offline = true;
                beginOpening(name);
                client::Options way;
                way.target = target.toStdString();
                open(std::move(way), name);
            },
            [this] {
                reader_.reset();
                status_.opening.reset();
                Q_EMIT statusChanged();
            });
    });
    client::PrivateDaemonOptions options;
    options.runFile = QFileInfo(path).absoluteFilePath().toStdString();
    options.readOnly = true;
    reader_->start(std::move(options));
    Q_EMIT statusChanged();
}

void Session::beginOpening(const QString& name) {
    ++openings_;
    held_.reset();
    openedSeq_.reset();
    status_.opening = SessionStatus::Opening{name, std::nullopt};
}

/// Starting a daemon blocks its thread: one that nobody wants any more ends when it has started.
void Session::abandonReader() {
    DaemonHost* host = reader_.release();
    host->disconnect(this);
    connect(host, &DaemonHost::ready, host, &QObject::deleteLater);
    connect(host, &DaemonHost::failed, host, &QObject::deleteLater);
}

void Session::cancelOpening() {
    if (!status_.opening) return;
    ++openings_;
    status_.opening.reset();
    held_.reset();
    if (reader_) {
        abandonReader();
        if (!isOpen()) close();
    } else {
        leaveReplay();
    }
    Q_EMIT statusChanged();
}

void Session::showOpened() {
    if (!status_.opening || !held_ || !openedSeq_ || held_->seq < *openedSeq_) return;
    status_.opening.reset();
    feed_.reset(*std::exchange(held_, nullptr));
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
    Q_EMIT complained(
        {client::FailureCode::kRefused, tr("%1 goes on").arg(toQt(job.id)).toStdString(),
         tr("Recovered at step %1; no new job was started").arg(job.step).toStdString(),
         tr("Name another run file for a new job.").toStdString(), false});
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

void Session::attach(const QString& target, const QString& tokenFile, const QString& certs) {
    close();
    client::Options options;
    options.target = target.toStdString();
    options.tokenFile = tokenFile.toStdString();
    options.certs = certs.toStdString();
    status_.link = Link::kConnecting;
    open(std::move(options), target);
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
    Q_EMIT statusChanged();
}

void Session::deliverSoon() {
    if (deliverTimer_.isActive()) return;
    const auto since = steady_clock::now() - lastDelivery_;
    if (since >= kFrame) return deliver();
    deliverTimer_.start(std::chrono::duration_cast<std::chrono::milliseconds>(kFrame - since));
}

void Session::deliver() {
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
    if (status_.opening) {
        if (delivery.snapshot) held_ = delivery.snapshot;
        if (delivery.position) status_.opening->share = delivery.position->loading;
        showOpened();
    } else {
        if (delivery.snapshot) feed_.reset(*delivery.snapshot);
        feed_.apply(delivery.events);
    }
    if (delivery.position || delivery.lost || back) Q_EMIT statusChanged();
}

void Session::showNewestRun() {
    listRuns({}, [this](client::Result<std::vector<model::RunInfo>> runs) {
        if (runs.ok() && !runs.value().empty()) return replayRun(toQt(runs.value().front().id));
        status_.opening.reset();
        if (!runs.ok()) Q_EMIT complained(runs.failure());
        Q_EMIT statusChanged();
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
    return daemon_ ? daemon_->target() : toQt(target_);
}

void Session::endOwn(std::function<void()> done) {
    if (!daemon_) return done();
    forgetClient();
    daemon_->stop(std::move(done));
}

void Session::stopEmbedded(std::function<void()> done) {
    if (daemon_) return endOwn(std::move(done));
    if (!client_ || !status_.embedded) return done();
    // One that was come back to is nobody's child any more; it ends when asked.
    client_->shutdown({}, here<client::Done>([this, done = std::move(done)](auto result) {
                          if (!result.ok()) Q_EMIT complained(result.failure());
                          if (result.ok()) done();
                      }));
}

}  // namespace bulkhead::ui
