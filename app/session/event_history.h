// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QObject>
#include <vector>

#include "app/session/session.h"

namespace bulkhead::ui {

/// The events of the run on screen from before what the log shows, read from history a page at a
/// time, newest first. Without routine events it goes on to the run's beginning by itself; with
/// them, whoever shows it asks for each page. Thread: the GUI's.
class EventHistory final : public QObject {
    Q_OBJECT
  public:
    enum class State { kReading, kMore, kWhole, kFull, kFailed };

    explicit EventHistory(Session& session, QObject* parent = nullptr);

    /// Begins anew with the events up to `seq`; 0: there are none.
    void begin(uint64_t seq, bool withRoutine);
    /// Reads the next page, if there is one and none is being read.
    void more();
    /// Nothing more is read, because the log has no room for older events.
    void stop();
    State state() const { return state_; }
    /// Why nothing more could be read; of State::kFailed.
    const client::Failure& failure() const { return failure_; }
    bool withRoutine() const { return withRoutine_; }

  Q_SIGNALS:
    /// Oldest first; all are older than those of the page before.
    void page(const std::vector<bulkhead::model::Event>& events);
    void stateChanged();

  private:
    void enter(State state);
    void read();
    void take(client::Result<model::EventPage> result);

    Session& session_;
    State state_ = State::kWhole;
    client::Failure failure_;
    bool withRoutine_ = false;
    uint64_t next_ = 0;   ///< greatest seq not read yet
    uint64_t begun_ = 0;  ///< counts begin(): an answer to an earlier one is void
};

}  // namespace bulkhead::ui
