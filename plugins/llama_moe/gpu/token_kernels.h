// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plugins/llama_moe/gpu/kernel.h"

/// Routing, rows on their way to experts, embedding and loss. What each computes is said in math.h.
namespace bulkhead::llama_moe::gpu {

struct Route {
    const float* logits;
    const Bf16* balance;
    int32_t* chosen;
    float* gates;
    uint64_t rows;
    uint32_t experts, k;

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        const uint64_t step = uint64_t{block.blocks()} * block.threads();
        for (uint64_t row = uint64_t{block.block()} * block.threads() + block.thread(); row < rows;
             row += step) {
            const float* line = logits + row * experts;
            int32_t* mine = chosen + row * k;
            for (uint32_t j = 0; j < k; ++j) {
                const uint32_t best = largestFree(line, mine, j);
                mine[j] = static_cast<int32_t>(best);
                gates[row * k + j] = sigmoid(line[best]);
            }
        }
    }

    /// The first free expert is taken even if nothing compares, as with not-a-number.
    BULKHEAD_BODY uint32_t largestFree(const float* line, const int32_t* taken,
                                       uint32_t count) const {
        uint32_t best = experts;
        float most = -INFINITY;
        for (uint32_t e = 0; e < experts; ++e) {
            bool free = true;
            for (uint32_t i = 0; i < count; ++i) free = free && taken[i] != static_cast<int32_t>(e);
            const float value = line[e] + widen(balance[e]);
            if (!free || (best < experts && !(value > most))) continue;
            best = e;
            most = value;
        }
        return best;
    }
};

struct Spread {
    const Bf16* from;
    const int32_t* place;
    const float* gates;  ///< null: 1
    Bf16* to;
    uint64_t choices, dim;
    uint32_t k;

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        if (dim % 8 == 0)
            by<8>(block);
        else
            by<1>(block);
    }

  private:
    template <uint32_t kWide, class Block>
    BULKHEAD_BODY void by(Block& block) const {
        const uint64_t each = dim / kWide, step = uint64_t{block.blocks()} * block.threads();
        for (uint64_t i = uint64_t{block.block()} * block.threads() + block.thread();
             i < choices * each; i += step) {
            const auto a = static_cast<uint32_t>(i / each);
            const uint64_t column = i % each * kWide;
            auto some = load<kWide>(from + a / k * dim + column);
            if (gates != nullptr) {
                BULKHEAD_UNROLL
                for (uint32_t j = 0; j < kWide; ++j)
                    some.at[j] = narrow(gates[a] * widen(some.at[j]));
            }
            store(to + static_cast<uint64_t>(place[a]) * dim + column, some);
        }
    }
};

struct Collect {
    const Bf16* from;
    const int32_t* place;
    float* to;
    uint64_t rows, dim;
    uint32_t k;

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        for (uint64_t row = block.block(); row < rows; row += block.blocks())
            for (uint64_t i = block.thread(); i < dim; i += block.threads()) {
                float sum = to[row * dim + i];
                for (uint32_t j = 0; j < k; ++j)
                    sum += widen(from[static_cast<uint64_t>(place[row * k + j]) * dim + i]);
                to[row * dim + i] = sum;
            }
    }
};

struct RouteBackward {
    const Bf16* dSpread;
    const int32_t* place;
    const Bf16* normed;
    const int32_t* chosen;
    const float* gates;
    Bf16* dLogits;
    float* dNormed;
    uint64_t rows, dim;
    uint32_t experts, k;

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        for (uint64_t row = block.block(); row < rows; row += block.blocks()) {
            for (uint32_t e = block.thread(); e < experts; e += block.threads())
                dLogits[row * experts + e] = narrow(0.0f);
            for (uint32_t j = 0; j < k; ++j) {
                const uint64_t a = row * k + j;
                const Bf16* up = dSpread + static_cast<uint64_t>(place[a]) * dim;
                const float gate = gates[a];
                float along = 0;
                for (uint64_t i = block.thread(); i < dim; i += block.threads()) {
                    along += widen(up[i]) * widen(normed[row * dim + i]);
                    dNormed[row * dim + i] += gate * widen(up[i]);
                }
                along = block.sum(along);  // for which all have written their zeros
                if (block.thread() == 0)
                    dLogits[row * experts + static_cast<uint64_t>(chosen[a])] =
                        narrow(along * gate * (1.0f - gate));
            }
        }
    }
};

/// One block an expert.
struct AddSurplus {
    const int32_t* chosen;
    float* surplus;
    uint64_t choices;
    uint32_t experts;

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        const float share = static_cast<float>(choices) / static_cast<float>(experts);
        for (uint32_t e = block.block(); e < experts; e += block.blocks()) {
            double mine = 0;  // counts are whole in double, however many
            for (uint64_t a = block.thread(); a < choices; a += block.threads())
                mine += chosen[a] == static_cast<int32_t>(e) ? 1 : 0;
            const double count = block.sum(mine);
            if (block.thread() == 0) surplus[e] += static_cast<float>(count) - share;
        }
    }
};

struct Embed {
    const Bf16* table;
    const int32_t* tokens;
    float* out;
    uint64_t rows, dim;

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        for (uint64_t row = block.block(); row < rows; row += block.blocks())
            for (uint64_t i = block.thread(); i < dim; i += block.threads())
                out[row * dim + i] = widen(table[static_cast<uint64_t>(tokens[row]) * dim + i]);
    }
};

struct EmbedBackward {
    const float* dOut;
    const int32_t* order;
    const int32_t* starts;
    float* dTable;
    uint64_t dim;
    uint32_t vocabulary;

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        for (uint32_t v = block.block(); v < vocabulary; v += block.blocks())
            for (uint64_t i = block.thread(); i < dim; i += block.threads()) {
                float sum = dTable[v * dim + i];
                for (int32_t at = starts[v]; at < starts[v + 1]; ++at)
                    sum += dOut[static_cast<uint64_t>(order[at]) * dim + i];
                dTable[v * dim + i] = sum;
            }
    }
};

struct CrossEntropy {
    const float* logits;
    const int32_t* targets;
    double* loss;
    Bf16* dLogits;
    uint64_t rows, classes;

    template <class Block>
    BULKHEAD_BODY void run(Block& block) const {
        for (uint64_t row = block.block(); row < rows; row += block.blocks()) {
            const float* line = logits + row * classes;
            const auto target = static_cast<uint64_t>(targets[row]);
            float largest = -INFINITY;
            for (uint64_t i = block.thread(); i < classes; i += block.threads())
                largest = largest < line[i] ? line[i] : largest;
            largest = block.most(largest);
            float mine = 0;
            for (uint64_t i = block.thread(); i < classes; i += block.threads())
                mine += expf(line[i] - largest);
            const float sum = block.sum(mine);
            if (block.thread() == 0)
                loss[row] = log(static_cast<double>(sum)) -
                            (static_cast<double>(line[target]) - static_cast<double>(largest));
            for (uint64_t i = block.thread(); i < classes; i += block.threads())
                dLogits[row * classes + i] =
                    narrow(expf(line[i] - largest) / sum - (i == target ? 1.0f : 0.0f));
        }
    }
};

}  // namespace bulkhead::llama_moe::gpu
