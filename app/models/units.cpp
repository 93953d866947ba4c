// SPDX-License-Identifier: GPL-3.0-only
#include "app/models/units.h"

#include <QDateTime>
#include <cmath>

#include "backend/model/units.h"

namespace bulkhead::ui {
namespace {

constexpr QChar kNarrowSpace(0x202F);

QString withUnit(const QString& figure, const char* unit) {
    return figure + kNarrowSpace + QString::fromUtf8(unit);
}

/// A figure of the model's, its digits and unit kept on one line.
QString orDash(const std::string& text) {
    if (text.empty()) return noFigure();
    QString figure = QString::fromStdString(text);
    for (qsizetype i = 1; i < figure.size(); ++i)
        if (figure[i] == u' ' && figure[i - 1].isDigit()) figure[i] = kNarrowSpace;
    return figure;
}

/// Three significant digits below 100, whole numbers above.
QString threeDigits(double value) {
    const double size = std::abs(value);
    return QString::number(value, 'f', size < 10 ? 2 : size < 100 ? 1 : 0);
}

QString rateOf(double perSecond, const char* ones, const char* thousands, const char* millions) {
    if (!std::isfinite(perSecond) || perSecond < 0) return noFigure();
    if (perSecond < 1000) return withUnit(QString::number(perSecond, 'f', 0), ones);
    if (perSecond < 1e6) return withUnit(threeDigits(perSecond / 1e3), thousands);
    return withUnit(threeDigits(perSecond / 1e6), millions);
}

}  // namespace

QString noFigure() {
    return QStringLiteral("\u2014");
}

QString formatCount(uint64_t value) {
    return orDash(model::countText(value));
}

QString formatNumber(double value, int decimals) {
    if (!std::isfinite(value)) return std::isnan(value) ? QStringLiteral("NaN") : noFigure();
    return QString::number(value, 'f', decimals);
}

QString formatAge(double seconds) {
    const double whole = std::floor(seconds);
    return whole < 60 ? QStringLiteral("%1\u202fs").arg(whole) : formatMs(1000 * whole);
}

QString formatTick(double value, int decimals) {
    const double size = std::abs(value);
    if (size >= 1e6) return withUnit(QString::number(value / 1e6, 'g', 4), "M");
    if (size >= 1e4) return withUnit(QString::number(value / 1e3, 'g', 4), "k");
    return QString::number(value, 'f', decimals);
}

QString formatMs(double ms) {
    return orDash(model::durationText(ms));
}

QString formatBytes(uint64_t bytes) {
    return orDash(model::bytesText(static_cast<double>(bytes)));
}

QString formatRate(double perSecond) {
    return rateOf(perSecond, "/s", "k/s", "M/s");
}

QString formatTokenRate(double perSecond) {
    return rateOf(perSecond, "tok/s", "k tok/s", "M tok/s");
}

QString formatShare(double share) {
    return orDash(model::shareText(share));
}

QString formatClock(int64_t unixNs, bool withDate) {
    if (unixNs == 0) return noFigure();
    return QDateTime::fromMSecsSinceEpoch(unixNs / 1'000'000)
        .toString(withDate ? QStringLiteral("yyyy-MM-dd HH:mm:ss")
                           : QStringLiteral("HH:mm:ss.zzz"));
}

QString formatElapsed(int64_t ns) {
    const bool negative = ns < 0;
    const int64_t tenths = (negative ? -ns : ns) / 100'000'000;
    const int64_t seconds = tenths / 10;
    const QString sign = negative ? QStringLiteral("\u2212") : QString();
    const auto two = [](int64_t v) { return QStringLiteral("%1").arg(v, 2, 10, QChar(u'0')); };
    if (seconds >= 3600)
        return sign + QString::number(seconds / 3600) + u':' + two(seconds % 3600 / 60) + u':' +
               two(seconds % 60);
    return sign + QString::number(seconds / 60) + u':' + two(seconds % 60) + u'.' +
           QString::number(tenths % 10);
}

}  // namespace bulkhead::ui
