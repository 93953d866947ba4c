// SPDX-License-Identifier: GPL-3.0-only
#pragma once

#include <QString>
#include <QStringList>
#include <optional>
#include <vector>

#include "app/models/labels.h"
#include "backend/model/run_state.h"

/// GPUs of a node in words. Pure; thread: any.
namespace bulkhead::ui {

/// The names of the first of them, and how many more there are.
QString ranksInWords(const std::vector<RankId>& ranks);

/// Rich text, a line for every GPU of the node, those that had trouble first, with the ranks that
/// compute there; a dash where the driver does not tell. Why there is none, where there is none.
QStringList gpuLines(const model::RunState& state, const model::NodeView& node);
/// The same for the GPUs of a replica's ranks, or of one of them (`shard` not negative), the first
/// of them where they are many; empty when they compute on none.
QStringList gpuLines(const model::RunState& state, int replica, int shard);

/// Mean over the node's GPUs that tell, 0..100.
std::optional<double> gpuBusy(const model::NodeView& node);

/// The last error of a GPU that nobody has seen to: its node still takes ranks. Empty: none.
QString gpuNews(const model::RunState& state);

}  // namespace bulkhead::ui
