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
    float* same;  ///< null: not wanted
    uint64_t rows, dim;
    float epsilon;

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        if (dim % 4 == 0)
            by<4>(block);
        else
            by<1>(block);
    }

  private:
    template <uint32_t kWide, class Block>
    BULKHEAD_BODY void by(Block& block) const {
        for (uint64_t row = block.block(); row < rows; row += block.blocks()) {
            const float* in = x + row * dim;
            float squares = 0;
            for (uint64_t i = block.thread() * kWide; i < dim; i += block.threads() * kWide) {
                const auto some = load<kWide>(in + i);
                BULKHEAD_UNROLL
                for (uint32_t j = 0; j < kWide; ++j) squares += some.at[j] * some.at[j];
                if (same != nullptr) store(same + row * dim + i, some);
            }
            const float mean = block.sum(squares) / static_cast<float>(dim);
            const float inverse = 1.0f / sqrtf(mean + epsilon);
            if (block.thread() == 0) scale[row] = inverse;
            for (uint64_t i = block.thread() * kWide; i < dim; i += block.threads() * kWide) {
                const auto some = load<kWide>(in + i);
                const auto factors = load<kWide>(gain + i);
                Several<Bf16, kWide> out;
                BULKHEAD_UNROLL
                for (uint32_t j = 0; j < kWide; ++j)
                    out.at[j] = narrow(some.at[j] * inverse * widen(factors.at[j]));
                store(y + row * dim + i, out);
            }
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

    static constexpr uint32_t kMostNear = 4096;  ///< columns whose part is the block's own memory
    static constexpr uint32_t kShared = kMostNear * sizeof(float);

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        if (dim % 4 == 0)
            by<4>(block);
        else
            by<1>(block);
    }

  private:
    template <uint32_t kWide, class Block>
    BULKHEAD_BODY void by(Block& block) const {
        // A column is always the same thread's, so that parts need no barrier.
        float* far = parts + block.block() * dim;
        float* part = dim <= kMostNear ? reinterpret_cast<float*>(block.shared()) : far;
        for (uint64_t i = block.thread() * kWide; i < dim; i += block.threads() * kWide)
            store(part + i, Several<float, kWide>{});
        for (uint64_t row = block.block(); row < rows; row += block.blocks()) {
            const uint64_t at = row * dim;
            const float inverse = scale[row];
            float along = 0;
            for (uint64_t i = block.thread() * kWide; i < dim; i += block.threads() * kWide) {
                const auto in = load<kWide>(x + at + i), up = load<kWide>(dy + at + i);
                const auto factors = load<kWide>(gain + i);
                BULKHEAD_UNROLL
                for (uint32_t j = 0; j < kWide; ++j)
                    along += up.at[j] * widen(factors.at[j]) * in.at[j];
            }
            const float back =
                block.sum(along) * inverse * inverse * inverse / static_cast<float>(dim);
            for (uint64_t i = block.thread() * kWide; i < dim; i += block.threads() * kWide) {
                const auto in = load<kWide>(x + at + i), up = load<kWide>(dy + at + i);
                const auto factors = load<kWide>(gain + i);
                auto sums = load<kWide>(dx + at + i), gains = load<kWide>(part + i);
                Several<Bf16, kWide> out;
                BULKHEAD_UNROLL
                for (uint32_t j = 0; j < kWide; ++j) {
                    sums.at[j] += inverse * widen(factors.at[j]) * up.at[j] - back * in.at[j];
                    out.at[j] = narrow(sums.at[j]);
                    gains.at[j] += up.at[j] * in.at[j] * inverse;
                }
                store(dx + at + i, sums);
                store(rounded + at + i, out);
                store(part + i, gains);
            }
        }
        if (part != far)
            for (uint64_t i = block.thread() * kWide; i < dim; i += block.threads() * kWide)
                store(far + i, load<kWide>(part + i));
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

/// Rows of SwiGLU's gates and results, taken kWide neighbours at a time.
template <uint32_t kWide, class Block, class Visit>
BULKHEAD_BODY void eachGate(Block& block, uint64_t rows, uint64_t hidden, Visit visit) {
    const auto each = static_cast<uint32_t>(hidden / kWide);
    const uint64_t step = uint64_t{block.blocks()} * block.threads();
    for (uint64_t i = uint64_t{block.block()} * block.threads() + block.thread(); i < rows * each;
         i += step) {
        const uint64_t row = i / each, column = i % each * kWide;
        visit(row * 2 * hidden + column, row * hidden + column);
    }
}
struct SwigluForward {
    const Bf16* h;
    Bf16* act;
    uint64_t rows, hidden;

    static constexpr uint32_t kWidest = 8;

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        if (hidden % kWidest == 0)
            by<kWidest>(block);
        else
            by<1>(block);
    }

  private:
    template <uint32_t kWide, class Block>
    BULKHEAD_BODY void by(Block& block) const {
        eachGate<kWide>(block, rows, hidden, [&](uint64_t atGate, uint64_t at) {
            const auto gates = load<kWide>(h + atGate);
            const auto ups = load<kWide>(h + atGate + hidden);
            Several<Bf16, kWide> out;
            BULKHEAD_UNROLL
            for (uint32_t j = 0; j < kWide; ++j) {
                const float gate = widen(gates.at[j]);
                out.at[j] = narrow(gate * sigmoid(gate) * widen(ups.at[j]));
            }
            store(act + at, out);
        });
    }
};

struct SwigluBackward {
    Bf16* h;
    const Bf16* dAct;
    uint64_t rows, hidden;

    static constexpr uint32_t kWidest = 8;

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        if (hidden % kWidest == 0)
            by<kWidest>(block);
        else
            by<1>(block);
    }

  private:
    template <uint32_t kWide, class Block>
    BULKHEAD_BODY void by(Block& block) const {
        eachGate<kWide>(block, rows, hidden, [&](uint64_t atGate, uint64_t at) {
            auto gates = load<kWide>(h + atGate);
            auto ups = load<kWide>(h + atGate + hidden);
            const auto down = load<kWide>(dAct + at);
            BULKHEAD_UNROLL
            for (uint32_t j = 0; j < kWide; ++j) {
                const float gate = widen(gates.at[j]), up = widen(ups.at[j]);
                const float d = widen(down.at[j]);
                const float s = sigmoid(gate), silu = gate * s;
                ups.at[j] = narrow(d * silu);
                gates.at[j] = narrow(d * up * (s + silu * (1.0f - s)));
            }
            store(h + atGate, gates);
            store(h + atGate + hidden, ups);
        });
    }
};

}  // namespace bulkhead::llama_moe::gpu
