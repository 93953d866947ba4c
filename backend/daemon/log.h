// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace bulkhead::daemon {

/// Log lines of this process go to standard error, as text or, for `format` "json", as one JSON
/// object a line: time (RFC 3339), level, pid, message. Once, before anything is logged.
void startLog(const std::string& format);

}  // namespace bulkhead::daemon
