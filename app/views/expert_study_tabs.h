// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QTabWidget>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "app/models/expert_study.h"
#include "app/session/background.h"

class QComboBox;
class QLabel;
class QTableView;

namespace bulkhead::ui {

class ScatterChart;

/// Shows figures of routing beyond loads, a tab for each, behind a first one that is handed in: of
/// the running job, or of a recording that was opened.
class ExpertStudyTabs final : public QTabWidget {
    Q_OBJECT
  public:
    ExpertStudyTabs(QWidget* first, const QString& name, QWidget* parent = nullptr);

    /// Shown unless a recording is open.
    void setLive(const model::RunState& state);
    /// Reads and studies it off this thread.
    void openRecording(const QString& path);
    void closeRecording();
    bool hasRecording() const { return recording_.has_value(); }
    /// Null while none is open.
    const ExpertStudy* recording() const { return recording_ ? &*recording_ : nullptr; }

  Q_SIGNALS:
    /// Opened, closed or refused: why, in the last case.
    void recordingChanged(const QString& refusal);

  private:
    QWidget* makeDistances();
    QWidget* makeTogether();
    QWidget* makePhases();
    void present(const ExpertStudy& study);
    void showDistances();
    void showLayer();

    Background background_;
    uint64_t asked_ = 0;
    ExpertStudy shown_;
    std::optional<ExpertStudy> recording_;
    std::unique_ptr<RowsModel> distances_;  ///< one column for each domain
    QStringList distanceTitles_;
    RowsModel together_, phases_;
    QLabel* distanceWords_;
    QLabel* togetherWords_;
    QLabel* phaseWords_;
    QTableView* distanceTable_;
    QComboBox* layer_;
    ScatterChart* chart_;
    QTableView* phaseTable_;
    QWidget* phaseBody_;
};

}  // namespace bulkhead::ui
