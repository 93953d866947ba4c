// SPDX-License-Identifier: Apache-2.0
#include "backend/common/ledger_chain.h"

#include <openssl/sha.h>

#include <array>
#include <cmath>
#include <limits>

#include "backend/common/codec.h"

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
    std::array<unsigned char, SHA256_DIGEST_LENGTH> digest;
    ::SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
    constexpr char kDigits[] = "0123456789abcdef";
    std::string link;
    link.reserve(2 * digest.size());
    for (const unsigned char byte : digest) link += {kDigits[byte >> 4], kDigits[byte & 15]};
    return link;
}

}  // namespace bulkhead
