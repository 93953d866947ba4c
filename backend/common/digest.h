// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <openssl/evp.h>
#include <openssl/sha.h>

#include <array>
#include <memory>
#include <string>
#include <string_view>

namespace bulkhead {

/// SHA-256 of bytes that come in pieces. Thread: one at a time.
class Sha256 {
  public:
    Sha256() { ::EVP_DigestInit_ex(context_.get(), ::EVP_sha256(), nullptr); }
    void add(std::string_view bytes) {
        ::EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size());
    }
    /// 64 lower-case hexadecimal digits; the last call.
    [[nodiscard]] std::string hex() {
        std::array<unsigned char, SHA256_DIGEST_LENGTH> digest;
        ::EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr);
        constexpr char kDigits[] = "0123456789abcdef";
        std::string text;
        text.reserve(2 * digest.size());
        for (const unsigned char byte : digest) text += {kDigits[byte >> 4], kDigits[byte & 15]};
        return text;
    }

  private:
    const std::unique_ptr<EVP_MD_CTX, decltype(&::EVP_MD_CTX_free)> context_{::EVP_MD_CTX_new(),
                                                                             &::EVP_MD_CTX_free};
};

/// Sha256::hex() of all of it. Thread: any.
[[nodiscard]] inline std::string sha256Hex(std::string_view bytes) {
    Sha256 hash;
    hash.add(bytes);
    return hash.hex();
}

}  // namespace bulkhead
