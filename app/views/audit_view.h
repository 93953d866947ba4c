// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QTimer>
#include <optional>

#include "app/models/audit_model.h"
#include "app/views/view.h"

class QComboBox;
class QLabel;
class QLineEdit;
class QTableView;

namespace bulkhead::ui {

/// Shows administrators who asked the daemon for what, newest first. Others read which role they
/// need.
class AuditView final : public View {
    Q_OBJECT
  public:
    explicit AuditView(ViewContext& context, QWidget* parent = nullptr);
    QWidget* focusTarget() override;
    void raised() override;
    int shownRows() const { return filter_.rowCount(); }

  protected:
    void refresh() override;
    bool isOfNow() const override { return false; }
    bool isOfRun() const override { return false; }
    bool hasContent() const override { return model_.rowCount() > 0; }
    QString emptyText() const override;

  private:
    void addControls();
    bool mayRead() const;
    void noteDaemon();
    void fetch();
    void take(client::Result<model::AuditPage> page);
    void check();
    void countRows();

    AuditModel model_;
    AuditFilter filter_;
    QTableView* table_;
    QLineEdit* text_;
    QComboBox* least_;
    QLabel* count_;
    QTimer fetchTimer_;
    QTimer debounce_;
    QString daemon_;      ///< that the audit belongs to
    uint64_t total_ = 0;  ///< entries of it
    std::optional<client::Failure> failure_;
};

}  // namespace bulkhead::ui
