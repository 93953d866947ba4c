// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QAbstractTableModel>
#include <deque>

#include "app/models/labels.h"

namespace bulkhead::ui {

/// The console's messages to the operator, newest first; the last kCapacity are kept.
class MessageLog final : public QAbstractTableModel {
    Q_OBJECT
  public:
    static constexpr size_t kCapacity = 500;
    enum Column { kTime, kText, kColumns };
    using QAbstractTableModel::QAbstractTableModel;

    /// `atNs` in Unix nanoseconds.
    void add(int64_t atNs, const QString& text, Tone tone);

    int rowCount(const QModelIndex& parent = {}) const override;
    int columnCount(const QModelIndex& parent = {}) const override;
    QVariant data(const QModelIndex& index, int role) const override;
    QVariant headerData(int section, Qt::Orientation orientation, int role) const override;

  private:
    struct Row {
        int64_t atNs;
        QString text;
        Tone tone;
    };
    std::deque<Row> rows_;
};

}  // namespace bulkhead::ui
