// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/tls_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

namespace bulkhead::runtime {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const Secret kKey = Secret::ofText("the key");

/// Two ends and all that went over the wire.
struct Pair {
    explicit Pair(
        const Credential& credential, KeyOf keyOf =
                                          [](std::string_view identity) {
                                              return identity == "agent node0" ? std::optional(kKey)
                                                                               : std::nullopt;
                                          })
        : left(credential), right(std::move(keyOf)) {}

    /// Until nobody has anything to say. The first error of each end stays.
    void talk() {
        while (true) {
            const std::string there = left.takeOutput(), back = right.takeOutput();
            if (there.empty() && back.empty()) return;
            wire += there + back;
            const absl::Status r = right.receive(there, atRight), l = left.receive(back, atLeft);
            if (atRightWhy.ok()) atRightWhy = r;
            if (atLeftWhy.ok()) atLeftWhy = l;
        }
    }
    TlsSession left, right;
    std::string wire, atLeft, atRight;
    absl::Status atLeftWhy, atRightWhy;
};

TEST(TlsSession, AListenerHoldsNoMemoryForWhoeverConnectsAndSaysNothing) {
    constexpr size_t kEnds = 100;
    (void)Pair({"agent node0", kKey});  // allocates the memory that all sessions share
    std::vector<std::unique_ptr<TlsSession>> silent;
    const size_t before = ::mallinfo2().uordblks;
    for (size_t i = 0; i < kEnds; ++i)
        silent.push_back(std::make_unique<TlsSession>(
            KeyOf([](std::string_view) { return std::optional(kKey); })));
    EXPECT_LT(::mallinfo2().uordblks, before + kEnds * 1024);
    EXPECT_FALSE(silent.front()->established());
    EXPECT_EQ(silent.front()->takeOutput(), "");
}

TEST(TlsSession, WhoKnowsTheKeyIsKnownByNameAndIsReadByNobodyElse) {
    Pair pair({"agent node0", kKey});
    pair.talk();
    ASSERT_TRUE(pair.left.established() && pair.right.established());
    EXPECT_EQ(pair.right.identity(), "agent node0");
    const std::string big(1 << 20, 'x');
    ASSERT_TRUE(pair.left.send("a secret of the left" + big).ok());
    ASSERT_TRUE(pair.right.send("a secret of the right").ok());
    pair.talk();
    EXPECT_EQ(pair.atRight, "a secret of the left" + big);
    EXPECT_EQ(pair.atLeft, "a secret of the right");
    EXPECT_THAT(pair.wire, Not(HasSubstr("secret of")));
    EXPECT_THAT(pair.wire, Not(HasSubstr("xxxxxxxx")));
}

TEST(TlsSession, AnotherKeyOrAnUnknownNameIsRefusedAndBothEndsHearOfIt) {
    for (const Credential& credential : {Credential{"agent node0", Secret::ofText("a guess")},
                                         Credential{"agent node1", kKey}, Credential{"", kKey}}) {
        Pair pair(credential);
        pair.talk();
        EXPECT_TRUE(absl::IsPermissionDenied(pair.atRightWhy)) << pair.atRightWhy;
        EXPECT_TRUE(absl::IsPermissionDenied(pair.atLeftWhy)) << pair.atLeftWhy;
        EXPECT_THAT(std::string(pair.atLeftWhy.message()), HasSubstr("no secret in common"));
        EXPECT_FALSE(pair.left.established());
        EXPECT_FALSE(pair.right.established());
    }
}

TEST(TlsSession, WhatWasRecordedIsOfNoUseLater) {
    Pair pair({"agent node0", kKey});
    pair.talk();
    std::string said = pair.wire;
    ASSERT_TRUE(pair.left.send("start a program").ok());
    const std::string order = pair.left.takeOutput();
    // To another session of the same two: the handshake again, then the order.
    Pair another({"agent node0", kKey});
    std::string plain;
    const absl::Status begun = another.right.receive(said, plain);
    if (begun.ok()) (void)another.right.receive(order, plain);
    EXPECT_EQ(plain, "");
    // To the same session twice.
    ASSERT_TRUE(pair.right.receive(order, pair.atRight).ok());
    EXPECT_EQ(pair.atRight, "start a program");
    EXPECT_TRUE(absl::IsDataLoss(pair.right.receive(order, pair.atRight)));
    EXPECT_EQ(pair.atRight, "start a program");
}

TEST(TlsSession, ChangedBytesAreDataLoss) {
    for (size_t at = 5; at < 60; at += 7) {
        Pair pair({"agent node0", kKey});
        pair.talk();
        ASSERT_TRUE(pair.left.send("forty bytes that are sent to the right").ok());
        std::string wire = pair.left.takeOutput();
        if (at >= wire.size()) break;
        wire[at] = static_cast<char>(wire[at] ^ 1);
        const absl::Status s = pair.right.receive(wire, pair.atRight);
        EXPECT_TRUE(absl::IsDataLoss(s)) << s;
        EXPECT_EQ(pair.atRight, "");
    }
}

TEST(TlsSession, BytesThatAreNoTlsAreSaidToBeThat) {
    for (const std::string bytes : {"GET / HTTP/1.1\r\n\r\n", "BKCL\1\0\0\0 of an older release"}) {
        TlsSession session([](std::string_view) { return kKey; });
        std::string plain;
        const absl::Status s = session.receive(bytes, plain);
        EXPECT_TRUE(absl::IsDataLoss(s)) << s;
        EXPECT_THAT(std::string(s.message()), HasSubstr("no TLS"));
    }
    std::mt19937 random(7);
    for (int i = 0; i < 2000; ++i) {
        Pair pair({"agent node0", kKey});
        std::string hello = pair.left.takeOutput();
        for (int k = 0; k < 4; ++k) hello[random() % hello.size()] = static_cast<char>(random());
        hello.resize(random() % (hello.size() + 1));
        (void)pair.right.receive(hello, pair.atRight);
        EXPECT_FALSE(pair.right.established());
        EXPECT_EQ(pair.atRight, "");
    }
}

/// The attacker between them has a certificate, which anybody can make, and not the key.
TEST(TlsSession, ACertificateTakesThePlaceOfNoKey) {
    EVP_PKEY* key = EVP_EC_gen("P-256");
    X509* certificate = X509_new();
    X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    X509_sign(certificate, key, EVP_sha256());
    SSL_CTX* context = SSL_CTX_new(TLS_server_method());
    SSL_CTX_use_certificate(context, certificate);
    SSL_CTX_use_PrivateKey(context, key);
    SSL* impostor = SSL_new(context);
    SSL_set_bio(impostor, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    SSL_set_accept_state(impostor);

    TlsSession agent(Credential{"agent node0", kKey});
    std::string plain;
    absl::Status why;
    for (int i = 0; i < 5 && why.ok(); ++i) {
        const std::string hello = agent.takeOutput();
        BIO_write(SSL_get_rbio(impostor), hello.data(), static_cast<int>(hello.size()));
        SSL_do_handshake(impostor);
        std::string answer(BIO_ctrl_pending(SSL_get_wbio(impostor)), '\0');
        BIO_read(SSL_get_wbio(impostor), answer.data(), static_cast<int>(answer.size()));
        why = agent.receive(answer, plain);
    }
    EXPECT_TRUE(absl::IsPermissionDenied(why)) << why;
    EXPECT_FALSE(agent.established());
    SSL_free(impostor);
    SSL_CTX_free(context);
    X509_free(certificate);
    EVP_PKEY_free(key);
}

}  // namespace
}  // namespace bulkhead::runtime
