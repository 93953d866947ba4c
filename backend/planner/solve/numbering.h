// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/planner/plan/plan.h"

/// Assignment of numbers to nodes. A search without numbers finds groups of experts and requests;
/// the numbers decide which experts must move and how far traffic goes. Pure; any thread.
namespace bulkhead::planner {

/// Columns for rows, each once, at the least sum of `costs` (size x size, row by row, finite):
/// the Hungarian method in the form of Jonker and Volgenant, size^3 steps.
[[nodiscard]] std::vector<uint32_t> assignColumns(std::span<const double> costs, uint32_t size);

/// A place for each of `nodes` groups so that the traffic between them, groups x groups, times
/// `costs` between their places, nodes x nodes, is small: from each group at the place of its
/// number, the best exchange of two places until none gains. [group] place. A local optimum (the
/// problem is a quadratic assignment); never worse than where it starts.
[[nodiscard]] std::vector<uint32_t> nearPlaces(std::span<const double> traffic,
                                               std::span<const double> costs, uint32_t nodes);

/// `plan` with its nodes numbered so that as many experts as one numbering for all layers allows
/// lie where they do in `like`. The same plan but for names. Precondition: both for the same model,
/// topology and slots, nodes of equally many slots.
[[nodiscard]] Plan numberedLike(const Plan& like, const Plan& plan);

}  // namespace bulkhead::planner
