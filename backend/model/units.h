// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

/// Figures as people read them, the same in console, bulkheadctl and reports. A space stands before
/// a unit and between groups of three digits. Locale-independent. Pure; thread: any.
namespace bulkhead::model {

/// For tables, with as many digits each: "<0.1 ms", "82 ms", "1.20 s", "2 min 05 s", "3 h 12 min",
/// "4 d 02 h". Empty: negative or not finite.
[[nodiscard]] std::string durationText(double ms);

/// For sentences, the same figure without what says nothing: "350 ms", "1.2 s", "4 min 10 s",
/// "1 h 5 min". "not measured": negative or not finite.
[[nodiscard]] std::string humanDuration(double ms);

/// "2.31": so many decimals.
[[nodiscard]] std::string fixedText(double value, int decimals);

/// "512 B", "1.54 MB": powers of 1000.
[[nodiscard]] std::string bytesText(double bytes);

/// "1 284 032".
[[nodiscard]] std::string countText(uint64_t value);

/// 0..1 as "98.2 %"; empty: not finite.
[[nodiscard]] std::string shareText(double share);

}  // namespace bulkhead::model
