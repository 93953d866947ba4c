// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QDialog>

#include "backend/client/client.h"

class QComboBox;
class QLineEdit;
class QSpinBox;

namespace bulkhead::ui {

/// Asks for the part of a run to export, and for the file.
class ExportDialog final : public QDialog {
    Q_OBJECT
  public:
    ExportDialog(const QString& run, QWidget* parent);
    client::ExportRequest request() const;
    QString path() const;

  private:
    void suggestName();

    QString run_;
    QComboBox* what_;
    QSpinBox* from_;
    QSpinBox* to_;
    QLineEdit* path_;
};

}  // namespace bulkhead::ui
