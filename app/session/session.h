// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QObject>
#include <QTimer>
#include <functional>
#include <memory>
#include <vector>

#include "app/models/run_feed.h"
#include "app/session/daemon_host.h"
#include "app/session/mailbox.h"
#include "app/session/run_opening.h"
#include "app/session/status.h"
#include "backend/client/client.h"
#include "backend/client/job_source.h"

namespace bulkhead::ui {

/// The console's one bridge to a daemon. Whatever client threads bring arrives here through
/// mailboxes, at most ten times a second, and goes on to the RunFeed; whatever views ask goes out
/// here and is answered on the GUI thread. Thread: the GUI's.
class Session final : public QObject {
    Q_OBJECT
  public:
    using OpenClient = ui::OpenClient;
    template <class T>
    using Answer = std::function<void(client::Result<T>)>;

    Session(RunFeed& feed, OpenClient openClient, QObject* parent = nullptr);
    ~Session() override;

    const SessionStatus& status() const { return status_; }

    /// Starts a private daemon of `nodes` nodes with a job, the demo by default. `runFile` is the
    /// history it writes; empty: the console's own.
    void startEmbedded(const client::JobSource& job = {}, uint32_t nodes = 1,
                       const QString& runFile = {});
    /// Comes back to an embedded job that was told to go on; if it is gone, the demo starts.
    void returnTo(const QString& target);
    /// Starts a job on the daemon that is attached, and shows it.
    void startJob(const client::JobSource& job);
    /// Shows another job of the daemon.
    void selectJob(const QString& id);
    /// Lets go of what is open and calls the first, or calls the second when it is to stay.
    using Leave = std::function<void(std::function<void()>, std::function<void()>)>;
    static void justLeave(const std::function<void()>& go, const std::function<void()>&) { go(); }
    /// "unix:/path" or "host:port". A run on screen stays until somebody has answered there and
    /// `leave` let go of it; what went wrong is complained of.
    void attach(const QString& target, const QString& tokenFile = {}, const QString& certs = {},
                const Leave& leave = justLeave);
    /// A run file, through a private daemon that only reads it. What is open stays until the
    /// newest run is there in full and `leave` let go of it; a file that cannot be read is
    /// complained of.
    void openRunFile(const QString& path, Leave leave);
    /// False when this job cannot be read; complains then.
    bool canRead(const client::JobSource& job);
    /// Lets go of everything; an embedded job ends with a checkpoint unless released.
    void close();
    void retryNow();

    /// The embedded job goes on without the console. Returns where it can be attached to.
    QString releaseEmbedded();
    /// Ends the daemon that this console started and did not release, if there is one; `done` then.
    void endOwn(std::function<void()> done);
    /// Ends the embedded daemon, its job after a checkpoint; `done` when it is gone.
    void stopEmbedded(std::function<void()> done);

    /// Shows a run of the history as a replay, paused at its end, as soon as it is read that far:
    /// SessionStatus::opening until then, and what is on screen stays.
    void replayRun(const QString& run);
    /// Gives up the run or run file that is being read.
    void cancelOpening();
    /// Back to the live job of this daemon, or to SessionStatus::wayBack.
    void leaveReplay();
    void controlReplay(const model::ReplayControl& control);

    void preflight(const model::Action& action, Answer<model::Preflight> answer);
    void preflight(const model::FaultSpec& fault, Answer<model::Preflight> answer);
    void preflight(const model::CampaignText& campaign, Answer<model::CampaignPreflight> answer);
    void startCampaign(const model::CampaignText& campaign, uint64_t revision,
                       Answer<uint64_t> answer);
    void stopCampaign(uint64_t campaign, Answer<client::Done> answer);
    void act(const model::Action& action, uint64_t revision, Answer<model::JobInfo> answer);
    void inject(const model::FaultSpec& fault, uint64_t revision, Answer<uint64_t> answer);
    /// Ends a fault that lasts.
    void endFault(uint64_t fault, Answer<client::Done> answer);
    /// Events of the run on screen; `query.run` is set here.
    void readEvents(model::EventQuery query, Answer<model::EventPage> answer);
    void listRuns(const QString& text, Answer<std::vector<model::RunInfo>> answer);
    /// The whole run folded, as it was at its end: for comparing.
    void loadRun(const QString& run, Answer<client::StatePtr> answer);
    /// Writes a run's ledger or events to a file; what is there already is replaced.
    void exportRun(const client::ExportRequest& request, const QString& path,
                   Answer<client::Done> answer);
    void checkLedger(const QString& run, Answer<model::LedgerReport> answer);
    void readAudit(const model::AuditQuery& query, Answer<model::AuditPage> answer);

  Q_SIGNALS:
    void statusChanged();
    /// Something that the operator should know, and nothing bad.
    void noticed(const QString& words);
    /// Something asked for could not be done; the connection stands.
    void complained(const bulkhead::client::Failure& failure);
    /// The daemon's list of runs may have changed.
    void runsChanged();

  private:
    void open(client::Options options, const QString& words);
    void switchTo(const client::Options& options, const QString& target);
    bool isOpen() const { return client_ != nullptr || daemon_ != nullptr; }
    void forgetClient();
    void deliverSoon();
    void deliver();
    void takeJobs(Delivery delivery);
    void takeRun(Delivery delivery);
    void watchJob(const model::JobInfo& job);
    void watchRun(client::WatchTarget target);
    void startPendingJob();
    void keepInsteadOfPending(const model::JobInfo& job);
    void show(client::JobText text);
    void showNewestRun();
    void watchJobs();
    void endOpening();
    void setProgress(std::optional<double> share);
    void adopt(FileOpening::Opened file, const QString& name);
    void showReplay(RunOpening::Opened run);
    void closeShownReplay();
    void goBack();
    void lose();
    void judgeLink();
    void checkSilence();
    void host(client::PrivateDaemonOptions options);
    /// The caller's answer, moved to the GUI thread, dropped when the client is another by then.
    template <class T>
    client::Reply<T> here(Answer<T> answer);
    client::Failure noClient() const;

    RunFeed& feed_;
    OpenClient openClient_;
    /// Of the daemon to attach to, which has not answered or is not let in yet.
    std::shared_ptr<client::Client> candidate_;
    SessionStatus status_;
    std::unique_ptr<DaemonHost> daemon_;
    /// Started as soon as the private daemon answers.
    std::optional<client::JobText> pendingJob_;
    /// While it is not known whether the job to come back to is still there.
    bool returning_ = false;
    /// Declared before the watches: these go first.
    std::shared_ptr<client::Client> client_;
    std::unique_ptr<RunOpening> runOpening_;    ///< of a run of the daemon that is open
    std::unique_ptr<FileOpening> fileOpening_;  ///< of a run file
    std::shared_ptr<Mailbox> jobsBox_;
    std::shared_ptr<Mailbox> runBox_;
    std::unique_ptr<client::Watch> jobsWatch_;
    std::unique_ptr<client::Watch> runWatch_;
    client::WatchTarget watched_;
    std::string target_;  ///< address of what is open
    std::string run_;     ///< id of the run on screen, for its history
    std::string replay_;  ///< id of the open replay
    /// How to come to a live session again. A private daemon has one once it was told to go on.
    struct Way {
        client::Options options;
        QString words;
        bool embedded = false;
    };
    std::optional<Way> way_;     ///< to what is open
    std::optional<Way> before_;  ///< to what was left for the run file that is open
    uint64_t generation_ = 0;
    QTimer deliverTimer_;
    QTimer silenceTimer_;
    client::SteadyTime lastDelivery_;
    bool moving_ = false;          ///< within a replay, as asked: what comes of it is shown at once
    client::SteadyTime lastWord_;  ///< on the run that is watched
    bool connected_ = false;       ///< the daemon has answered
    /// State of each watch; empty while it is connected.
    std::optional<Delivery::Lost> jobsLost_;
    std::optional<Delivery::Lost> runLost_;
};

template <class T>
client::Reply<T> Session::here(Answer<T> answer) {
    return [this, generation = generation_, answer = std::move(answer)](client::Result<T> result) {
        auto shared = std::make_shared<client::Result<T>>(std::move(result));
        QMetaObject::invokeMethod(
            this,
            [this, generation, answer, shared] {
                if (generation == generation_) answer(std::move(*shared));
            },
            Qt::QueuedConnection);
    };
}

}  // namespace bulkhead::ui
