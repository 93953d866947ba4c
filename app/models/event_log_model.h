// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QAbstractTableModel>
#include <QSortFilterProxyModel>
#include <QStringList>
#include <deque>

#include "app/models/event_text.h"
#include "app/models/run_feed.h"

namespace bulkhead::ui {

/// The newest kCapacity events of the run on screen, oldest first, gauges left out.
class EventLogModel final : public QAbstractTableModel {
    Q_OBJECT
  public:
    static constexpr size_t kCapacity = 100'000;
    enum Column { kTime, kSeverity, kKind, kSubject, kText, kColumns };

    explicit EventLogModel(RunFeed& feed, QObject* parent = nullptr);

    /// Events from before those shown, oldest first, as history gives them; those already shown
    /// are left out, and so are routine ones below a warning unless `withRoutine`. False: the log
    /// is full, so that some of the oldest were left out.
    bool prepend(const std::vector<model::Event>& events, bool withRoutine = true);
    void append(const std::vector<model::Event>& events);
    void clear();
    /// Takes out the events up to `seq`.
    void dropUntil(uint64_t seq);
    /// Last row at or before `timeNs`, -1 if all are later.
    int rowAt(int64_t timeNs) const;
    /// Time of the oldest event that is shown; 0: none.
    int64_t firstNs() const { return rows_.empty() ? 0 : rows_.front().timeNs; }

    int rowCount(const QModelIndex& parent = {}) const override;
    int columnCount(const QModelIndex& parent = {}) const override;
    QVariant data(const QModelIndex& index, int role) const override;
    QVariant headerData(int section, Qt::Orientation orientation, int role) const override;

  private:
    struct Row {
        uint64_t seq;
        int64_t timeNs;
        model::Severity severity;
        EventClass kind;
        EventText text;

        bool isRoutine() const {
            return kind == EventClass::kRoutine && severity == model::Severity::kInfo;
        }
    };
    static Row rowOf(const model::Event& event);

    std::deque<Row> rows_;
};

/// Severity, replica, kind and text, all of which must hold.
class EventFilter final : public QSortFilterProxyModel {
    Q_OBJECT
  public:
    using QSortFilterProxyModel::QSortFilterProxyModel;
    void setMinSeverity(model::Severity severity);
    void setReplica(int replica);  ///< -1: all
    void setText(const QString& text);
    /// Leaves out what comes with every step, which buries the rest.
    void setHideRoutine(bool hide);

  protected:
    bool filterAcceptsRow(int row, const QModelIndex& parent) const override;

  private:
    model::Severity minSeverity_ = model::Severity::kInfo;
    int replica_ = -1;
    QString text_;
    bool hideRoutine_ = false;
};

}  // namespace bulkhead::ui
