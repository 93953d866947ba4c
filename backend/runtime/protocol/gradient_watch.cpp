// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/protocol/gradient_watch.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"

namespace bulkhead::protocol {
namespace {

constexpr size_t kWindow = 64;
/// Fewer say nothing of what is usual.
constexpr size_t kFewest = 16;
/// So many jumps in a row are a new level.
constexpr size_t kLevel = 16;
constexpr double kScore = 8;
constexpr double kTimes = 3;
/// The normal distribution's standard deviation over its median distance from the median.
constexpr double kPerMedian = 1.4826;
/// Sizes that hardly differ from each other are taken to differ by so much.
constexpr double kLeastDistance = 0.05;

double medianOf(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

}  // namespace

std::optional<Jump> GradientWatch::note(double size) {
    if (!(size > 0) || !std::isfinite(size)) return std::nullopt;
    const double value = std::log(size);
    if (past_.size() >= kFewest) {
        const double usual = medianOf({past_.begin(), past_.end()});
        std::vector<double> distances;
        for (const double x : past_) distances.push_back(std::abs(x - usual));
        const double typical = kPerMedian * std::max(medianOf(distances), kLeastDistance);
        const double distance = std::abs(value - usual);
        if (distance > kScore * typical && distance > std::log(kTimes)) {
            beyond_.push_back(value);
            if (beyond_.size() >= kLevel) past_ = std::exchange(beyond_, {});
            if (beyond_.size() != 1) return std::nullopt;
            return Jump{size, std::exp(usual), distance / typical};
        }
    }
    beyond_.clear();
    past_.push_back(value);
    if (past_.size() > kWindow) past_.pop_front();
    return std::nullopt;
}

std::string textOf(const Jump& jump, uint64_t step) {
    return absl::StrFormat("%.3g in step %u, %.3g times the usual %.3g", jump.value, step,
                           jump.value / jump.usual, jump.usual);
}

}  // namespace bulkhead::protocol
