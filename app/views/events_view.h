// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QTimer>

#include "app/models/event_log_model.h"
#include "app/session/event_history.h"
#include "app/views/view.h"

class QComboBox;
class QLabel;
class QLineEdit;
class QTableView;

namespace bulkhead::ui {

/// The log, filtered; selecting a line moves the time cursor, and the cursor selects a line.
class EventsView final : public View {
    Q_OBJECT
  public:
    explicit EventsView(ViewContext& context, QWidget* parent = nullptr);
    QWidget* focusTarget() override;
    int shownRows() const { return filter_.rowCount(); }

  protected:
    void refresh() override;

  private:
    void addControls();
    void followCursor();
    void countRows();
    /// Reads what history has from before the snapshot.
    void beginHistory();
    void takeHistory(const std::vector<model::Event>& events);
    /// Says how much the log lacks at its beginning; empty: nothing.
    QString missingWords() const;

    EventLogModel model_;
    EventHistory history_;
    EventFilter filter_;
    QTableView* table_;
    QLineEdit* text_;
    QComboBox* severity_;
    QComboBox* replica_;
    QLabel* count_;
    QTimer debounce_;
    bool movingCursor_ = false;
    bool atEnd_ = true;
    bool fresh_ = true;         ///< since a snapshot, nothing was read from history
    uint64_t snapshotSeq_ = 0;  ///< older events come from history
};

}  // namespace bulkhead::ui
