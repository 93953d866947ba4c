// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QAbstractTableModel>
#include <QSortFilterProxyModel>
#include <deque>
#include <vector>

#include "app/models/labels.h"
#include "backend/model/listing.h"

namespace bulkhead::ui {

/// Lists what a daemon was asked for and what came of it: the newest kCapacity entries, newest
/// first.
class AuditModel final : public QAbstractTableModel {
    Q_OBJECT
  public:
    static constexpr size_t kCapacity = 10'000;
    enum Column { kTime, kResult, kWho, kFrom, kCall, kJob, kRevision, kEffect, kColumns };
    enum class Result {
        kDone,
        kFailed,   ///< the caller may, and it could not be done
        kRefused,  ///< the caller may not, or is nobody known
    };
    using QAbstractTableModel::QAbstractTableModel;

    static Result resultOf(const model::AuditEntry& entry);

    /// Entries in any order; those already there, or older than those, are left out.
    void add(std::vector<model::AuditEntry> entries);
    void clear();
    /// Number of the newest entry; 0: there is none.
    uint64_t newest() const { return rows_.empty() ? 0 : rows_.front().seq; }

    int rowCount(const QModelIndex& parent = {}) const override;
    int columnCount(const QModelIndex& parent = {}) const override;
    QVariant data(const QModelIndex& index, int role) const override;
    QVariant headerData(int section, Qt::Orientation orientation, int role) const override;

  private:
    std::deque<model::AuditEntry> rows_;
};

/// Result and text, both of which must hold.
class AuditFilter final : public QSortFilterProxyModel {
    Q_OBJECT
  public:
    using QSortFilterProxyModel::QSortFilterProxyModel;
    void setLeast(AuditModel::Result result);
    /// In any column or the request.
    void setText(const QString& text);

  protected:
    bool filterAcceptsRow(int row, const QModelIndex& parent) const override;

  private:
    AuditModel::Result least_ = AuditModel::Result::kDone;
    QString text_;
};

}  // namespace bulkhead::ui
