// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/catalogue/parameters.h"

namespace bulkhead::planner {
namespace {

uint64_t groupedAttention(const AttentionSpec& a, uint64_t hidden) {
    const uint64_t queries = uint64_t{a.heads} * a.headDim, keys = uint64_t{a.kvHeads} * a.headDim;
    uint64_t sum = 2 * hidden * queries + 2 * hidden * keys;
    if (a.bias) sum += queries + 2 * keys + hidden;
    if (a.qkNorm) sum += 2 * uint64_t{a.headDim};
    if (a.sinks) sum += a.heads;
    return sum;
}

/// Compressed queries and keys-with-values, the norms on both, and the shared rotary key.
uint64_t latentAttention(const AttentionSpec& a, uint64_t hidden) {
    const uint64_t query = uint64_t{a.heads} * (a.headDim + a.ropeDim);
    uint64_t sum = a.queryRank == 0 ? hidden * query
                                    : hidden * a.queryRank + a.queryRank + a.queryRank * query;
    sum += hidden * (a.kvRank + a.ropeDim) + a.kvRank;
    sum += uint64_t{a.kvRank} * a.heads * (a.headDim + a.valueDim);
    return sum + uint64_t{a.heads} * a.valueDim * hidden;
}

}  // namespace

uint32_t moeLayers(const ModelSpec& model) {
    const MoeSpec& moe = model.moe;
    if (moe.experts == 0 || moe.every == 0 || moe.firstLayer >= model.layers) return 0;
    return (model.layers - moe.firstLayer + moe.every - 1) / moe.every;
}

uint64_t expertParameters(const ModelSpec& model) {
    const uint64_t width = model.moe.width;
    return 3 * width * model.hidden + (model.moe.expertBias ? 2 * width + model.hidden : 0);
}

Parameters parametersOf(const ModelSpec& model) {
    const uint64_t hidden = model.hidden, layers = model.layers, routing = moeLayers(model);
    const uint64_t expert = expertParameters(model);
    Parameters out;
    out.embeddings = uint64_t{model.vocab} * hidden * (model.tiedEmbeddings ? 1 : 2);
    out.attention =
        layers * (model.attention.kvRank > 0 ? latentAttention(model.attention, hidden)
                                             : groupedAttention(model.attention, hidden));
    out.dense = (layers - routing) * 3 * hidden * model.ffn;
    out.routed = routing * model.moe.experts * expert;
    out.routedUsed = routing * model.moe.topK * expert;
    out.shared = routing * model.moe.shared * expert;
    out.router = routing * model.moe.experts * (hidden + (model.moe.routerBias ? 1 : 0));
    out.norms = (2 * layers + 1) * hidden;
    return out;
}

}  // namespace bulkhead::planner
