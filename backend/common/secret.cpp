// SPDX-License-Identifier: Apache-2.0
#include "backend/common/secret.h"

#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <cerrno>
#include <cstdlib>
#include <string>

namespace bulkhead {
namespace {

Secret hmac(std::string_view key, std::string_view text) {
    Secret out;
    unsigned int size = sizeof out.words;
    ::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(),
           reinterpret_cast<unsigned char*>(out.words.data()), &size);
    return out;
}

std::string bytesOf(const Secret& secret) {
    return std::string(reinterpret_cast<const char*>(secret.words.data()), sizeof secret.words);
}

}  // namespace

Secret Secret::random() {
    Secret out;
    size_t at = 0;
    while (at < sizeof out.words) {
        const ssize_t n =
            ::getrandom(reinterpret_cast<char*>(out.words.data()) + at, sizeof out.words - at, 0);
        if (n > 0) at += static_cast<size_t>(n);
        if (n < 0 && errno != EINTR) std::abort();
    }
    return out;
}

Secret Secret::ofText(std::string_view text) {
    return hmac("bulkhead", text);
}

Secret Secret::derive(std::string_view purpose) const {
    return hmac(bytesOf(*this), std::string(purpose) + '\1');
}

bool Secret::operator==(const Secret& other) const {
    return ::CRYPTO_memcmp(words.data(), other.words.data(), sizeof words) == 0;
}

}  // namespace bulkhead
