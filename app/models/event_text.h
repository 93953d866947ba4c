// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QString>
#include <string>
#include <vector>

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

/// How the log treats a type of events.
enum class EventClass {
    kNotable,  ///< always shown
    kRoutine,  ///< comes with every step or line of output: shown when asked for, or as a warning
    kGauge,    ///< only feeds gauges: never shown
};
EventClass classOf(std::string_view type);

/// Types to ask history for. Output is among them in any case: a line of it may be a warning.
std::vector<std::string> typesForLog(bool withRoutine);

}  // namespace bulkhead::ui
