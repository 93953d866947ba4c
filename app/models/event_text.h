// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QString>

#include "backend/model/event.h"

namespace bulkhead::ui {

/// An event as one line of the log.
struct EventText {
    QString kind;     ///< "Step committed"
    QString subject;  ///< "r2", "r2s1", "node0", "" for the job as a whole
    QString text;
    int32_t replica = -1;
};

/// A line that a rank printed, without the time and the level its logger put before it.
struct OutputText {
    model::Severity severity = model::Severity::kInfo;
    QString text;
};
/// Pure; thread: any.
OutputText outputText(std::string_view line);

/// Thread: any.
EventText eventText(const model::Event& event);

/// Events that only feed gauges; the log leaves them out.
bool isGaugeEvent(const model::EventBody& body);

}  // namespace bulkhead::ui
