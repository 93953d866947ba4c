// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QTimer>

#include "app/models/event_log_model.h"
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

    EventLogModel model_;
    EventFilter filter_;
    QTableView* table_;
    QLineEdit* text_;
    QComboBox* severity_;
    QComboBox* replica_;
    QLabel* count_;
    QTimer debounce_;
    bool movingCursor_ = false;
    bool atEnd_ = true;
};

}  // namespace bulkhead::ui
