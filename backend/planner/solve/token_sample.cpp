// SPDX-License-Identifier: Apache-2.0
#include "backend/planner/solve/token_sample.h"

#include <algorithm>
#include <cmath>

namespace bulkhead::planner {

TokenSample sampleOf(const RoutingView& view, uint64_t most) {
    const ModelShape& shape = view.routing->shape();
    TokenSample sample{shape.experts, shape.topK, {}, {}, {}};
    const double keep = std::min(
        1.0, static_cast<double>(most) / static_cast<double>(std::max<uint64_t>(view.tokens(), 1)));
    std::vector<uint64_t> picked;
    double carried = 0.5;
    for (uint32_t r = 0; r < view.ranges.size(); ++r) {
        const TokenRange& range = view.ranges[r];
        sample.rangeTokens.push_back(static_cast<double>(range.tokens));
        const double wanted = static_cast<double>(range.tokens) * keep + carried;
        const auto count = std::clamp<uint64_t>(static_cast<uint64_t>(wanted), 1, range.tokens);
        carried = keep < 1 ? wanted - static_cast<double>(count) : 0.5;
        for (uint64_t i = 0; i < count; ++i) {
            picked.push_back(range.firstToken + (2 * i + 1) * range.tokens / (2 * count));
            sample.range.push_back(r);
        }
    }
    sample.ids.resize(shape.layers);
    for (uint32_t layer = 0; layer < shape.layers; ++layer) {
        sample.ids[layer].resize(picked.size() * shape.topK);
        for (size_t t = 0; t < picked.size(); ++t)
            view.routing->readLayer(layer, picked[t],
                                    {&sample.ids[layer][t * shape.topK], shape.topK});
    }
    return sample;
}

Signatures signaturesOf(const TokenSample& sample, uint32_t width) {
    const auto layers = static_cast<uint32_t>(sample.ids.size());
    const uint32_t taken = std::clamp(width / sample.experts, 1u, layers);
    Signatures made;
    made.width = taken * sample.experts;
    made.rows.assign(sample.rangeTokens.size() * made.width, 0);
    for (uint32_t i = 0; i < taken; ++i) {
        const std::vector<uint16_t>& ids = sample.ids[i * layers / taken];
        for (uint32_t t = 0; t < sample.tokens(); ++t)
            for (uint32_t k = 0; k < sample.topK; ++k)
                ++made.rows[size_t{sample.range[t]} * made.width + i * sample.experts +
                            ids[size_t{t} * sample.topK + k]];
    }
    return made;
}

}  // namespace bulkhead::planner
