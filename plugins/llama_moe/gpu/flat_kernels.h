// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plugins/llama_moe/gpu/kernel.h"

/// Flat runs, element by element: sums, rounding, the optimizer.
namespace bulkhead::llama_moe::gpu {

struct Add {
    float* to;
    const float* from;
    uint64_t count;

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        const uint64_t step = uint64_t{block.blocks()} * block.threads();
        for (uint64_t i = uint64_t{block.block()} * block.threads() + block.thread(); i < count;
             i += step)
            to[i] += from[i];
    }
};

struct Narrow {
    const float* from;
    Bf16* to;
    uint64_t count;

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        const uint64_t step = uint64_t{block.blocks()} * block.threads();
        for (uint64_t i = uint64_t{block.block()} * block.threads() + block.thread(); i < count;
             i += step)
            to[i] = narrow(from[i]);
    }
};

/// The optimizer treats a stretch of the state by these.
enum class Treated : uint32_t { kNot, kPlain, kDecaying, kBalance };

/// Elements of the flat runs that are treated alike; at most kStretch.
struct Stretch {
    uint64_t begin, count;
    Treated as;
};
constexpr uint64_t kStretch = 65536;

/// One update of all stretches, by the operations of optimizer.cpp and no others: the CPU's bits.
struct Update {
    const Stretch* stretches;
    uint64_t count;
    const float* reduced;
    float* parameters;
    float* first;
    float* second;
    Bf16* image;
    float keep1, add1, keep2, add2;  ///< beta and 1 - beta
    float epsilon, weightDecay, learningRate, gradientScale, correction1, correction2;
    float balanceRate;

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        for (uint64_t s = block.block(); s < count; s += block.blocks()) {
            const Stretch stretch = stretches[s];
            const uint64_t end = stretch.begin + stretch.count;
            if (stretch.as == Treated::kNot) continue;
            for (uint64_t i = stretch.begin + block.thread(); i < end; i += block.threads()) {
                if (stretch.as == Treated::kBalance)
                    balance(i);
                else
                    adamW(i, stretch.as == Treated::kDecaying ? weightDecay : 0.0f);
            }
        }
    }

  private:
    BULKHEAD_BODY void adamW(uint64_t i, float decay) const {
        const float g = Exact::times(reduced[i], gradientScale);
        const float p = parameters[i];
        const float m = Exact::plus(Exact::times(keep1, first[i]), Exact::times(add1, g));
        const float v =
            Exact::plus(Exact::times(keep2, second[i]), Exact::times(Exact::times(add2, g), g));
        const float mean = Exact::over(m, correction1);
        const float deviation = Exact::plus(Exact::root(Exact::over(v, correction2)), epsilon);
        const float change = Exact::times(
            learningRate, Exact::plus(Exact::over(mean, deviation), Exact::times(decay, p)));
        first[i] = m;
        second[i] = v;
        parameters[i] = Exact::plus(p, -change);
        image[i] = narrow(parameters[i]);
    }
    /// One fixed step against the sign of the surplus.
    BULKHEAD_BODY void balance(uint64_t i) const {
        parameters[i] -= reduced[i] > 0.0f ? balanceRate : reduced[i] < 0.0f ? -balanceRate : 0.0f;
        image[i] = narrow(parameters[i]);
    }
};

/// parts[block] = the block's share of the sum of squares. The surplus is no gradient and counts
/// nothing, unless it is not a number.
struct SquareSums {
    const Stretch* stretches;
    uint64_t count;
    const float* from;
    double* parts;

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        double mine = 0;
        for (uint64_t s = block.block(); s < count; s += block.blocks()) {
            const Stretch stretch = stretches[s];
            const double weight = stretch.as == Treated::kBalance ? 0.0 : 1.0;
            const uint64_t end = stretch.begin + stretch.count;
            for (uint64_t i = stretch.begin + block.thread(); i < end; i += block.threads())
                mine += static_cast<double>(from[i]) * static_cast<double>(from[i]) * weight;
        }
        const double sum = block.sum(mine);
        if (block.thread() == 0) parts[block.block()] = sum;
    }
};

}  // namespace bulkhead::llama_moe::gpu
