// SPDX-License-Identifier: Apache-2.0
#include "backend/common/ledger_chain.h"

#include <cmath>
#include <limits>

#include "backend/common/codec.h"
#include "backend/common/digest.h"

namespace bulkhead {
namespace {

/// JSON keeps no sign or payload of a NaN.
void settle(double& value) {
    if (!std::isfinite(value)) value = std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

std::string chainLink(std::string_view previous, Chained what) {
    if (auto* step = std::get_if<StepLink>(&what)) {
        settle(step->loss);
        settle(step->gradNorm);
    }
    std::string bytes(previous);
    bytes += encode(what);
    return sha256Hex(bytes);
}

}  // namespace bulkhead
