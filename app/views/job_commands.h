// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QObject>

#include "app/session/session.h"
#include "app/widgets/confirm.h"

namespace bulkhead::ui {

/// So long must an order that is being put together stay as it is before the backend is asked.
inline constexpr int kPreflightDelayMs = 200;
/// A file that could not be read may be repaired.
inline constexpr int kReadAgainMs = 1000;

/// The way every action and fault takes: ask the backend what it would do, tell the operator and
/// ask, then do it on the revision that was looked at. What goes wrong is said through failed().
class JobCommands final : public QObject {
    Q_OBJECT
  public:
    JobCommands(Session& session, Confirmer& confirmer, QWidget* window);

    /// `figures` are shown beside the backend's own when it asks.
    void act(const model::Action& action, const std::vector<ConfirmRequest::Figure>& figures = {});
    /// At once, without a question: for what takes nothing from the job and moves nothing.
    void actNow(const model::Action& action);
    void inject(const model::FaultSpec& fault);
    void endFault(uint64_t fault);
    void runCampaign(const model::CampaignText& campaign);
    /// At once, without a question: it takes nothing from the job.
    void stopCampaign(uint64_t campaign);
    /// Says something on behalf of a view.
    void tell(const QString& words) { Q_EMIT succeeded(words); }
    void complain(const client::Failure& failure) { Q_EMIT failed(failure); }

    /// The question before an action with this preview.
    static ConfirmRequest requestFor(const model::Preflight& preflight, const QString& sentence,
                                     bool destructive);

  Q_SIGNALS:
    void succeeded(const QString& words);
    void failed(const bulkhead::client::Failure& failure);

  private:
    void send(const model::Action& action, const QString& sentence, uint64_t revision);
    template <class Command, class Go>
    void run(const Command& command, const QString& sentence, bool destructive,
             const std::vector<ConfirmRequest::Figure>& figures, Go go);

    Session& session_;
    Confirmer& confirmer_;
    QWidget* window_;
};

}  // namespace bulkhead::ui
