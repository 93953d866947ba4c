// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QString>
#include <cstdint>
#include <optional>

/// Figures as an operator reads them: value, narrow space, unit; digits grouped by three; an em
/// dash where there is no figure, never a zero. All locale-independent, so that two screens can be
/// compared. Thread: any.
namespace bulkhead::ui {

/// Shown where there is no figure.
QString noFigure();

/// "1 284 032".
QString formatCount(uint64_t value);
/// `digits` significant decimals after the point, grouped: "2.314".
QString formatNumber(double value, int decimals);
/// Milliseconds as "0.4 ms", "82 ms", "1.24 s", "2 min 05 s", "3 h 12 min".
QString formatMs(double ms);
/// Whole seconds: "16 s", "2 min 05 s", "3 h 12 min".
QString formatAge(double seconds);
/// A figure on an axis: "20 k", "1.5 M", below that with so many decimals.
QString formatTick(double value, int decimals);
/// "512 B", "1.54 MB": thousands, as every other figure of bytes.
QString formatBytes(uint64_t bytes);
/// "842 /s", "12.4 k/s", "1.08 M/s".
QString formatRate(double perSecond);
/// "842 tok/s", "12.4 k tok/s", "1.08 M tok/s".
QString formatTokenRate(double perSecond);
/// 0..1 as "98.2 %".
QString formatShare(double share);
/// Local wall-clock time of Unix nanoseconds: "14:03:21.250", or with the day in front.
QString formatClock(int64_t unixNs, bool withDate = false);
/// Time since the start of a run: "0:00.0", "2:05.3", "1:02:05".
QString formatElapsed(int64_t ns);

template <class T, class F>
QString formatOptional(const std::optional<T>& value, F format) {
    return value ? format(*value) : noFigure();
}

}  // namespace bulkhead::ui
