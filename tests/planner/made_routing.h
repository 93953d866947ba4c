// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "backend/planner/data/routing.h"
#include "backend/planner/solve/random.h"

namespace bulkhead::planner {

struct MadeOptions {
    uint32_t layers = 2, experts = 16, topK = 2, domains = 2, requests = 8, tokens = 40;
    double own = 0.8;  ///< chance that a token's expert is one of its domain's own
    uint64_t seed = 1;
};

/// Requests whose domains prefer experts of their own: expert e belongs to domain (e x 7 + layer)
/// mod domains, so that linear placement does not suit them.
inline Routing madeRouting(const MadeOptions& options) {
    ModelShape shape;
    shape.layers = options.layers;
    shape.experts = options.experts;
    shape.topK = options.topK;
    auto builder = RoutingBuilder::create(shape).value();
    Random random(options.seed);
    for (uint32_t r = 0; r < options.requests; ++r) {
        const uint32_t domain = r % options.domains;
        builder.beginRequest("r" + std::to_string(r), "d" + std::to_string(domain));
        std::vector<uint16_t> ids;
        for (uint32_t t = 0; t < options.tokens; ++t)
            for (uint32_t layer = 0; layer < options.layers; ++layer) {
                std::vector<uint16_t> token;
                while (token.size() < options.topK) {
                    const auto e = static_cast<uint16_t>(random.below(options.experts));
                    const bool own = (e * 7 + layer) % options.domains == domain;
                    const bool has = std::find(token.begin(), token.end(), e) != token.end();
                    if (!has && (own || random.unit() > options.own)) token.push_back(e);
                }
                ids.insert(ids.end(), token.begin(), token.end());
            }
        EXPECT_TRUE(builder.addTokens(ids).ok());
    }
    return builder.finish().value();
}

/// Four domains with experts of their own: a placement and homes to find.
inline MadeOptions fourDomains(uint32_t requests) {
    MadeOptions made;
    made.experts = 32;
    made.topK = 4;
    made.domains = 4;
    made.requests = requests;
    return made;
}

/// 4 experts, top-2, one layer, linear on 2 nodes of 1 GPU (or 1 of 2): node 0 has experts 0 and 1.
inline Routing byHand() {
    ModelShape shape;
    shape.layers = 1;
    shape.experts = 4;
    shape.topK = 2;
    shape.hidden = 100;
    auto builder = RoutingBuilder::create(shape).value();
    builder.beginRequest("a", "a");
    EXPECT_TRUE(builder.addTokens(std::vector<uint16_t>{0, 1, 2, 3, 0, 2, 1, 3}).ok());
    return builder.finish().value();
}

}  // namespace bulkhead::planner
