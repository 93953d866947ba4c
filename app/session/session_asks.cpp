// SPDX-License-Identifier: GPL-3.0-only
#include <QSaveFile>

#include "app/models/labels.h"
#include "app/session/session.h"

/// Requests of the views to the daemon; session.cpp handles updates.
namespace bulkhead::ui {

client::Failure Session::noClient() const {
    return {client::FailureCode::kUnreachable, tr("Not connected").toStdString(),
            tr("No daemon is attached.").toStdString(),
            tr("Start the demo, or attach to a daemon first.").toStdString(), false};
}

void Session::replayRun(const QString& run) {
    if (!client_) return;
    endOpening();
    status_.opening = SessionStatus::Opening{run, std::nullopt};
    runOpening_ = std::make_unique<RunOpening>(
        client_, run.toStdString(),
        RunOpening::Told{[this](std::optional<double> share) { setProgress(share); },
                         [this](RunOpening::Opened opened) {
                             endOpening();
                             showReplay(std::move(opened));
                             Q_EMIT statusChanged();
                         },
                         [this](const client::Failure& failure) {
                             cancelOpening();
                             Q_EMIT complained(failure);
                         }});
    Q_EMIT statusChanged();
}

void Session::showReplay(RunOpening::Opened run) {
    closeShownReplay();
    replay_ = std::move(run.replay);
    run_ = std::move(run.run);
    watchRun({{}, replay_});
    status_.position = run.position;
    feed_.reset(*run.state);
}

void Session::closeShownReplay() {
    if (replay_.empty()) return;
    client_->closeReplay(replay_, here<client::Done>([](auto) {}));
    replay_.clear();
}

void Session::leaveReplay() {
    if (before_) return goBack();
    if (replay_.empty() || !client_) return;
    closeShownReplay();
    runWatch_.reset();
    runBox_.reset();
    status_.replay = false;
    status_.position.reset();
    feed_.clear();
    if (status_.job) watchJob(*status_.job);
    Q_EMIT statusChanged();
}

void Session::controlReplay(const model::ReplayControl& control) {
    if (replay_.empty() || !client_) return;
    if (control.seekStep || control.seekTimeNs) moving_ = true;
    client_->controlReplay(replay_, control, here<model::ReplayPosition>([this](auto result) {
                               if (!result.ok()) {
                                   // A move that a later one took the place of is no news.
                                   if (result.failure().code != client::FailureCode::kStale)
                                       Q_EMIT complained(result.failure());
                                   return;
                               }
                               status_.position = result.value();
                               Q_EMIT statusChanged();
                           }));
}

void Session::preflight(const model::Action& action, Answer<model::Preflight> answer) {
    if (!client_ || !status_.job) return answer(noClient());
    client_->preflight(status_.job->id, action, here<model::Preflight>(std::move(answer)));
}

void Session::preflight(const model::FaultSpec& fault, Answer<model::Preflight> answer) {
    if (!client_ || !status_.job) return answer(noClient());
    client_->preflight(status_.job->id, fault, here<model::Preflight>(std::move(answer)));
}

void Session::preflight(const model::CampaignText& campaign,
                        Answer<model::CampaignPreflight> answer) {
    if (!client_ || !status_.job) return answer(noClient());
    client_->preflight(status_.job->id, campaign,
                       here<model::CampaignPreflight>(std::move(answer)));
}

void Session::startCampaign(const model::CampaignText& campaign, uint64_t revision,
                            Answer<uint64_t> answer) {
    if (!client_ || !status_.job) return answer(noClient());
    client_->startCampaign(status_.job->id, campaign, {{}, revision},
                           here<uint64_t>(std::move(answer)));
}

void Session::stopCampaign(uint64_t campaign, Answer<client::Done> answer) {
    if (!client_ || !status_.job) return answer(noClient());
    client_->stopCampaign(status_.job->id, campaign, {}, here<client::Done>(std::move(answer)));
}

void Session::act(const model::Action& action, uint64_t revision, Answer<model::JobInfo> answer) {
    if (!client_ || !status_.job) return answer(noClient());
    client_->act(status_.job->id, action, {{}, revision}, here<model::JobInfo>(std::move(answer)));
}

void Session::inject(const model::FaultSpec& fault, uint64_t revision, Answer<uint64_t> answer) {
    if (!client_ || !status_.job) return answer(noClient());
    client_->inject(status_.job->id, fault, {{}, revision}, here<uint64_t>(std::move(answer)));
}

void Session::readEvents(model::EventQuery query, Answer<model::EventPage> answer) {
    if (!client_ || run_.empty()) return answer(noClient());
    query.run = run_;
    client_->readEvents(std::move(query), here<model::EventPage>(std::move(answer)));
}

void Session::listRuns(const QString& text, Answer<std::vector<model::RunInfo>> answer) {
    if (!client_) return answer(noClient());
    client_->listRuns(text.toStdString(), here<std::vector<model::RunInfo>>(std::move(answer)));
}

void Session::endFault(uint64_t fault, Answer<client::Done> answer) {
    if (!client_ || !status_.job) return answer(noClient());
    client_->endFault(status_.job->id, fault, {}, here<client::Done>(std::move(answer)));
}

void Session::loadRun(const QString& run, Answer<client::StatePtr> answer) {
    if (!client_) return answer(noClient());
    client_->getState(run.toStdString(), 0, here<client::StatePtr>(std::move(answer)));
}

void Session::startJob(const client::JobSource& job) {
    if (!client_) return void(Q_EMIT complained(noClient()));
    auto text = client::readJob(job);
    if (!text.ok()) return void(Q_EMIT complained(text.failure()));
    show(std::move(text).value());
}

void Session::selectJob(const QString& id) {
    for (const model::JobInfo& job : status_.jobs)
        if (toQt(job.id) == id) {
            leaveReplay();
            feed_.clear();
            return watchJob(job);
        }
}

void Session::exportRun(const client::ExportRequest& request, const QString& path,
                        Answer<client::Done> answer) {
    if (!client_) return answer(noClient());
    // Pieces come on a thread of the client, one at a time, and all before the reply.
    const auto file = std::make_shared<QSaveFile>(path);
    const auto unwritable = [file, path] {
        return client::Failure{client::FailureCode::kInvalid,
                               tr("Cannot write the export").toStdString(),
                               tr("%1: %2").arg(path, file->errorString()).toStdString(),
                               tr("Choose another place.").toStdString(), false};
    };
    if (!file->open(QIODevice::WriteOnly)) return answer(unwritable());
    client_->exportRun(
        request,
        [file](std::string piece) { file->write(piece.data(), static_cast<qint64>(piece.size())); },
        here<client::Done>([file, unwritable, answer = std::move(answer)](auto result) {
            if (result.ok() && !file->commit()) return answer(unwritable());
            answer(std::move(result));
        }));
}

void Session::checkLedger(const QString& run, Answer<model::LedgerReport> answer) {
    if (!client_) return answer(noClient());
    client_->checkLedger(run.toStdString(), here<model::LedgerReport>(std::move(answer)));
}

void Session::readAudit(const model::AuditQuery& query, Answer<model::AuditPage> answer) {
    if (!client_) return answer(noClient());
    client_->readAudit(query, here<model::AuditPage>(std::move(answer)));
}

}  // namespace bulkhead::ui
