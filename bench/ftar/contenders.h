// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "bench/report.h"

/// The contenders of bench/ftar, and how one of them is run.
namespace bulkhead::bench {

inline constexpr size_t kMiB = 1u << 20;

struct Folders : Place {
    std::string programs = "build/bin";
    std::string peers = "build/bench/peers";
};

struct Contender {
    std::string name;
    std::string command;  ///< RANKS, BYTES and ITERATIONS follow, then `rest`
    std::string rest;
    bool variant = false;  ///< of ours, beside the bars: from 1 to 64 MiB only
    bool takesPart(size_t bytes) const;
};

std::vector<Contender> contenders(const Folders& folders, int ranks);

int iterationsFor(size_t bytes);

/// Milliseconds of each iteration; empty when the contender failed.
std::vector<double> runOnce(const Contender& contender, int ranks, size_t bytes, int iterations,
                            const Folders& folders);

}  // namespace bulkhead::bench
