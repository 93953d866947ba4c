// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <openssl/sha.h>

#include <array>
#include <string>
#include <string_view>

namespace bulkhead {

/// SHA-256 as 64 lower-case hexadecimal digits. Thread: any.
[[nodiscard]] inline std::string sha256Hex(std::string_view bytes) {
    std::array<unsigned char, SHA256_DIGEST_LENGTH> digest;
    ::SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
    constexpr char kDigits[] = "0123456789abcdef";
    std::string text;
    text.reserve(2 * digest.size());
    for (const unsigned char byte : digest) text += {kDigits[byte >> 4], kDigits[byte & 15]};
    return text;
}

}  // namespace bulkhead
