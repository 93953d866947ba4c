// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plugins/llama_moe/model_spec.h"

/// Layout of one shard's part of the model. The shard's parameters are one flat run: for each unit
/// a region with this shard's slice of the unit's dense run, then the unit's experts placed here,
/// ascending. Gradient and both optimizer moments have the same shape.
namespace bulkhead::llama_moe {

/// Shard of expert e of mixture layer l at [l * experts + e].
using Placement = std::vector<int32_t>;

/// Expert e on shard e / (experts / shards), in every layer.
Placement defaultPlacement(const ModelSpec& spec, size_t shards);

/// A stretch of the flat run that the optimizer treats alike.
struct Segment {
    size_t begin = 0;
    size_t end = 0;
    TensorKind kind = TensorKind::kMatrix;
    bool operator==(const Segment&) const = default;
};

struct UnitRegion {
    size_t begin = 0;              ///< of the region, in the shard's flat run
    size_t slice = 0;              ///< elements of the dense slice, equal on all shards
    size_t end = 0;                ///< of the region
    std::vector<size_t> experts;   ///< placed here, ascending, one behind the other
    size_t expertsApart = 0;       ///< elements between two of these
    std::vector<size_t> expertAt;  ///< by expert: where it begins in the flat run, or kElsewhere
};

constexpr size_t kElsewhere = static_cast<size_t>(-1);

class Layout {
  public:
    Layout() = default;
    /// `placement` has mixtureLayers * experts entries below `shards`.
    Layout(const ModelSpec& spec, size_t shard, size_t shards, Placement placement);

    size_t count() const { return count_; }
    const std::vector<UnitRegion>& units() const { return units_; }
    const std::vector<Segment>& segments() const { return segments_; }
    const Placement& placement() const { return placement_; }
    /// Shard of each expert of mixture layer `mixture`.
    const int32_t* shardsOf(size_t mixture) const { return placement_.data() + mixture * experts_; }

  private:
    void addDenseSegments(const Unit& unit, const UnitRegion& region, size_t shard);
    void addSegment(size_t begin, size_t end, TensorKind kind);

    size_t experts_ = 0;
    size_t count_ = 0;
    Placement placement_;
    std::vector<UnitRegion> units_;
    std::vector<Segment> segments_;
};

}  // namespace bulkhead::llama_moe
