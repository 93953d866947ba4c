// SPDX-License-Identifier: Apache-2.0
#include "backend/model/units.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "backend/model/names.h"

namespace bulkhead::model {
namespace {

/// Three significant digits below 100, whole numbers above.
std::string threeDigits(double value) {
    return fixedText(value, value < 10 ? 2 : value < 100 ? 1 : 0);
}

std::string withoutZeros(std::string figure) {
    if (figure.find('.') == std::string::npos) return figure;
    while (figure.back() == '0') figure.pop_back();
    if (figure.back() == '.') figure.pop_back();
    return figure;
}

/// Formats a duration of less than a minute.
std::string shortDuration(double ms, bool human) {
    if (ms == 0) return "0 ms";
    if (ms < 0.05) return "<0.1 ms";
    if (ms < 999.5) return fixedText(ms, ms < 1 ? 1 : 0) + " ms";
    const std::string figure = threeDigits(ms / 1000);
    return (human ? withoutZeros(figure) : figure) + " s";
}

struct Parts {
    int64_t large;
    const char* largeUnit;
    int64_t small;
    const char* smallUnit;
};

Parts partsOf(double ms) {
    constexpr double kLongest = 1e15;
    const auto seconds = static_cast<int64_t>(std::llround(std::min(ms, kLongest) / 1000));
    if (seconds < 3600) return {seconds / 60, "min", seconds % 60, "s"};
    if (seconds < 86'400) return {seconds / 3600, "h", seconds % 3600 / 60, "min"};
    return {seconds / 86'400, "d", seconds % 86'400 / 3600, "h"};
}

constexpr double kShort = 59'950;  ///< [ms] in one unit below

bool isMeasured(double ms) {
    return std::isfinite(ms) && ms >= 0;
}

}  // namespace

std::string fixedText(double value, int decimals) {
    char text[64];
    std::snprintf(text, sizeof text, "%.*f", decimals, value);
    return text;
}

std::string durationText(double ms) {
    if (!isMeasured(ms)) return {};
    if (ms < kShort) return shortDuration(ms, false);
    const Parts p = partsOf(ms);
    const char* const zero = p.small < 10 ? "0" : "";
    return concat(p.large, " ", p.largeUnit, " ", zero, p.small, " ", p.smallUnit);
}

std::string humanDuration(double ms) {
    if (!isMeasured(ms)) return "not measured";
    if (ms < kShort) return shortDuration(ms, true);
    const Parts p = partsOf(ms);
    const std::string large = concat(p.large, " ", p.largeUnit);
    return p.small == 0 ? large : concat(large, " ", p.small, " ", p.smallUnit);
}

std::string bytesText(double bytes) {
    constexpr std::array kUnits = {"B", "kB", "MB", "GB", "TB"};
    size_t unit = 0;
    for (; bytes >= 1000 && unit + 1 < kUnits.size(); ++unit) bytes /= 1000;
    return concat(unit == 0 ? fixedText(bytes, 0) : threeDigits(bytes), " ", kUnits[unit]);
}

std::string countText(uint64_t value) {
    std::string digits = std::to_string(value);
    for (size_t at = digits.size(); at > 3;) digits.insert(at -= 3, 1, ' ');
    return digits;
}

std::string shareText(double share) {
    return std::isfinite(share) ? fixedText(share * 100, 1) + " %" : std::string();
}

}  // namespace bulkhead::model
