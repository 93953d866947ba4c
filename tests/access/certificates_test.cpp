// SPDX-License-Identifier: Apache-2.0
#include "backend/access/certificates.h"

#include <gmock/gmock.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "backend/common/file_system.h"

namespace bulkhead::access {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr int64_t kNow = 1'800'000'000;
constexpr int64_t kDay = 86400;

class CertificatesTest : public ::testing::Test {
  protected:
    CertificatesTest() {
        std::string pattern = ::testing::TempDir() + "bulkhead-certs-XXXXXX";
        dir_ = ::mkdtemp(pattern.data());
    }
    ~CertificatesTest() override { fs::remove_all(dir_); }
    Authority authority(const char* name = "authority") {
        auto made = Authority::init(dir_ / name, "Test authority", kNow);
        EXPECT_TRUE(made.ok()) << made.status();
        return *made;
    }
    std::string read(const fs::path& file) { return *readAtMost(file.string(), 1 << 20); }
    fs::path dir_;
};

/// A certificate in PEM form with these common names, signed by itself.
std::string pemWithNames(const std::vector<std::string>& names) {
    const std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key(EVP_EC_gen("P-256"), &::EVP_PKEY_free);
    const std::unique_ptr<X509, void (*)(X509*)> made(::X509_new(), &::X509_free);
    ::X509_gmtime_adj(X509_getm_notBefore(made.get()), 0);
    ::X509_gmtime_adj(X509_getm_notAfter(made.get()), kDay);
    ::X509_set_pubkey(made.get(), key.get());
    for (const std::string& name : names)
        ::X509_NAME_add_entry_by_NID(::X509_get_subject_name(made.get()), NID_commonName,
                                     V_ASN1_UTF8STRING,
                                     reinterpret_cast<const unsigned char*>(name.data()),
                                     static_cast<int>(name.size()), -1, 0);
    ::X509_sign(made.get(), key.get(), ::EVP_sha256());
    const std::unique_ptr<BIO, int (*)(BIO*)> text(::BIO_new(::BIO_s_mem()), &::BIO_free);
    ::PEM_write_bio_X509(text.get(), made.get());
    char* bytes = nullptr;
    const long size = BIO_get_mem_data(text.get(), &bytes);
    return {bytes, static_cast<size_t>(size)};
}

TEST(CertificateTest, ANameThatCouldBeTakenForAnotherIsNone) {
    EXPECT_EQ(certificateOf(pemWithNames({"bob"}))->name, "bob");
    EXPECT_EQ(certificateOf(pemWithNames({std::string("bob\0.guest", 10)}))->name, "");
    EXPECT_EQ(certificateOf(pemWithNames({std::string("bob\0", 4)}))->name, "");
    EXPECT_EQ(certificateOf(pemWithNames({"bob", "anna"}))->name, "");
    EXPECT_EQ(certificateOf(pemWithNames({}))->name, "");
}

TEST_F(CertificatesTest, AFolderThatWasIssuedCanBeUsedUntilItsEnd) {
    const Authority ours = authority();
    const auto made =
        ours.issue("daemon", {"node-1.example", "10.0.0.7", "::1"}, 30, kNow, dir_ / "d");
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_THAT(made->hosts, ElementsAre("node-1.example", "10.0.0.7", "::1"));
    EXPECT_EQ(made->endsS, kNow + 30 * kDay);
    const auto checked = checkCertificates(dir_ / "d", kNow + 29 * kDay);
    ASSERT_TRUE(checked.ok()) << checked.status();
    EXPECT_EQ(checked->serial, made->serial);
    const auto late = checkCertificates(dir_ / "d", kNow + 31 * kDay);
    ASSERT_FALSE(late.ok());
    EXPECT_THAT(std::string(late.status().message()), HasSubstr("expired"));
    struct stat info {};
    ASSERT_EQ(::stat((dir_ / "d/key.pem").c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
    ASSERT_EQ(::stat((dir_ / "authority/ca.key").c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(CertificatesTest, WhatCannotBeUsedIsNamed) {
    const Authority ours = authority();
    const Authority others = authority("others");
    ASSERT_TRUE(ours.issue("a", {}, 30, kNow, dir_ / "a").ok());
    ASSERT_TRUE(ours.issue("b", {}, 30, kNow, dir_ / "b").ok());
    const auto why = [&](const char* file, const fs::path& from) {
        fs::remove_all(dir_ / "c");
        fs::copy(dir_ / "a", dir_ / "c");
        fs::copy_file(from, dir_ / "c" / file, fs::copy_options::overwrite_existing);
        const auto checked = checkCertificates(dir_ / "c", kNow);
        return checked.ok() ? std::string("ok") : std::string(checked.status().message());
    };
    EXPECT_THAT(why("key.pem", dir_ / "b/key.pem"), HasSubstr("expected the key of cert.pem"));
    EXPECT_THAT(why("ca.pem", dir_ / "others/ca.pem"), HasSubstr("not trusted by ca.pem"));
    EXPECT_THAT(why("cert.pem", dir_ / "a/key.pem"), HasSubstr("cert.pem: expected a certificate"));
    EXPECT_THAT(why("key.pem", dir_ / "a/key.pem"), "ok");
    ::chmod((dir_ / "a/key.pem").c_str(), 0644);
    const auto open = checkCertificates(dir_ / "a", kNow);
    EXPECT_THAT(std::string(open.status().message()), HasSubstr("chmod 600"));
}

TEST_F(CertificatesTest, AKeyIsAFileOfOursAndIsNotWaitedFor) {
    ASSERT_TRUE(authority().issue("a", {}, 30, kNow, dir_ / "a").ok());
    const fs::path key = dir_ / "a/key.pem";
    if (::geteuid() == 0) {  // only root can give a file away
        ASSERT_EQ(::chown(key.c_str(), 65534, 65534), 0);
        const auto others = checkCertificates(dir_ / "a", kNow);
        EXPECT_THAT(std::string(others.status().message()), HasSubstr("belongs to another user"));
    }
    fs::remove(key);
    ASSERT_EQ(::mkfifo(key.c_str(), 0600), 0);
    const auto pipe = checkCertificates(dir_ / "a", kNow);
    EXPECT_THAT(std::string(pipe.status().message()), HasSubstr("no ordinary file"));
}

TEST_F(CertificatesTest, NothingIsOverwritten) {
    const Authority ours = authority();
    EXPECT_EQ(Authority::init(dir_ / "authority", "Again", kNow).status().code(),
              absl::StatusCode::kAlreadyExists);
    ASSERT_TRUE(ours.issue("a", {}, 30, kNow, dir_ / "a").ok());
    const std::string before = read(dir_ / "a/key.pem");
    EXPECT_EQ(ours.issue("b", {}, 30, kNow, dir_ / "a").status().code(),
              absl::StatusCode::kAlreadyExists);
    EXPECT_EQ(read(dir_ / "a/key.pem"), before);
    EXPECT_EQ(Authority::open(dir_ / "a").status().code(), absl::StatusCode::kNotFound);
    EXPECT_FALSE(ours.issue("../a", {}, 30, kNow, dir_ / "x").ok());
    EXPECT_FALSE(ours.issue("a", {"a,DNS:evil"}, 30, kNow, dir_ / "x").ok());
    EXPECT_FALSE(fs::exists(dir_ / "x"));
}

TEST_F(CertificatesTest, ARenewedCertificateKeepsNameHostsAndKey) {
    const Authority ours = authority();
    const auto first = ours.issue("daemon", {"localhost"}, 10, kNow, dir_ / "d");
    ASSERT_TRUE(first.ok());
    const std::string key = read(dir_ / "d/key.pem");
    const auto second = ours.renew(20, kNow + 9 * kDay, dir_ / "d");
    ASSERT_TRUE(second.ok()) << second.status();
    EXPECT_EQ(second->hosts, first->hosts);
    EXPECT_EQ(second->endsS, kNow + 29 * kDay);
    EXPECT_NE(second->serial, first->serial);
    EXPECT_EQ(read(dir_ / "d/key.pem"), key);
    EXPECT_TRUE(checkCertificates(dir_ / "d", kNow + 20 * kDay).ok());
    EXPECT_EQ(ours.issued()->size(), 2u);
}

TEST_F(CertificatesTest, SeveralWhoUseAnAuthorityAtOnceTakeTurns) {
    constexpr int kAtOnce = 8;
    const auto all = [](const auto& one) {
        std::vector<std::thread> threads;
        for (int i = 0; i < kAtOnce; ++i) threads.emplace_back(one, i);
        for (std::thread& thread : threads) thread.join();
    };
    std::atomic<int> made = 0;
    all([&](int) { made += Authority::init(dir_ / "authority", "Test authority", kNow).ok(); });
    EXPECT_EQ(made, 1);
    const auto ours = Authority::open(dir_ / "authority");
    ASSERT_TRUE(ours.ok());
    all([&](int i) {
        const std::string name = "n" + std::to_string(i);
        EXPECT_TRUE(ours->issue(name, {}, 30, kNow, dir_ / name).ok());
        EXPECT_TRUE(ours->revoke(name, kNow).ok());
    });
    EXPECT_EQ(ours->issued()->size(), size_t{kAtOnce});
    EXPECT_EQ(ours->revoked()->size(), size_t{kAtOnce});
}

TEST_F(CertificatesTest, RevokedOnesAreInAListThatOnlyTheAuthorityCanSign) {
    const Authority ours = authority();
    const auto a = ours.issue("a", {}, 30, kNow, dir_ / "a");
    const auto b = ours.issue("b", {}, 30, kNow, dir_ / "b");
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_EQ(ours.revoke("c", kNow).status().code(), absl::StatusCode::kNotFound);
    ASSERT_EQ(ours.revoke("a", kNow)->size(), 1u);
    EXPECT_EQ(ours.revoke("a", kNow)->size(), 0u) << "it was revoked before";
    EXPECT_THAT(*ours.revoked(), ElementsAre(a->serial));
    ASSERT_EQ(ours.revoke(b->serial, kNow)->size(), 1u);
    EXPECT_EQ(ours.revoked()->size(), 2u);
    const Authority others = authority("others");
    const std::string crl = read(dir_ / "authority/crl.pem");
    EXPECT_FALSE(revokedBy(crl, read(dir_ / "others/ca.pem")).ok());
    EXPECT_FALSE(revokedBy("nonsense", read(dir_ / "authority/ca.pem")).ok());
    EXPECT_TRUE(
        revokedBy(crl, read(dir_ / "others/ca.pem") + read(dir_ / "authority/ca.pem")).ok());
}

TEST_F(CertificatesTest, AnOlderListGivesNoCertificateBack) {
    const Authority ours = authority();
    const std::string ca = read(dir_ / "authority/ca.pem");
    std::vector<std::string> lists;
    for (const std::string name : {"a", "b"}) {
        ASSERT_TRUE(ours.issue(name, {}, 30, kNow, dir_ / name).ok());
        ASSERT_TRUE(ours.revoke(name, kNow).ok()) << "within the same second";
        lists.push_back(read(dir_ / "authority/crl.pem"));
    }
    RevokedLists taken;
    EXPECT_EQ(taken.take(lists[0], ca)->size(), 1u);
    EXPECT_EQ(taken.take(lists[1], ca)->size(), 2u);
    const absl::Status older = taken.take(lists[0], ca).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(older)) << older;
    EXPECT_EQ(taken.take(lists[1], ca)->size(), 2u) << "the same again";
    const Authority others = authority("others");
    ASSERT_TRUE(others.issue("c", {}, 30, kNow, dir_ / "c").ok());
    ASSERT_TRUE(others.revoke("c", kNow - 1000).ok());
    EXPECT_TRUE(taken.take(read(dir_ / "others/crl.pem"), ca + read(dir_ / "others/ca.pem")).ok())
        << "another authority has times of its own";
}

}  // namespace
}  // namespace bulkhead::access
