// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "backend/common/clock.h"
#include "backend/model/event.h"
#include "backend/runtime/protocol/facts.h"

namespace bulkhead::runtime {

/// A fact of the machine in the words of a run's history.
struct TranslatedFact {
    model::EventBody body;
    model::Severity severity = model::Severity::kInfo;
};

/// Context that the translation of a fact needs.
struct FactContext {
    std::function<int64_t(MonoNs)> unixNs;               ///< of a machine time
    std::function<std::string(int32_t replica)> nodeOf;  ///< "" when it runs nowhere
    model::Policies policies;                            ///< in force, for what the machine ignores
};

/// nullopt for what is no event of its own: OperatorAnswered (the caller knows who asked).
/// An IncidentOpened carries no fault yet. Pure but for the context's functions.
std::optional<TranslatedFact> translate(const protocol::Fact& fact, const FactContext& context);

}  // namespace bulkhead::runtime
