// SPDX-License-Identifier: Apache-2.0
#include "plugins/llama_moe/layout.h"

#include <algorithm>

namespace bulkhead::llama_moe {
namespace {

/// Slices and experts begin on cache lines, for whatever element type.
constexpr size_t kAlignment = 16;

size_t alignedUp(size_t n) {
    return (n + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

Placement defaultPlacement(const ModelSpec& spec, size_t shards) {
    const size_t experts = spec.config.experts;
    Placement placement(spec.config.mixtureLayers() * experts);
    for (size_t i = 0; i < placement.size(); ++i)
        placement[i] = static_cast<int32_t>((i % experts) * shards / experts);
    return placement;
}

Layout::Layout(const ModelSpec& spec, size_t shard, size_t shards, Placement placement)
    : experts_(spec.config.experts), placement_(std::move(placement)) {
    for (const Unit& unit : spec.units) {
        UnitRegion& region = units_.emplace_back();
        region.begin = count_;
        region.slice = alignedUp((unit.denseCount + shards - 1) / shards);
        addDenseSegments(unit, region, shard);
        size_t at = region.begin + region.slice;
        if (unit.mixture >= 0) {
            region.expertAt.assign(experts_, kElsewhere);
            region.expertsApart = alignedUp(unit.expertCount);
            const int32_t* shardOf = shardsOf(static_cast<size_t>(unit.mixture));
            for (size_t e = 0; e < experts_; ++e) {
                if (shardOf[e] != static_cast<int32_t>(shard)) continue;
                region.experts.push_back(e);
                region.expertAt[e] = at;
                addSegment(at, at + unit.expertCount, TensorKind::kMatrix);
                at += region.expertsApart;
                addSegment(segments_.back().end, at, TensorKind::kPadding);
            }
        }
        region.end = count_ = at;
    }
}

void Layout::addDenseSegments(const Unit& unit, const UnitRegion& region, size_t shard) {
    const size_t from = shard * region.slice;
    const size_t to = from + region.slice;
    for (const Tensor& tensor : unit.dense) {
        const size_t begin = std::max(from, tensor.offset);
        const size_t end = std::min(to, tensor.offset + tensor.count());
        if (begin < end)
            addSegment(region.begin + begin - from, region.begin + end - from, tensor.kind);
    }
    const size_t used = std::clamp(unit.denseCount, from, to) - from;
    addSegment(region.begin + used, region.begin + region.slice, TensorKind::kPadding);
}

void Layout::addSegment(size_t begin, size_t end, TensorKind kind) {
    if (begin == end) return;
    if (!segments_.empty() && segments_.back().end == begin && segments_.back().kind == kind)
        segments_.back().end = end;
    else
        segments_.push_back({begin, end, kind});
}

}  // namespace bulkhead::llama_moe
