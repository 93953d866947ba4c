// SPDX-License-Identifier: Apache-2.0
#include "backend/common/secret.h"

#include <gtest/gtest.h>
#include <openssl/core_names.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <string>

namespace bulkhead {
namespace {

/// HKDF with SHA-256 as OpenSSL has it.
Secret hkdf(int mode, std::string key, std::string salt, std::string info) {
    EVP_KDF* kdf = EVP_KDF_fetch(nullptr, "HKDF", nullptr);
    EVP_KDF_CTX* context = EVP_KDF_CTX_new(kdf);
    char digest[] = "SHA256";
    const OSSL_PARAM parameters[] = {
        OSSL_PARAM_construct_int(OSSL_KDF_PARAM_MODE, &mode),
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, key.data(), key.size()),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, salt.data(), salt.size()),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info.data(), info.size()),
        OSSL_PARAM_construct_end()};
    Secret out;
    EXPECT_EQ(EVP_KDF_derive(context, reinterpret_cast<unsigned char*>(out.words.data()),
                             sizeof out.words, parameters),
              1);
    EVP_KDF_CTX_free(context);
    EVP_KDF_free(kdf);
    return out;
}

TEST(Secret, IsDerivedAsRfc5869Says) {
    const Secret root = Secret::ofText("what a file holds");
    EXPECT_EQ(root, hkdf(EVP_KDF_HKDF_MODE_EXTRACT_ONLY, "what a file holds", "bulkhead", ""));
    const std::string key(reinterpret_cast<const char*>(root.words.data()), sizeof root.words);
    for (const std::string purpose : {"agent node0", "agent node1", "exchange 1 11", ""})
        EXPECT_EQ(root.derive(purpose), hkdf(EVP_KDF_HKDF_MODE_EXPAND_ONLY, key, "", purpose))
            << purpose;
}

TEST(Secret, AnotherPurposeOrRootGivesAnother) {
    const Secret a = Secret::ofText("a"), b = Secret::ofText("b");
    EXPECT_FALSE(a == b);
    EXPECT_FALSE(a.derive("exchange 1 11") == a.derive("exchange 11 1"));
    EXPECT_FALSE(a.derive("x") == b.derive("x"));
    EXPECT_FALSE(Secret::random() == Secret::random());
    Secret changed = a;
    changed.words[3] ^= 1;
    EXPECT_FALSE(a == changed);
}

}  // namespace
}  // namespace bulkhead
