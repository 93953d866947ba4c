// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "backend/common/fields.h"

/// A transformer as its paper and configuration describe it. Widths in elements. Plain values.
namespace bulkhead::planner {

/// Grouped-query attention, or multi-head latent attention (DeepSeek-V2, arXiv 2405.04434) where
/// kvRank > 0.
struct AttentionSpec {
    uint32_t heads = 0;
    uint32_t kvHeads = 0;    ///< grouped-query only
    uint32_t headDim = 0;    ///< without the rotary part of latent attention
    uint32_t queryRank = 0;  ///< latent: rank of the query's compression; 0: none
    uint32_t kvRank = 0;
    uint32_t ropeDim = 0;
    uint32_t valueDim = 0;
    bool qkNorm = false;  ///< a norm of headDim on queries and on keys
    bool bias = false;    ///< on all four projections
    bool sinks = false;   ///< one learned number a head
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("heads", self.heads);
        visit("kv_heads", self.kvHeads);
        visit("head_dim", self.headDim);
        visit("query_rank", self.queryRank);
        visit("kv_rank", self.kvRank);
        visit("rope_dim", self.ropeDim);
        visit("value_dim", self.valueDim);
        visit("qk_norm", self.qkNorm);
        visit("bias", self.bias);
        visit("sinks", self.sinks);
    }
};

/// Gated experts of three matrices hidden x width. Layers firstLayer, firstLayer + every, ...
/// route.
struct MoeSpec {
    uint32_t experts = 0;  ///< 0: a dense model
    uint32_t topK = 0;
    uint32_t shared = 0;
    uint32_t width = 0;
    uint32_t firstLayer = 0;
    uint32_t every = 1;
    uint32_t routerGroups = 1;
    uint32_t groupsPerToken = 1;
    bool routerBias = false;
    bool expertBias = false;
    double weightBytes = 2;  ///< of one expert weight as usually served
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("experts", self.experts);
        visit("top_k", self.topK);
        visit("shared", self.shared);
        visit("width", self.width);
        visit("first_layer", self.firstLayer);
        visit("every", self.every);
        visit("router_groups", self.routerGroups);
        visit("groups_per_token", self.groupsPerToken);
        visit("router_bias", self.routerBias);
        visit("expert_bias", self.expertBias);
        visit("weight_bytes", self.weightBytes);
    }
};

struct ModelSpec {
    std::string name;
    uint32_t layers = 0;  ///< decoder layers, dense ones too
    uint32_t hidden = 0;
    uint32_t ffn = 0;  ///< width of a dense layer; 0 where none is dense
    uint32_t vocab = 0;
    bool tiedEmbeddings = false;
    double dispatchBytes = 2;  ///< of an activation element on its way to an expert
    double combineBytes = 2;   ///< and on its way back
    AttentionSpec attention;
    MoeSpec moe;
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("name", self.name);
        visit("layers", self.layers);
        visit("hidden", self.hidden);
        visit("ffn", self.ffn);
        visit("vocab", self.vocab);
        visit("tied_embeddings", self.tiedEmbeddings);
        visit("dispatch_bytes", self.dispatchBytes);
        visit("combine_bytes", self.combineBytes);
        visit("attention", self.attention);
        visit("moe", self.moe);
    }
};

}  // namespace bulkhead::planner
