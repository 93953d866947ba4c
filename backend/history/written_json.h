// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "backend/model/event.h"

namespace bulkhead::history {

/// The body of an event from JSON as rowOf() writes it, several times as fast as
/// model::fromJsonText. nullopt for any other text, also where it can be read: it has a key that
/// this program does not know, say, or is damaged. fromJsonText reads that, or tells what is wrong.
/// `json` may get more capacity: the reader looks beyond its end.
[[nodiscard]] std::optional<model::EventBody> bodyAsWritten(std::string& json);

}  // namespace bulkhead::history
