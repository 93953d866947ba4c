// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace bulkhead::bench {

/// HTTP/2 written by hand that no program of gRPC's would send, some 300 KB of it.
struct Http2Flood {
    std::string name;
    std::string bytes;
};

/// Calls that are opened and reset, calls that are only opened, PING, SETTINGS, headers without
/// end, and one large request; all of them of nobody known.
std::vector<Http2Flood> http2Floods();
/// The beginning of a connection that makes one call with this token.
std::string http2SignIn(const std::string& token);
/// Somebody known may go on so: calls that are opened and reset, calls, PING, SETTINGS.
std::vector<Http2Flood> http2FloodsOfCallers();

}  // namespace bulkhead::bench
