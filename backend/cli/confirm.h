// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "backend/client/failure.h"
#include "backend/model/command.h"

namespace bulkhead::cli {

/// Prints the preview of an action or fault on stderr.
void printPreflight(const model::Preflight& preflight);

/// True when `yes`, or when a person at the terminal says so. Never asks a pipe.
bool confirmed(bool yes);

/// The failure of what the pre-flight does not allow, or of what nobody confirmed.
client::Failure notAllowed(const model::Preflight& preflight);
client::Failure notConfirmed(const model::Preflight& preflight);

}  // namespace bulkhead::cli
