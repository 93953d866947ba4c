// SPDX-License-Identifier: GPL-3.0-only
#include "app/views/job_commands.h"

#include "app/models/labels.h"
#include "app/models/units.h"
#include "backend/model/command_text.h"

namespace bulkhead::ui {
namespace {

/// Pausing and the like can be taken back at once; they are asked for, but not in red.
bool isDestructive(model::ActionKind kind) {
    using enum model::ActionKind;
    return kind == kDrain || kind == kRestartReplica || kind == kStop || kind == kStopNow ||
           kind == kHoldRejoin || kind == kCordon || kind == kSetPolicy;
}

}  // namespace

JobCommands::JobCommands(Session& session, Confirmer& confirmer, QWidget* window)
    : QObject(window), session_(session), confirmer_(confirmer), window_(window) {}

ConfirmRequest JobCommands::requestFor(const model::Preflight& p, const QString& sentence,
                                       bool destructive) {
    ConfirmRequest request;
    request.title = (p.title.empty() ? sentence : toQt(p.title)) + u'?';
    request.effect = toQt(p.effect);
    request.figures = {
        {tr("Contributors"), QString::number(p.contributorsBefore),
         QString::number(p.contributorsAfter)},
        {tr("Samples a step"), formatCount(p.samplesBefore), formatCount(p.samplesAfter)},
        {tr("Learning rate factor"), formatNumber(p.lrFactorBefore, 3),
         formatNumber(p.lrFactorAfter, 3)}};
    if (p.pauses)
        request.warning =
            tr("Fewer replicas than the policy min_replicas would remain: the job "
               "waits until one comes back.");
    request.choices = {sentence.size() > 36 ? tr("Apply") : sentence};
    request.destructive = destructive;
    return request;
}

template <class Command, class Go>
void JobCommands::run(const Command& command, const QString& sentence, bool destructive,
                      const std::vector<ConfirmRequest::Figure>& figures, Go go) {
    session_.preflight(command, [this, sentence, destructive, figures,
                                 go](client::Result<model::Preflight> result) {
        if (!result.ok()) return void(Q_EMIT failed(result.failure()));
        const model::Preflight preflight = result.value();
        if (!preflight.allowed)
            return void(Q_EMIT failed({client::FailureCode::kRefused,
                                       sentence.toStdString(),
                                       preflight.refusal,
                                       {},
                                       false}));
        ConfirmRequest request = requestFor(preflight, sentence, destructive);
        request.figures.insert(request.figures.begin(), figures.begin(), figures.end());
        confirmer_.ask(window_, request, [go, preflight](int choice) {
            if (choice == 0) go(preflight.revision);
        });
    });
}

void JobCommands::act(const model::Action& action,
                      const std::vector<ConfirmRequest::Figure>& figures) {
    const QString sentence = toQt(model::describe(action));
    run(action, sentence, isDestructive(action.kind), figures,
        [this, action, sentence](uint64_t revision) { send(action, sentence, revision); });
}

void JobCommands::actNow(const model::Action& action) {
    send(action, toQt(model::describe(action)), 0);
}

void JobCommands::send(const model::Action& action, const QString& sentence, uint64_t revision) {
    session_.act(action, revision, [this, sentence](client::Result<model::JobInfo> result) {
        if (result.ok())
            Q_EMIT succeeded(tr("%1: accepted").arg(sentence));
        else
            Q_EMIT failed(result.failure());
    });
}

void JobCommands::inject(const model::FaultSpec& fault) {
    const QString sentence = toQt(model::describe(fault));
    run(fault, sentence, true, {}, [this, fault, sentence](uint64_t revision) {
        session_.inject(fault, revision, [this, sentence](client::Result<uint64_t> result) {
            if (result.ok())
                Q_EMIT succeeded(tr("Fault #%1: %2").arg(result.value()).arg(sentence));
            else
                Q_EMIT failed(result.failure());
        });
    });
}

void JobCommands::runCampaign(const model::CampaignText& campaign) {
    session_.preflight(campaign, [this, campaign](client::Result<model::CampaignPreflight> result) {
        if (!result.ok()) return void(Q_EMIT failed(result.failure()));
        const model::Preflight& p = result.value().preflight;
        if (!p.allowed)
            return void(Q_EMIT failed(
                client::localFailure(client::FailureCode::kRefused, p.title, p.refusal)));
        ConfirmRequest request = requestFor(p, tr("Run the campaign"), true);
        if (campaign.allowLasting) request.warning = tr("You allowed what cannot be undone.");
        confirmer_.ask(window_, request, [this, campaign, revision = p.revision](int choice) {
            if (choice != 0) return;
            session_.startCampaign(campaign, revision, [this](client::Result<uint64_t> started) {
                if (started.ok())
                    Q_EMIT succeeded(tr("Campaign #%1 has begun").arg(started.value()));
                else
                    Q_EMIT failed(started.failure());
            });
        });
    });
}

void JobCommands::stopCampaign(uint64_t campaign) {
    session_.stopCampaign(campaign, [this, campaign](client::Result<client::Done> result) {
        if (result.ok())
            Q_EMIT succeeded(tr("Campaign #%1 is stopped, its faults are ended").arg(campaign));
        else
            Q_EMIT failed(result.failure());
    });
}

void JobCommands::endFault(uint64_t fault) {
    session_.endFault(fault, [this, fault](client::Result<client::Done> result) {
        if (result.ok())
            Q_EMIT succeeded(tr("Fault #%1 ends").arg(fault));
        else
            Q_EMIT failed(result.failure());
    });
}

}  // namespace bulkhead::ui
