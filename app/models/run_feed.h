// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QObject>
#include <cstdint>
#include <vector>

#include "backend/model/run_state.h"

namespace bulkhead::ui {

/// Counters that grow when the named part of the state changed; a view keeps the ones it drew and
/// does nothing when they are equal.
struct Revisions {
    uint64_t status = 0;  ///< phase, explanation, quorum, policies
    uint64_t fleet = 0;   ///< nodes, replicas, ranks
    uint64_t lanes = 0;   ///< states over time, stalls, faults, incidents
    uint64_t steps = 0;
    uint64_t experts = 0;
    uint64_t incidents = 0;  ///< incidents, faults, actions
};

/// The run on screen, live or replayed: the one RunState that every view reads, kept up to date by
/// the session. Nobody else writes it. Thread: the GUI's.
class RunFeed final : public QObject {
    Q_OBJECT
  public:
    explicit RunFeed(QObject* parent = nullptr);

    const model::RunState& state() const { return state_; }
    const Revisions& revisions() const { return revisions_; }
    /// False until the first snapshot and after clear().
    bool hasRun() const { return hasRun_; }

    /// Everything shown before is void.
    void reset(const model::RunState& state);
    /// Folds in what followed the last snapshot, in order.
    void apply(const std::vector<model::Event>& events);
    void clear();
    /// Nothing has come for so long [ms] that ages counted from what came last have to go on; 0:
    /// it is as it should be.
    void setUnseen(double ms);
    double unseenMs() const { return unseenMs_; }

  Q_SIGNALS:
    /// After reset() or clear(), before updated().
    void wasReset();
    /// The events of an apply(), already folded in; before updated().
    void received(const std::vector<bulkhead::model::Event>& events);
    void updated();

  private:
    void bumpAll();

    model::RunState state_;
    Revisions revisions_;
    bool hasRun_ = false;
    double unseenMs_ = 0;
};

}  // namespace bulkhead::ui
