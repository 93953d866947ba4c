// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include "app/models/card_model.h"
#include "app/views/view.h"

class QLabel;
class QTableView;

namespace bulkhead::ui {

class IncidentBars;
class IncidentPanel;

/// A card for each problem that stands and for each that was: what happened, when it is over, what
/// it costs and what to do. Choosing one frames it on every page.
class IncidentsView final : public View {
    Q_OBJECT
  public:
    explicit IncidentsView(ViewContext& context, QWidget* parent = nullptr);
    QWidget* focusTarget() override;
    /// Shows the first card, which is the gravest of what is open.
    void showFirst();

  protected:
    void refresh() override;

  private:
    void addActions();
    void go(int by);
    void followFrame();
    void showCard();
    void frameCard();
    void askPreview();

    CardModel model_;
    IncidentPanel* panel_;
    IncidentBars* bars_;
    QTableView* table_;
    QLabel* count_;
    std::optional<model::Action> asked_;  ///< its preview is shown or on its way
    uint64_t asks_ = 0;
    std::vector<model::ReplicaState> there_;  ///< when it was asked
    bool selecting_ = false;                  ///< not the operator's choice
    Revisions drawn_;
};

}  // namespace bulkhead::ui
