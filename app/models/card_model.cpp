// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/card_model.h"

#include <algorithm>
#include <array>

#include "app/models/labels.h"
#include "app/models/roles.h"
#include "app/models/units.h"

namespace bulkhead::ui {
namespace {

using model::IncidentCard;

bool isSame(const IncidentCard& a, const IncidentCard& b) {
    return a.problem == b.problem && a.incident == b.incident && a.replica == b.replica &&
           a.node == b.node;
}

}  // namespace

CardModel::CardModel(const RunFeed& feed, model::Prices prices, QObject* parent)
    : QAbstractTableModel(parent), feed_(feed), prices_(std::move(prices)) {}

void CardModel::refresh() {
    const model::RunState& s = feed_.state();
    std::vector<IncidentCard> fresh = model::standingCards(s, prices_);
    // Cards of problems that are over are not worked out again.
    std::map<uint64_t, const IncidentCard*> over;
    for (const IncidentCard& row : rows_)
        if (!row.open) over[row.incident] = &row;
    std::vector<IncidentCard> closed;
    for (size_t i = s.incidents.size(); i-- > 0;) {
        const model::IncidentView& incident = s.incidents[i];
        const auto known = over.find(incident.incident);
        const bool kept = known != over.end() && incident.closedNs == known->second->endNs;
        IncidentCard card = kept ? *known->second : model::incidentCard(s, incident, prices_);
        (card.open ? fresh : closed).push_back(std::move(card));
    }
    std::move(closed.begin(), closed.end(), std::back_inserter(fresh));
    const bool sameRows =
        std::equal(fresh.begin(), fresh.end(), rows_.begin(), rows_.end(), isSame);
    if (!sameRows) beginResetModel();
    rows_ = std::move(fresh);
    if (!sameRows)
        endResetModel();
    else if (!rows_.empty())
        Q_EMIT dataChanged(index(0, 0), index(rowCount() - 1, kColumns - 1));
}

const IncidentCard* CardModel::at(int row) const {
    return row >= 0 && static_cast<size_t>(row) < rows_.size() ? &rows_[static_cast<size_t>(row)]
                                                               : nullptr;
}

int CardModel::rowOf(uint64_t incident) const {
    for (size_t i = 0; incident != 0 && i < rows_.size(); ++i)
        if (rows_[i].incident == incident) return static_cast<int>(i);
    return -1;
}

int CardModel::openCount() const {
    return static_cast<int>(std::count_if(rows_.begin(), rows_.end(),
                                          [](const IncidentCard& card) { return card.open; }));
}

int CardModel::rowCount(const QModelIndex& parent) const {
    return parent.isValid() ? 0 : static_cast<int>(rows_.size());
}

int CardModel::columnCount(const QModelIndex& parent) const {
    return parent.isValid() ? 0 : kColumns;
}

QString CardModel::text(const IncidentCard& card, int column) const {
    switch (column) {
        case kTitle:
            return (card.incident > 0 ? QStringLiteral("#%1 ").arg(card.incident) : QString()) +
                   toQt(card.title);
        case kTime:
            return formatElapsed(card.beginNs - feed_.state().startedNs);
        case kBack:
            if (!card.open)
                return tr("after %1").arg(formatMs(model::durationMs(card.beginNs, card.endNs)));
            if (!card.back) return card.backText.empty() ? noFigure() : tr("not known");
            if (card.back->overdue) return tr("overdue");
            return (card.back->of > 0 ? tr("in %1") : tr("not before %1"))
                .arg(formatMs(card.back->likelyMs));
        case kCost:
            return card.cost ? formatNumber(card.cost->replicaSeconds, 1) +
                                   QStringLiteral("\u202freplica-s")
                             : noFigure();
        default:
            return {};
    }
}

QVariant CardModel::data(const QModelIndex& index, int role) const {
    if (!checkIndex(index, CheckIndexOption::IndexIsValid)) return {};
    const IncidentCard& card = rows_[static_cast<size_t>(index.row())];
    const int column = index.column();
    switch (role) {
        case Qt::DisplayRole:
            return text(card, column);
        case Qt::ToolTipRole:
            return toQt(card.happened);
        case Qt::TextAlignmentRole:
            return column == kTitle ? QVariant() : QVariant(Qt::AlignRight | Qt::AlignVCenter);
        case kToneRole:
            if (column == kTitle)
                return static_cast<int>(card.open ? Tone::kWarning : Tone::kNeutral);
            return column == kTime ? QVariant(static_cast<int>(Tone::kMuted)) : QVariant();
        case kPillRole:
            return column == kTitle && card.open;
        case kTimeRole:
            return QVariant::fromValue<qint64>(card.beginNs);
        case kReplicaRole:
            return card.replica;
        case kIdRole:
            return QVariant::fromValue<qulonglong>(card.incident);
        default:
            return {};
    }
}

QVariant CardModel::headerData(int section, Qt::Orientation orientation, int role) const {
    if (orientation != Qt::Horizontal || section < 0 || section >= kColumns) return {};
    if (role == Qt::TextAlignmentRole)
        return section == kTitle ? QVariant(Qt::AlignLeft | Qt::AlignVCenter)
                                 : QVariant(Qt::AlignRight | Qt::AlignVCenter);
    static const std::array<const char*, kColumns> kTitles = {
        QT_TR_NOOP("What"), QT_TR_NOOP("At"), QT_TR_NOOP("Back"), QT_TR_NOOP("Cost")};
    return role == Qt::DisplayRole ? QVariant(tr(kTitles[static_cast<size_t>(section)]))
                                   : QVariant();
}

}  // namespace bulkhead::ui
