// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/labels.h"
#include "app/session/session.h"

/// What views ask of the daemon; session.cpp has what comes by itself.
namespace bulkhead::ui {

client::Failure Session::noClient() const {
    return {client::FailureCode::kUnreachable, tr("Not connected").toStdString(),
            tr("No daemon is attached.").toStdString(),
            tr("Start the demo, or attach to a daemon first.").toStdString(), false};
}

void Session::replayRun(const QString& run) {
    if (!client_) return;
    client_->openReplay(run.toStdString(),
                        here<std::string>([this, id = run.toStdString()](auto result) {
                            if (!result.ok()) return void(Q_EMIT complained(result.failure()));
                            replay_ = std::move(result).value();
                            run_ = id;
                            watchRun({{}, replay_});
                        }));
}

void Session::leaveReplay() {
    if (replay_.empty() || !client_) return;
    client_->closeReplay(replay_, here<client::Done>([](auto) {}));
    replay_.clear();
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
    client_->controlReplay(replay_, control, here<model::ReplayPosition>([this](auto result) {
                               if (!result.ok()) return;
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

void Session::act(const model::Action& action, uint64_t revision, Answer<model::JobInfo> answer) {
    if (!client_ || !status_.job) return answer(noClient());
    client_->act(status_.job->id, action, {{}, revision}, here<model::JobInfo>(std::move(answer)));
}

void Session::inject(const model::FaultSpec& fault, uint64_t revision, Answer<uint64_t> answer) {
    if (!client_ || !status_.job) return answer(noClient());
    client_->inject(status_.job->id, fault, {{}, revision}, here<uint64_t>(std::move(answer)));
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

}  // namespace bulkhead::ui
