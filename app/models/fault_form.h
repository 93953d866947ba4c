// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include "backend/model/command.h"

namespace bulkhead::ui {

/// The fields that a kind of fault has; the composer shows those and no others. Pure; thread: any.
struct FaultFields {
    bool replica = false;
    bool shard = false;  ///< needed
    bool shardOptional = false;
    bool node = false;
    bool duration = false;
    bool factor = false;
    bool delay = false;
    bool step = true;
};

constexpr FaultFields fieldsOf(model::FaultKind kind) {
    using enum model::FaultKind;
    FaultFields f;
    f.node = kind == kKillNode || kind == kFillDisk;
    f.replica = !f.node;
    f.shard = kind == kKillRank;
    f.shardOptional = kind == kHang || kind == kSlow || kind == kFlipGradient ||
                      kind == kNanGradient || kind == kFlipParameter;
    f.duration = kind == kHang || kind == kSlow || kind == kCutNetwork || kind == kDelayNetwork ||
                 kind == kFillDisk;
    f.factor = kind == kSlow;
    f.delay = kind == kDelayNetwork;
    return f;
}

/// The spec without the fields its kind does not have.
inline model::FaultSpec cleaned(model::FaultSpec spec) {
    const FaultFields f = fieldsOf(spec.kind);
    if (!f.replica) spec.replica = -1;
    if (!f.shard && !f.shardOptional) spec.shard = -1;
    if (!f.node) spec.node.clear();
    if (!f.duration) spec.durationMs = 0;
    if (!f.factor) spec.factor = 0;
    if (!f.delay) spec.delayMs = 0;
    return spec;
}

}  // namespace bulkhead::ui
