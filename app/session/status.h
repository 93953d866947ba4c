// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QString>
#include <algorithm>
#include <chrono>
#include <optional>
#include <vector>

#include "backend/client/failure.h"
#include "backend/model/listing.h"

namespace bulkhead::ui {

/// Where the console stands with a daemon, as the operator is told.
enum class Link {
    kNone,      ///< nothing opened
    kStarting,  ///< a private daemon comes up
    kConnecting,
    kLive,
    kReconnecting,  ///< lost; tries again at nextAttempt
    kFailed,        ///< will not try again by itself
};

/// Cause and remedy as sentences, each with its full stop.
QString inWords(const client::Failure& failure);

struct SessionStatus {
    Link link = Link::kNone;
    QString target;                    ///< the opened target, in the operator's words
    bool embedded = false;             ///< a private daemon of this console, with a job
    std::vector<model::JobInfo> jobs;  ///< all that the daemon has
    bool offline = false;              ///< a run file
    QString wayBack;                   ///< live session that was left for it; empty: none
    /// A run that is being read and not on screen yet.
    struct Opening {
        QString name;
        std::optional<double> share;  ///< 0..1 that is read; absent: not known
    };
    std::optional<Opening> opening;
    bool replay = false;  ///< the screen shows a replay
    std::optional<client::Failure> failure;
    std::chrono::steady_clock::time_point nextAttempt;
    /// Since the last word on the run that is on screen.
    double silentSeconds = 0;
    /// The screen shows how things were then, and nobody knows how they are: a job that had
    /// not ended, and either no connection or no word for longer than a job is ever silent.
    bool unknown = false;
    bool readOnly = false;
    model::ServerInfo server;  ///< its version and our permissions; empty before the handshake
    std::optional<model::JobInfo> job;
    std::optional<model::ReplayPosition> position;

    /// True when somebody can carry out actions and faults.
    bool canAct() const {
        return link == Link::kLive && !replay && !readOnly && job.has_value() &&
               server.role != "viewer";
    }
    /// True when closing would abandon this console's own job.
    bool leavesJob() const {
        using enum model::JobPhase;
        return embedded && job && link == Link::kLive && job->phase != kFinished &&
               job->phase != kFailed;
    }
    double secondsToNextAttempt(std::chrono::steady_clock::time_point now) const {
        return std::max(0.0, std::chrono::duration<double>(nextAttempt - now).count());
    }
};

}  // namespace bulkhead::ui
