// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plugins/llama_moe/gpu/kernel.h"

/// Norms, rotary positions, softmax and SwiGLU. What each computes is said in math.h.
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
                dx[row * dim + i] += inverse * widen(gain[i]) * up[i] - back * in[i];
                part[i] += up[i] * in[i] * inverse;
            }
        }
    }
};

/// Sums of columns, `each` parts at a time, in the order of the parts: to[g][i], or with `add` what
/// was there and it, for the g-th stretch of parts.
struct ColumnSums {
    const float* parts;  ///< [count][columns]
    float* to;           ///< [count / each, rounded up][columns]
    uint64_t count, columns, each;
    uint32_t add;

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        const uint64_t step = uint64_t{block.blocks()} * block.threads();
        const uint64_t elements = (count + each - 1) / each * columns;
        for (uint64_t i = uint64_t{block.block()} * block.threads() + block.thread(); i < elements;
             i += step) {
            const uint64_t first = i / columns * each, column = i % columns;
            const uint64_t end = first + each < count ? first + each : count;
            float sum = 0;
            for (uint64_t part = first; part < end; ++part) sum += parts[part * columns + column];
            to[i] = add != 0 ? to[i] + sum : sum;
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

/// Gradients turned back and rounded; heads from `turned` on, of `heads`, are only rounded.
struct RotateBack {
    const float* from;
    Bf16* to;
    const float* cosine;
    const float* sine;
    uint64_t rows, positions;
    uint32_t heads, turned, pairs;

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        const uint64_t stride = uint64_t{heads} * 2 * pairs;
        for (uint64_t row = block.block(); row < rows; row += block.blocks()) {
            const uint64_t angle = row % positions * pairs;
            for (uint32_t i = block.thread(); i < heads * pairs; i += block.threads()) {
                const uint32_t pair = i % pairs;
                const uint64_t low = row * stride + uint64_t{i / pairs} * 2 * pairs + pair;
                const bool plain = i / pairs >= turned;
                const float a = from[low], b = from[low + pairs];
                const float c = plain ? 1.0f : cosine[angle + pair];
                const float s = plain ? 0.0f : sine[angle + pair];
                to[low] = narrow(a * c + b * s);
                to[low + pairs] = narrow(b * c - a * s);
            }
        }
    }
};

/// Where a row of one head's scores and of its probabilities is, and how much of it counts: token t
/// of its sample sees keys 0 to t % chunk of its chunk.
struct HeadRows {
    uint64_t samples, sequence, chunk;
    uint64_t sampleStride;  ///< elements between one sample's probabilities and the next's

    BULKHEAD_BODY uint64_t rows() const { return samples * sequence; }
    BULKHEAD_BODY uint64_t valid(uint64_t row) const { return row % sequence % chunk + 1; }
    BULKHEAD_BODY uint64_t probabilities(uint64_t row) const {
        return row / sequence * sampleStride + row % sequence * chunk;
    }
};

/// Softmax of one head's scores; what a row may not see becomes zero.
struct CausalSoftmax {
    const float* scores;  ///< [row][chunk]
    Bf16* probabilities;  ///< of this head's first row
    HeadRows head;

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        for (uint64_t row = block.block(); row < head.rows(); row += block.blocks()) {
            const float* line = scores + row * head.chunk;
            Bf16* out = probabilities + head.probabilities(row);
            const uint64_t valid = head.valid(row);
            float largest = -INFINITY;
            for (uint64_t i = block.thread(); i < valid; i += block.threads())
                largest = largest < line[i] ? line[i] : largest;
            largest = block.most(largest);
            float sum = 0;
            for (uint64_t i = block.thread(); i < valid; i += block.threads())
                sum += expf(line[i] - largest);
            const float factor = 1.0f / block.sum(sum);
            for (uint64_t i = block.thread(); i < head.chunk; i += block.threads())
                out[i] = narrow(i < valid ? expf(line[i] - largest) * factor : 0.0f);
        }
    }
};

/// dScores = p * (dp - sum(p * dp)), zero where a row may not see.
struct CausalSoftmaxBackward {
    const Bf16* probabilities;
    const float* dp;  ///< [row][chunk]
    Bf16* dScores;    ///< [row][chunk]
    HeadRows head;

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        for (uint64_t row = block.block(); row < head.rows(); row += block.blocks()) {
            const Bf16* p = probabilities + head.probabilities(row);
            const float* up = dp + row * head.chunk;
            const uint64_t valid = head.valid(row);
            float along = 0;
            for (uint64_t i = block.thread(); i < valid; i += block.threads())
                along += widen(p[i]) * up[i];
            along = block.sum(along);
            for (uint64_t i = block.thread(); i < head.chunk; i += block.threads())
                dScores[row * head.chunk + i] =
                    narrow(i < valid ? widen(p[i]) * (up[i] - along) : 0.0f);
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
