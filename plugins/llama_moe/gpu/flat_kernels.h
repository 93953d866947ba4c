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

/// One stretch of parameters that are treated alike, by the operations of optimizer.cpp and no
/// others: the CPU's bits.
struct AdamWStretch {
    const float* reduced;
    float* parameters;
    float* first;
    float* second;
    Bf16* image;
    uint64_t count;
    float keep1, add1, keep2, add2;  ///< beta and 1 - beta
    float epsilon, decay, learningRate, gradientScale, correction1, correction2;

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        const uint64_t step = uint64_t{block.blocks()} * block.threads();
        for (uint64_t i = uint64_t{block.block()} * block.threads() + block.thread(); i < count;
             i += step) {
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
    }
};

/// The balancing bias: one fixed step against the sign of its surplus.
struct Balance {
    const float* surplus;
    float* bias;
    Bf16* image;
    uint64_t count;
    float rate;

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        const uint64_t step = uint64_t{block.blocks()} * block.threads();
        for (uint64_t i = uint64_t{block.block()} * block.threads() + block.thread(); i < count;
             i += step) {
            bias[i] -= surplus[i] > 0.0f ? rate : surplus[i] < 0.0f ? -rate : 0.0f;
            image[i] = narrow(bias[i]);
        }
    }
};

/// parts[block] += weight * the block's share of the sum of squares.
struct SquareSums {
    const float* from;
    double* parts;
    uint64_t count;
    double weight;

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        const uint64_t step = uint64_t{block.blocks()} * block.threads();
        double mine = 0;
        for (uint64_t i = uint64_t{block.block()} * block.threads() + block.thread(); i < count;
             i += step)
            mine += static_cast<double>(from[i]) * static_cast<double>(from[i]) * weight;
        const double sum = block.sum(mine);
        if (block.thread() == 0) parts[block.block()] += sum;
    }
};

}  // namespace bulkhead::llama_moe::gpu
