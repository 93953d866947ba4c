// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QScrollArea>
#include <array>
#include <optional>

#include "backend/model/incident_card.h"

class QLabel;
class QPushButton;

namespace bulkhead::ui {

/// One incident card to read: what happened, the evidence for it, what goes on, when it is over,
/// what it costs, and the one thing to do, with a button and its preview.
class IncidentPanel final : public QScrollArea {
    Q_OBJECT
  public:
    explicit IncidentPanel(QWidget* parent = nullptr);

    /// Nothing: no card is selected.
    void setCard(std::optional<model::IncidentCard> card);
    /// `words` say what the recommended action would do, by the backend; empty: not asked, or none.
    void setPreview(const QString& words);
    /// Off where nobody may act: the button is there and cannot be pressed.
    void setCanAct(bool can);

  Q_SIGNALS:
    /// The operator takes the advice.
    void actionWanted(const bulkhead::model::Action& action);
    void endFaultWanted(quint64 fault);

  private:
    enum Line { kHappened, kEvidence, kNow, kBack, kCost, kAdvice, kLines };
    void say(Line line, const QString& words);
    void press();

    QLabel* title_;
    std::array<QLabel*, kLines> names_{};
    std::array<QLabel*, kLines> words_{};
    QPushButton* act_;
    QLabel* preview_;
    std::optional<model::IncidentCard> card_;
    bool canAct_ = false;
};

}  // namespace bulkhead::ui
