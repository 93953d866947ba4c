// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QDialog>

#include "backend/client/job_source.h"

class QComboBox;
class QFormLayout;
class QLineEdit;
class QPlainTextEdit;
class QSpinBox;

namespace bulkhead::ui {

/// A job as it shall start: a file, what is different from it, and on which daemon.
class JobDialog final : public QDialog {
    Q_OBJECT
  public:
    /// `attached`: a daemon is there that takes jobs.
    JobDialog(bool attached, QWidget* parent);

    void setFile(const QString& path);
    /// Id of a run, or a checkpoint manifest.
    void setResume(const QString& from);

    bool onOwnDaemon() const;
    client::JobSource source() const;
    uint32_t nodes() const;
    QString runFile() const;

  private:
    QLineEdit* addLine(const QString& words, const QString& placeholder);
    void addBrowsed(QLineEdit* line, const QString& words, bool folder, const QString& filter);

    QFormLayout* form_;
    QComboBox* where_;
    QLineEdit* file_;
    QLineEdit* name_;
    QLineEdit* replicas_;
    QLineEdit* shards_;
    QLineEdit* steps_;
    QLineEdit* seed_;
    QLineEdit* data_;
    QLineEdit* resume_;
    QPlainTextEdit* faults_;
    QPlainTextEdit* settings_;
    QSpinBox* nodes_;
    QLineEdit* runFile_;
};

}  // namespace bulkhead::ui
