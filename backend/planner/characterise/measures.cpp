// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/characterise/measures.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

namespace bulkhead::planner {
namespace {

double sumOf(std::span<const uint64_t> counts) {
    double sum = 0;
    for (const uint64_t count : counts) sum += static_cast<double>(count);
    return sum;
}

double largest(std::span<const uint64_t> counts) {
    return counts.empty() ? 0
                          : static_cast<double>(*std::max_element(counts.begin(), counts.end()));
}

/// p log2(p / q), 0 where there is nothing.
double divergence(double p, double q) {
    return p > 0 ? p * std::log2(p / q) : 0;
}

}  // namespace

double imbalance(std::span<const uint64_t> counts) {
    const double sum = sumOf(counts);
    return sum > 0 ? largest(counts) * static_cast<double>(counts.size()) / sum : 0;
}

double balancedness(std::span<const uint64_t> counts) {
    const double ratio = imbalance(counts);
    return ratio > 0 ? 1 / ratio : 1;
}

uint32_t expertsFor(std::span<const uint64_t> counts, double share) {
    std::vector<uint64_t> sorted(counts.begin(), counts.end());
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    const double wanted = sumOf(counts) * share;
    double sum = 0;
    for (size_t i = 0; i < sorted.size(); ++i) {
        if (sum >= wanted) return static_cast<uint32_t>(i);
        sum += static_cast<double>(sorted[i]);
    }
    return static_cast<uint32_t>(sorted.size());
}

double cosine(std::span<const uint64_t> a, std::span<const uint64_t> b) {
    double ab = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        const auto x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
        ab += x * y;
        aa += x * x;
        bb += y * y;
    }
    return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0;
}

double jensenShannon(std::span<const uint64_t> a, std::span<const uint64_t> b) {
    const double sumA = sumOf(a), sumB = sumOf(b);
    if (sumA == 0 || sumB == 0) return 0;
    double total = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        const double p = static_cast<double>(a[i]) / sumA, q = static_cast<double>(b[i]) / sumB;
        const double mean = (p + q) / 2;
        total += (divergence(p, mean) + divergence(q, mean)) / 2;
    }
    return std::sqrt(std::max(total, 0.0));
}

double correlation(std::span<const uint64_t> a, std::span<const uint64_t> b) {
    const auto n = static_cast<double>(a.size());
    const double meanA = sumOf(a) / n, meanB = sumOf(b) / n;
    double ab = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        const double x = static_cast<double>(a[i]) - meanA, y = static_cast<double>(b[i]) - meanB;
        ab += x * y;
        aa += x * x;
        bb += y * y;
    }
    return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0;
}

}  // namespace bulkhead::planner
