// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plugins/llama_moe/gpu/attention_kernels.h"
#include "plugins/llama_moe/gpu/flat_kernels.h"
#include "plugins/llama_moe/gpu/group_kernels.h"
#include "plugins/llama_moe/gpu/hash_kernels.h"
#include "plugins/llama_moe/gpu/layer_kernels.h"
#include "plugins/llama_moe/gpu/token_kernels.h"

/// All kernels, in an order that only host and module of one build share.
#define BULKHEAD_LLAMA_MOE_KERNELS(X) \
    X(NormForward)                    \
    X(NormBackward)                   \
    X(ColumnSums)                     \
    X(Rotate)                         \
    X(AttentionForward32)             \
    X(AttentionForward64)             \
    X(AttentionBackQueries32)         \
    X(AttentionBackQueries64)         \
    X(AttentionBackQueries128)        \
    X(AttentionBackKeys32)            \
    X(AttentionBackKeys64)            \
    X(AttentionBackKeys128)           \
    X(AttentionForward128)            \
    X(SwigluForward)                  \
    X(SwigluBackward)                 \
    X(Route)                          \
    X(Spread)                         \
    X(Collect)                        \
    X(RouteBackward)                  \
    X(AddSurplus)                     \
    X(CountChoices)                   \
    X(PlaceChoices)                   \
    X(MultiplyGroups)                 \
    X(MultiplyGroupsBack)             \
    X(Embed)                          \
    X(EmbedBackward)                  \
    X(CrossEntropy)                   \
    X(Add)                            \
    X(Narrow)                         \
    X(Update)                         \
    X(SquareSums)                     \
    X(PieceSums)                      \
    X(PieceHashes)

namespace bulkhead::llama_moe::gpu {

enum class Kernel : uint32_t {
#define BULKHEAD_NAME(K) k##K,
    BULKHEAD_LLAMA_MOE_KERNELS(BULKHEAD_NAME)
#undef BULKHEAD_NAME
};

/// kernelOf(body): the kernel that it is the body of.
#define BULKHEAD_OF(K)                    \
    constexpr Kernel kernelOf(const K&) { \
        return Kernel::k##K;              \
    }
BULKHEAD_LLAMA_MOE_KERNELS(BULKHEAD_OF)
#undef BULKHEAD_OF

}  // namespace bulkhead::llama_moe::gpu
