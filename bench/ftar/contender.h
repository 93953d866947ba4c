// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

/// The part that all contenders of bench/ftar share, with any library: one is started
/// as `PROGRAM RANKS BYTES ITERATIONS [...]`, all-reduces float32 over RANKS processes, and its
/// first rank prints the milliseconds of each iteration, one a line.
namespace bulkhead::bench {

struct Task {
    int ranks = 0;
    size_t count = 0;  ///< floats
    int iterations = 0;
};

inline Task taskOf(int argc, char** argv) {
    if (argc < 4) {
        std::fprintf(stderr, "usage: %s RANKS BYTES ITERATIONS\n", argv[0]);
        std::exit(2);
    }
    return {std::atoi(argv[1]), static_cast<size_t>(std::atoll(argv[2])) / sizeof(float),
            std::atoi(argv[3])};
}

/// Iterations before those that count.
inline int warmUpOf(const Task& task) {
    return task.count < (16u << 20) ? 3 : 1;
}

/// Small whole numbers: their sum over a few ranks is exact in float32 and in bfloat16.
inline float valueAt(int rank, size_t i) {
    return static_cast<float>((i + static_cast<size_t>(rank)) % 8);
}

inline void fill(float* to, size_t count, int rank) {
    for (size_t i = 0; i < count; ++i) to[i] = valueAt(rank, i);
}

/// Ends the process when a sum is wrong: a fast wrong answer is no result.
inline void check(const float* sum, const Task& task) {
    for (size_t i = 0; i < task.count; i += 1 + task.count / 1000) {
        float want = 0;
        for (int r = 0; r < task.ranks; ++r) want += valueAt(r, i);
        if (sum[i] == want) continue;
        std::fprintf(stderr, "wrong sum at %zu: %g instead of %g\n", i, static_cast<double>(sum[i]),
                     static_cast<double>(want));
        std::exit(3);
    }
}

/// Runs `body` warmUpOf(task) + task.iterations times; the milliseconds of each counted one.
template <class Body>
std::vector<double> timed(const Task& task, Body&& body) {
    std::vector<double> ms;
    for (int i = 0; i < warmUpOf(task) + task.iterations; ++i) {
        const auto start = std::chrono::steady_clock::now();
        body();
        const std::chrono::duration<double, std::milli> took =
            std::chrono::steady_clock::now() - start;
        if (i >= warmUpOf(task)) ms.push_back(took.count());
    }
    return ms;
}

inline void print(const std::vector<double>& ms) {
    for (const double m : ms) std::printf("%.4f\n", m);
    std::fflush(stdout);
}

}  // namespace bulkhead::bench
