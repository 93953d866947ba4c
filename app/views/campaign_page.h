// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QTimer>
#include <QWidget>

#include "app/models/rows_model.h"
#include "app/views/view.h"

class QCheckBox;
class QComboBox;
class QLabel;
class QProgressBar;
class QPushButton;
class QSpinBox;
class QTableView;

namespace bulkhead::ui {

/// The campaigns of the Faults view: choose a file, see what it would do, run it, follow its
/// verdicts, export its report. The campaign itself lives in the daemon.
class CampaignPage final : public QWidget {
    Q_OBJECT
  public:
    explicit CampaignPage(ViewContext& context, QWidget* parent = nullptr);

    /// The chosen file; its text is read on request.
    client::Result<model::CampaignText> chosen() const;
    void chooseFile(const QString& path);
    /// The run moved on.
    void refresh();
    /// Writes the selected campaign's report.
    void exportTo(const QString& path);

  private:
    QWidget* makeChoice();
    QWidget* makeProgress();
    QWidget* makeTiles();
    void addActions();
    void enableActions();
    void choiceChanged();
    bool describeChoice();
    void askPreflight();
    void askFile();
    void askExport();
    void showSelected();
    const model::CampaignView* selected() const;
    const model::CampaignView* active() const;

    ViewContext& context_;
    RowsModel campaigns_;
    RowsModel verdicts_;
    RowsModel faults_;
    QComboBox* file_;
    QSpinBox* minutes_;
    QSpinBox* seed_;
    QCheckBox* lasting_;
    QLabel* about_;
    QLabel* effect_;
    QPushButton* run_;
    QTableView* list_;
    QLabel* name_;
    QLabel* stage_;
    QProgressBar* bar_;
    QWidget* details_;
    std::vector<QLabel*> figures_;  ///< of the tiles
    QTimer preflightTimer_;
    uint64_t asked_ = 0;
    bool allowed_ = false;
    Revisions drawn_;
    int64_t drawnNs_ = 0;
    uint32_t contributors_ = 0;
};

}  // namespace bulkhead::ui
