// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plugins/llama_moe/gpu/kernel.h"

/// Norms, rotary positions and SwiGLU. What each computes is said in math.h.
namespace bulkhead::llama_moe::gpu {

struct NormForward {
    const float* x;
    const Bf16* gain;
    Bf16* y;
    float* scale;
    uint64_t rows, dim;
    float epsilon;

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        for (uint64_t row = block.block(); row < rows; row += block.blocks()) {
            const float* in = x + row * dim;
            float squares = 0;
            for (uint64_t i = block.thread(); i < dim; i += block.threads())
                squares += in[i] * in[i];
            const float mean = block.sum(squares) / static_cast<float>(dim);
            const float inverse = 1.0f / sqrtf(mean + epsilon);
            if (block.thread() == 0) scale[row] = inverse;
            for (uint64_t i = block.thread(); i < dim; i += block.threads())
                y[row * dim + i] = narrow(in[i] * inverse * widen(gain[i]));
        }
    }
};

/// The gain's gradient comes in one part for each block, which ColumnSums adds up.
struct NormBackward {
    const float* dy;
    const float* x;
    const Bf16* gain;
    const float* scale;
    float* dx;
    Bf16* rounded;
    float* parts;  ///< [blocks][dim]
    uint64_t rows, dim;

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        // A column is always the same thread's, so that parts need no barrier.
        float* part = parts + block.block() * dim;
        for (uint64_t i = block.thread(); i < dim; i += block.threads()) part[i] = 0;
        for (uint64_t row = block.block(); row < rows; row += block.blocks()) {
            const float* in = x + row * dim;
            const float* up = dy + row * dim;
            const float inverse = scale[row];
            float along = 0;
            for (uint64_t i = block.thread(); i < dim; i += block.threads())
                along += up[i] * widen(gain[i]) * in[i];
            const float back =
                block.sum(along) * inverse * inverse * inverse / static_cast<float>(dim);
            for (uint64_t i = block.thread(); i < dim; i += block.threads()) {
                const float sum =
                    dx[row * dim + i] + (inverse * widen(gain[i]) * up[i] - back * in[i]);
                dx[row * dim + i] = sum;
                rounded[row * dim + i] = narrow(sum);
                part[i] += up[i] * in[i] * inverse;
            }
        }
    }
};

/// to[i] += the sum of column i of all parts: a block's columns in some stretches of the parts, and
/// these in their order.
struct ColumnSums {
    const float* parts;  ///< [count][columns]
    float* to;
    uint64_t count, columns;

    static constexpr uint32_t kColumns = 32, kStretches = 8;
    static constexpr uint32_t kShared = kColumns * kStretches * sizeof(float);

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        auto* sums = reinterpret_cast<float*>(block.shared());
        const uint64_t each = (count + kStretches - 1) / kStretches;
        for (uint64_t first = uint64_t{block.block()} * kColumns; first < columns;
             first += uint64_t{block.blocks()} * kColumns) {
            for (uint32_t i = block.thread(); i < kColumns * kStretches; i += block.threads()) {
                const uint64_t column = first + i % kColumns, begin = i / kColumns * each;
                const uint64_t end = begin + each < count ? begin + each : count;
                float sum = 0;
                for (uint64_t part = begin; part < end && column < columns; ++part)
                    sum += parts[part * columns + column];
                sums[i] = sum;
            }
            block.sync();
            for (uint32_t i = block.thread(); i < kColumns; i += block.threads()) {
                if (first + i >= columns) continue;
                float sum = 0;
                for (uint32_t stretch = 0; stretch < kStretches; ++stretch)
                    sum += sums[stretch * kColumns + i];
                to[first + i] += sum;
            }
            block.sync();
        }
    }
};

/// Turns the first `heads` heads of each row in place.
struct Rotate {
    Bf16* x;
    const float* cosine;  ///< [positions][pairs]
    const float* sine;
    uint64_t rows, stride, positions;
    uint32_t heads, pairs;

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        for (uint64_t row = block.block(); row < rows; row += block.blocks()) {
            const uint64_t angle = row % positions * pairs;
            for (uint32_t i = block.thread(); i < heads * pairs; i += block.threads()) {
                const uint32_t pair = i % pairs;
                Bf16* low = x + row * stride + uint64_t{i / pairs} * 2 * pairs + pair;
                const float a = widen(low[0]), b = widen(low[pairs]);
                const float c = cosine[angle + pair], s = sine[angle + pair];
                low[0] = narrow(a * c - b * s);
                low[pairs] = narrow(b * c + a * s);
            }
        }
    }
};

struct SwigluForward {
    const Bf16* h;
    Bf16* act;
    uint64_t rows, hidden;

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        for (uint64_t row = block.block(); row < rows; row += block.blocks()) {
            const Bf16* gates = h + row * 2 * hidden;
            for (uint64_t i = block.thread(); i < hidden; i += block.threads()) {
                const float gate = widen(gates[i]);
                act[row * hidden + i] = narrow(gate * sigmoid(gate) * widen(gates[hidden + i]));
            }
        }
    }
};

struct SwigluBackward {
    Bf16* h;
    const Bf16* dAct;
    uint64_t rows, hidden;

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        for (uint64_t row = block.block(); row < rows; row += block.blocks()) {
            Bf16* gates = h + row * 2 * hidden;
            for (uint64_t i = block.thread(); i < hidden; i += block.threads()) {
                const float gate = widen(gates[i]), up = widen(gates[hidden + i]);
                const float d = widen(dAct[row * hidden + i]);
                const float s = sigmoid(gate), silu = gate * s;
                gates[hidden + i] = narrow(d * silu);
                gates[i] = narrow(d * up * (s + silu * (1.0f - s)));
            }
        }
    }
};

}  // namespace bulkhead::llama_moe::gpu
