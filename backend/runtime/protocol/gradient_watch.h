// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

namespace bulkhead::protocol {

/// A size that is far from those before it.
struct Jump {
    double value = 0;
    double usual = 0;  ///< median of the last sizes
    double score = 0;  ///< distance from it in typical distances
};

/// Sizes of gradients by step, against their own past. Compared are logarithms, by the modified
/// z-score: the distance from the median over 1.4826 times the median distance from it (Iglewicz
/// and Hoaglin, How to Detect and Handle Outliers, 1993). They call 3.5 an outlier; norms of
/// gradients have heavier tails, so a jump is more than 8, and threefold at least. What jumps is
/// not taken into the past, unless it lasts: then it is the level. Pure; O(window) for each size.
class GradientWatch {
  public:
    /// The jump, for the first of several in a row. A size that is not positive and finite says
    /// nothing.
    std::optional<Jump> note(double size);

  private:
    std::deque<double> past_;    ///< logarithms, the newest last
    std::deque<double> beyond_;  ///< jumps in a row
};

/// "21.7 in step 212, 21.1 times the usual 1.03"
std::string textOf(const Jump& jump, uint64_t step);

}  // namespace bulkhead::protocol
