// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/event_log_model.h"

#include <algorithm>

#include "app/models/labels.h"
#include "app/models/roles.h"
#include "app/models/units.h"

namespace bulkhead::ui {
namespace {

bool isListed(const model::Event& event) {
    return classOf(model::typeName(event.body)) != EventClass::kGauge;
}

}  // namespace

EventLogModel::EventLogModel(RunFeed& feed, QObject* parent) : QAbstractTableModel(parent) {
    connect(&feed, &RunFeed::wasReset, this, &EventLogModel::clear);
    connect(&feed, &RunFeed::received, this, &EventLogModel::append);
}

EventLogModel::Row EventLogModel::rowOf(const model::Event& event) {
    model::Severity severity = event.severity;
    if (const auto* output = std::get_if<model::RankOutput>(&event.body))
        severity = std::max(severity, outputText(output->line).severity);
    return {event.seq, event.timeNs, severity, classOf(model::typeName(event.body)),
            eventText(event)};
}

void EventLogModel::append(const std::vector<model::Event>& events) {
    std::vector<Row> fresh;
    const uint64_t lastSeq = rows_.empty() ? 0 : rows_.back().seq;
    for (const model::Event& event : events)
        if (isListed(event) && event.seq > lastSeq) fresh.push_back(rowOf(event));
    if (fresh.size() > kCapacity)
        fresh.erase(fresh.begin(), fresh.end() - static_cast<std::ptrdiff_t>(kCapacity));
    if (fresh.empty()) return;
    const size_t total = rows_.size() + fresh.size();
    if (total > kCapacity) {
        const auto excess = static_cast<int>(total - kCapacity);
        beginRemoveRows({}, 0, excess - 1);
        rows_.erase(rows_.begin(), rows_.begin() + excess);
        endRemoveRows();
    }
    const auto first = static_cast<int>(rows_.size());
    beginInsertRows({}, first, first + static_cast<int>(fresh.size()) - 1);
    rows_.insert(rows_.end(), std::make_move_iterator(fresh.begin()),
                 std::make_move_iterator(fresh.end()));
    endInsertRows();
}

bool EventLogModel::prepend(const std::vector<model::Event>& events, bool withRoutine) {
    std::vector<Row> older;
    const uint64_t limit = rows_.empty() ? UINT64_MAX : rows_.front().seq;
    for (const model::Event& event : events) {
        if (!isListed(event) || event.seq >= limit) continue;
        Row row = rowOf(event);
        if (withRoutine || !row.isRoutine()) older.push_back(std::move(row));
    }
    const size_t room = kCapacity - rows_.size();
    const bool fits = older.size() <= room;
    if (!fits) older.erase(older.begin(), older.end() - static_cast<std::ptrdiff_t>(room));
    if (older.empty()) return fits;
    beginInsertRows({}, 0, static_cast<int>(older.size()) - 1);
    rows_.insert(rows_.begin(), std::make_move_iterator(older.begin()),
                 std::make_move_iterator(older.end()));
    endInsertRows();
    return fits;
}

void EventLogModel::dropUntil(uint64_t seq) {
    const auto kept =
        std::find_if(rows_.begin(), rows_.end(), [seq](const Row& row) { return row.seq > seq; });
    if (kept == rows_.begin()) return;
    beginRemoveRows({}, 0, static_cast<int>(kept - rows_.begin()) - 1);
    rows_.erase(rows_.begin(), kept);
    endRemoveRows();
}

void EventLogModel::clear() {
    if (rows_.empty()) return;
    beginResetModel();
    rows_.clear();
    endResetModel();
}

int EventLogModel::rowAt(int64_t timeNs) const {
    const auto after =
        std::upper_bound(rows_.begin(), rows_.end(), timeNs,
                         [](int64_t time, const Row& row) { return time < row.timeNs; });
    return static_cast<int>(after - rows_.begin()) - 1;
}

int EventLogModel::rowCount(const QModelIndex& parent) const {
    return parent.isValid() ? 0 : static_cast<int>(rows_.size());
}

int EventLogModel::columnCount(const QModelIndex& parent) const {
    return parent.isValid() ? 0 : kColumns;
}

QVariant EventLogModel::data(const QModelIndex& index, int role) const {
    if (!checkIndex(index, CheckIndexOption::IndexIsValid)) return {};
    const Row& row = rows_[static_cast<size_t>(index.row())];
    switch (role) {
        case Qt::DisplayRole:
            switch (index.column()) {
                case kTime:
                    return formatClock(row.timeNs);
                case kSeverity:
                    return label(row.severity);
                case kKind:
                    return row.text.kind;
                case kSubject:
                    return row.text.subject;
                case kText:
                    return row.text.text;
                default:
                    return {};
            }
        case Qt::ToolTipRole:
            return index.column() == kText ? row.text.text : QVariant();
        case kToneRole:
            if (index.column() == kTime ||
                (index.column() == kSeverity && row.severity == model::Severity::kInfo))
                return static_cast<int>(Tone::kMuted);
            if (index.column() == kSeverity || row.severity >= model::Severity::kWarning)
                return static_cast<int>(tone(row.severity));
            return {};
        case kPillRole:
            return index.column() == kSeverity && row.severity != model::Severity::kInfo;
        case kTimeRole:
            return QVariant::fromValue<qint64>(row.timeNs);
        case kReplicaRole:
            return row.text.replica;
        case kIdRole:
            return QVariant::fromValue<qulonglong>(row.seq);
        case kSortRole:
            return static_cast<int>(row.severity);
        case kRoutineRole:
            return row.isRoutine();
        default:
            return {};
    }
}

QVariant EventLogModel::headerData(int section, Qt::Orientation orientation, int role) const {
    if (orientation != Qt::Horizontal) return {};
    if (role == Qt::TextAlignmentRole) return QVariant(Qt::AlignLeft | Qt::AlignVCenter);
    if (role != Qt::DisplayRole) return {};
    switch (section) {
        case kTime:
            return tr("Time");
        case kSeverity:
            return tr("Severity");
        case kKind:
            return tr("Event");
        case kSubject:
            return tr("Subject");
        case kText:
            return tr("What happened");
        default:
            return {};
    }
}

void EventFilter::setMinSeverity(model::Severity severity) {
    minSeverity_ = severity;
    invalidateFilter();
}

void EventFilter::setReplica(int replica) {
    replica_ = replica;
    invalidateFilter();
}

void EventFilter::setText(const QString& text) {
    text_ = text;
    invalidateFilter();
}

void EventFilter::setHideRoutine(bool hide) {
    hideRoutine_ = hide;
    invalidateFilter();
}

bool EventFilter::filterAcceptsRow(int row, const QModelIndex& parent) const {
    const QAbstractItemModel* model = sourceModel();
    const auto at = [&](int column) { return model->index(row, column, parent); };
    const int severity = at(0).data(kSortRole).toInt();
    if (severity < static_cast<int>(minSeverity_)) return false;
    if (replica_ >= 0 && at(0).data(kReplicaRole).toInt() != replica_) return false;
    if (hideRoutine_ && at(0).data(kRoutineRole).toBool()) return false;
    if (text_.isEmpty()) return true;
    for (const int column : {EventLogModel::kKind, EventLogModel::kSubject, EventLogModel::kText})
        if (at(column).data().toString().contains(text_, Qt::CaseInsensitive)) return true;
    return false;
}

}  // namespace bulkhead::ui
