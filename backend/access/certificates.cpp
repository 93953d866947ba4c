// SPDX-License-Identifier: Apache-2.0
#include "backend/access/certificates.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "backend/common/file_system.h"
#include "backend/model/names.h"

namespace bulkhead::access {
namespace {

namespace fs = std::filesystem;
using model::concat;

constexpr uint64_t kMostBytes = 1 << 20;
constexpr int64_t kDayS = 86400;
constexpr int kAuthorityDays = 3650;
/// Clocks of machines differ.
constexpr int64_t kEarlierS = 300;
constexpr int kSerialBits = 127;

template <auto Free>
struct Freed {
    template <class T>
    void operator()(T* what) const {
        Free(what);
    }
};
using Key = std::unique_ptr<EVP_PKEY, Freed<&EVP_PKEY_free>>;
using X509Ptr = std::unique_ptr<X509, Freed<&X509_free>>;
using CrlPtr = std::unique_ptr<X509_CRL, Freed<&X509_CRL_free>>;
using BioPtr = std::unique_ptr<BIO, Freed<&BIO_free>>;
using NumberPtr = std::unique_ptr<BIGNUM, Freed<&BN_free>>;

BioPtr bioOf(std::string_view text) {
    return BioPtr(::BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

template <class Write>
std::string pemOf(Write write) {
    const BioPtr bio(::BIO_new(::BIO_s_mem()));
    write(bio.get());
    char* bytes = nullptr;
    const long size = BIO_get_mem_data(bio.get(), &bytes);
    return std::string(bytes, static_cast<size_t>(size));
}
std::string pemOf(X509* certificate) {
    return pemOf([&](BIO* bio) { ::PEM_write_bio_X509(bio, certificate); });
}
std::string pemOf(EVP_PKEY* key) {
    return pemOf([&](BIO* bio) {
        ::PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
    });
}

X509Ptr x509Of(std::string_view pem) {
    X509Ptr out(::PEM_read_bio_X509(bioOf(pem).get(), nullptr, nullptr, nullptr));
    ::ERR_clear_error();
    return out;
}
std::vector<X509Ptr> allOf(std::string_view pem) {
    std::vector<X509Ptr> out;
    const BioPtr bio = bioOf(pem);
    while (X509* one = ::PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr))
        out.emplace_back(one);
    ::ERR_clear_error();
    return out;
}
Key keyOf(std::string_view pem) {
    // A key with a passphrase would ask the terminal: it is refused by an empty answer.
    const auto none = [](char*, int, int, void*) { return 0; };
    Key out(::PEM_read_bio_PrivateKey(bioOf(pem).get(), nullptr, none, nullptr));
    ::ERR_clear_error();
    return out;
}

std::string serialOf(const ASN1_INTEGER* serial) {
    const NumberPtr number(::ASN1_INTEGER_to_BN(serial, nullptr));
    char* digits = ::BN_bn2hex(number.get());
    std::string out(digits);
    ::OPENSSL_free(digits);
    return out;
}

int64_t secondsOf(const ASN1_TIME* time) {
    std::tm parts{};
    if (::ASN1_TIME_to_tm(time, &parts) != 1) return 0;
    return static_cast<int64_t>(::timegm(&parts));
}

/// Empty where there is none, or where it could be taken for another: of several, or with a NUL.
std::string commonNameOf(const X509_NAME* subject) {
    const int at = ::X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
    if (at < 0 || ::X509_NAME_get_index_by_NID(subject, NID_commonName, at) >= 0) return {};
    const ASN1_STRING* name = ::X509_NAME_ENTRY_get_data(::X509_NAME_get_entry(subject, at));
    std::string text(reinterpret_cast<const char*>(::ASN1_STRING_get0_data(name)),
                     static_cast<size_t>(::ASN1_STRING_length(name)));
    return text.find('\0') == text.npos ? text : std::string();
}

Certificate factsOf(X509* certificate) {
    Certificate out;
    out.name = commonNameOf(::X509_get_subject_name(certificate));
    out.serial = serialOf(::X509_get0_serialNumber(certificate));
    out.startsS = secondsOf(::X509_get0_notBefore(certificate));
    out.endsS = secondsOf(::X509_get0_notAfter(certificate));
    auto* names = static_cast<GENERAL_NAMES*>(
        ::X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
    for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) {
        const GENERAL_NAME* one = sk_GENERAL_NAME_value(names, i);
        if (one->type != GEN_DNS && one->type != GEN_IPADD) continue;
        const ASN1_STRING* text = one->type == GEN_DNS ? one->d.dNSName : one->d.iPAddress;
        const unsigned char* bytes = ::ASN1_STRING_get0_data(text);
        const int size = ::ASN1_STRING_length(text);
        char shown[INET6_ADDRSTRLEN] = "";
        if (one->type == GEN_DNS)
            out.hosts.emplace_back(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
        else if (::inet_ntop(size == 4 ? AF_INET : AF_INET6, bytes, shown, sizeof shown) != nullptr)
            out.hosts.emplace_back(shown);
    }
    ::GENERAL_NAMES_free(names);
    return out;
}

absl::StatusOr<std::string> readText(const fs::path& file) {
    return readAtMost(file.string(), kMostBytes);
}

absl::StatusOr<std::string> readKeyText(const fs::path& file) {
    struct stat info {};
    if (::stat(file.c_str(), &info) == 0 && (info.st_mode & 077) != 0)
        return absl::PermissionDeniedError(
            concat(file.string(), " can be read by others; run chmod 600 ", file.string()));
    return readTrusted(file.string(), kMostBytes);
}

/// New, or in the place of what was there: never half, never readable by others if `mode` is 0600.
absl::Status write(const fs::path& file, const std::string& text, mode_t mode) {
    // writeDurably makes files with mode 0600.
    if (absl::Status status = writeDurably(diskFiles(), file.string(), text); !status.ok())
        return status;
    ::chmod(file.c_str(), mode);
    return absl::OkStatus();
}

bool isAddress(const std::string& host) {
    unsigned char bytes[16];
    return ::inet_pton(AF_INET, host.c_str(), bytes) == 1 ||
           ::inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

absl::Status checkHosts(const std::vector<std::string>& hosts) {
    for (const std::string& host : hosts)
        if (host.empty() || host.size() > 253 ||
            (!isAddress(host) &&
             host.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                    "-.*") != std::string::npos))
            return absl::InvalidArgumentError(
                concat("--host: expected a host name or an IP address, found \"", host, "\""));
    return absl::OkStatus();
}

bool extend(X509* certificate, X509* issuer, int nid, const std::string& value) {
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    ::X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
    X509_EXTENSION* extension = ::X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
    if (extension == nullptr) return false;
    const bool added = ::X509_add_ext(certificate, extension, -1) == 1;
    ::X509_EXTENSION_free(extension);
    return added;
}

struct Wanted {
    std::string name;
    std::vector<std::string> hosts;
    bool isAuthority = false;
    int64_t startsS = 0;
    int64_t endsS = 0;
};

/// Null `issuer`: signs itself.
absl::StatusOr<X509Ptr> sign(const Wanted& wanted, EVP_PKEY* key, X509* issuer,
                             EVP_PKEY* issuerKey) {
    X509Ptr out(::X509_new());
    X509* x = out.get();
    X509_NAME* subject = ::X509_get_subject_name(x);
    const NumberPtr serial(::BN_new());
    bool ok = ::X509_set_version(x, 2) == 1 &&
              ::BN_rand(serial.get(), kSerialBits, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) == 1 &&
              ::BN_to_ASN1_INTEGER(serial.get(), ::X509_get_serialNumber(x)) != nullptr &&
              ::ASN1_TIME_set(X509_getm_notBefore(x), wanted.startsS) != nullptr &&
              ::ASN1_TIME_set(X509_getm_notAfter(x), wanted.endsS) != nullptr &&
              ::X509_set_pubkey(x, key) == 1 &&
              ::X509_NAME_add_entry_by_txt(
                  subject, "CN", MBSTRING_UTF8,
                  reinterpret_cast<const unsigned char*>(wanted.name.c_str()), -1, -1, 0) == 1;
    X509* const by = issuer != nullptr ? issuer : x;
    ok =
        ok && ::X509_set_issuer_name(x, ::X509_get_subject_name(by)) == 1 &&
        extend(x, by, NID_basic_constraints,
               wanted.isAuthority ? "critical,CA:TRUE,pathlen:0" : "critical,CA:FALSE") &&
        extend(x, by, NID_key_usage,
               wanted.isAuthority ? "critical,keyCertSign,cRLSign" : "critical,digitalSignature") &&
        extend(x, by, NID_subject_key_identifier, "hash") &&
        extend(x, by, NID_authority_key_identifier, "keyid:always");
    if (!wanted.isAuthority) {
        // A daemon's certificate proves nobody who calls, and a caller's no daemon.
        ok = ok &&
             extend(x, by, NID_ext_key_usage, wanted.hosts.empty() ? "clientAuth" : "serverAuth");
        std::string hosts;
        for (const std::string& host : wanted.hosts)
            hosts += concat(hosts.empty() ? "" : ",", isAddress(host) ? "IP:" : "DNS:", host);
        ok = ok && (hosts.empty() || extend(x, by, NID_subject_alt_name, hosts));
    }
    ok = ok && ::X509_sign(x, issuerKey, ::EVP_sha256()) > 0;
    ::ERR_clear_error();
    if (!ok)
        return absl::InvalidArgumentError(concat("no certificate can be made for \"", wanted.name,
                                                 "\"; use a shorter name and plain host names"));
    return out;
}

struct Signer {
    X509Ptr certificate;
    Key key;
};

absl::StatusOr<Signer> signerOf(const fs::path& folder) {
    const auto certificate = readText(folder / "ca.pem");
    if (!certificate.ok()) return certificate.status();
    const auto key = readKeyText(folder / "ca.key");
    if (!key.ok()) return key.status();
    Signer out{x509Of(*certificate), keyOf(*key)};
    if (!out.certificate || !out.key ||
        ::X509_check_private_key(out.certificate.get(), out.key.get()) != 1) {
        ::ERR_clear_error();
        return absl::DataLossError(concat(folder.string(),
                                          ": ca.pem and ca.key are no certificate and its key; "
                                          "restore the folder from a copy"));
    }
    return out;
}

absl::StatusOr<CrlPtr> crlOf(std::string_view pem) {
    CrlPtr crl(::PEM_read_bio_X509_CRL(bioOf(pem).get(), nullptr, nullptr, nullptr));
    ::ERR_clear_error();
    if (!crl) return absl::InvalidArgumentError("no list of revoked certificates");
    return crl;
}

std::vector<std::string> serialsOf(X509_CRL* crl) {
    std::vector<std::string> out;
    const STACK_OF(X509_REVOKED)* all = ::X509_CRL_get_REVOKED(crl);
    for (int i = 0; i < sk_X509_REVOKED_num(all); ++i)
        out.push_back(serialOf(::X509_REVOKED_get0_serialNumber(sk_X509_REVOKED_value(all, i))));
    return out;
}

/// A list of revoked certificates, of which an authority vouched that it is its own.
struct RevokedList {
    std::vector<std::string> serials;
    int64_t issuedS = 0;
    std::string authority;  ///< its public key
};

std::string keyOf(X509* certificate) {
    unsigned char* der = nullptr;
    const int bytes = ::i2d_X509_PUBKEY(::X509_get_X509_PUBKEY(certificate), &der);
    std::string key(reinterpret_cast<const char*>(der), bytes > 0 ? static_cast<size_t>(bytes) : 0);
    ::OPENSSL_free(der);
    return key;
}

absl::StatusOr<RevokedList> listOf(std::string_view crlPem, std::string_view caPem) {
    auto crl = crlOf(crlPem);
    if (!crl.ok()) return crl.status();
    for (const X509Ptr& root : allOf(caPem)) {
        const bool its = ::X509_CRL_verify(crl->get(), ::X509_get0_pubkey(root.get())) == 1;
        ::ERR_clear_error();
        if (its)
            return RevokedList{serialsOf(crl->get()),
                               secondsOf(::X509_CRL_get0_lastUpdate(crl->get())),
                               keyOf(root.get())};
    }
    return absl::InvalidArgumentError(
        "expected the list of an authority in ca.pem, found another's");
}

/// Empty where nothing was revoked yet.
absl::StatusOr<RevokedList> listIn(const fs::path& authority) {
    if (!fs::exists(authority / "crl.pem")) return RevokedList();
    const auto text = readText(authority / "crl.pem");
    if (!text.ok()) return text.status();
    const auto ca = readText(authority / "ca.pem");
    if (!ca.ok()) return ca.status();
    return listOf(*text, *ca);
}

absl::Status keep(const fs::path& authority, X509* certificate) {
    const std::string serial = serialOf(::X509_get0_serialNumber(certificate));
    return write(authority / "issued" / (serial + ".pem"), pemOf(certificate), 0600);
}

absl::Status makeFolder(const fs::path& folder) {
    std::error_code error;
    if (fs::create_directories(folder, error)) ::chmod(folder.c_str(), 0700);
    if (error)
        return absl::PermissionDeniedError(
            concat(folder.string(), " cannot be made: ", error.message(), "; name another folder"));
    return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Certificate> certificateOf(std::string_view pem) {
    const X509Ptr certificate = x509Of(pem);
    if (!certificate) return absl::InvalidArgumentError("no certificate in PEM form");
    return factsOf(certificate.get());
}

absl::StatusOr<Certificate> readCertificate(const fs::path& file) {
    const auto text = readText(file);
    if (!text.ok()) return text.status();
    auto facts = certificateOf(*text);
    if (!facts.ok())
        return absl::InvalidArgumentError(
            concat(file.string(),
                   ": expected a certificate in PEM form; make one with "
                   "bulkheadctl certs issue"));
    return facts;
}

absl::StatusOr<Certificate> checkCertificates(const fs::path& folder, int64_t nowS) {
    const auto named = [&](const char* file, std::string_view problem) {
        return absl::InvalidArgumentError(concat((folder / file).string(), ": ", problem));
    };
    const auto ca = readText(folder / "ca.pem");
    if (!ca.ok()) return ca.status();
    const auto own = readText(folder / "cert.pem");
    if (!own.ok()) return own.status();
    const auto secret = readKeyText(folder / "key.pem");
    if (!secret.ok()) return secret.status();
    const std::vector<X509Ptr> roots = allOf(*ca);
    if (roots.empty()) return named("ca.pem", "expected certificates in PEM form, found none");
    const std::vector<X509Ptr> chain = allOf(*own);
    if (chain.empty()) return named("cert.pem", "expected a certificate in PEM form, found none");
    const Key key = keyOf(*secret);
    if (!key) return named("key.pem", "expected a private key in PEM form without a passphrase");
    if (::X509_check_private_key(chain[0].get(), key.get()) != 1) {
        ::ERR_clear_error();
        return named("key.pem", "expected the key of cert.pem, found another; issue both anew");
    }
    const std::unique_ptr<X509_STORE, Freed<&X509_STORE_free>> store(::X509_STORE_new());
    for (const X509Ptr& root : roots) ::X509_STORE_add_cert(store.get(), root.get());
    STACK_OF(X509)* between = sk_X509_new_null();
    for (size_t i = 1; i < chain.size(); ++i) sk_X509_push(between, chain[i].get());
    const std::unique_ptr<X509_STORE_CTX, Freed<&X509_STORE_CTX_free>> check(
        ::X509_STORE_CTX_new());
    ::X509_STORE_CTX_init(check.get(), store.get(), chain[0].get(), between);
    ::X509_STORE_CTX_set_time(check.get(), 0, static_cast<time_t>(nowS));
    const bool trusted = ::X509_verify_cert(check.get()) == 1;
    const std::string why =
        ::X509_verify_cert_error_string(::X509_STORE_CTX_get_error(check.get()));
    sk_X509_free(between);
    ::ERR_clear_error();
    if (!trusted)
        return named("cert.pem", concat("not trusted by ca.pem (", why,
                                        "); renew it with bulkheadctl certs renew"));
    return factsOf(chain[0].get());
}

absl::StatusOr<Authority> Authority::init(const fs::path& folder, const std::string& name,
                                          int64_t nowS) {
    if (absl::Status status = makeFolder(folder / "issued"); !status.ok()) return status;
    const auto held = holdFolder(folder.string());
    if (!held.ok()) return held.status();
    if (fs::exists(folder / "ca.key"))
        return absl::AlreadyExistsError(concat(folder.string(),
                                               " has an authority; use it, or name another folder "
                                               "with --authority"));
    ::chmod(folder.c_str(), 0700);
    const Key key(::EVP_EC_gen("P-256"));
    auto root = sign({name, {}, true, nowS - kEarlierS, nowS + kAuthorityDays * kDayS}, key.get(),
                     nullptr, key.get());
    if (!root.ok()) return root.status();
    if (absl::Status status = write(folder / "ca.pem", pemOf(root->get()), 0644); !status.ok())
        return status;
    // The key last: with it the folder has an authority.
    if (absl::Status status = write(folder / "ca.key", pemOf(key.get()), 0600); !status.ok())
        return status;
    return Authority(folder);
}

absl::StatusOr<Authority> Authority::open(const fs::path& folder) {
    if (!fs::exists(folder / "ca.key"))
        return absl::NotFoundError(
            concat(folder.string(),
                   " has no authority; make one with bulkheadctl certs init, "
                   "or name its folder with --authority"));
    return Authority(folder);
}

absl::StatusOr<Certificate> Authority::issue(const std::string& name,
                                             const std::vector<std::string>& hosts, int days,
                                             int64_t nowS, const fs::path& out) const {
    if (!model::isFileName(name))
        return absl::InvalidArgumentError(
            concat("name: expected ", model::kFileNameRule, ", found \"", name, "\""));
    if (absl::Status status = checkHosts(hosts); !status.ok()) return status;
    const auto held = holdFolder(folder_.string());
    if (!held.ok()) return held.status();
    if (fs::exists(out / "cert.pem") || fs::exists(out / "key.pem"))
        return absl::AlreadyExistsError(
            concat(out.string(),
                   " has a certificate; renew it with bulkheadctl certs "
                   "renew, or name another folder with --out"));
    auto signer = signerOf(folder_);
    if (!signer.ok()) return signer.status();
    const Key key(::EVP_EC_gen("P-256"));
    auto made = sign({name, hosts, false, nowS - kEarlierS, nowS + days * kDayS}, key.get(),
                     signer->certificate.get(), signer->key.get());
    if (!made.ok()) return made.status();
    if (absl::Status status = makeFolder(out); !status.ok()) return status;
    if (absl::Status status = keep(folder_, made->get()); !status.ok()) return status;
    if (absl::Status status = write(out / "key.pem", pemOf(key.get()), 0600); !status.ok())
        return status;
    if (absl::Status status = write(out / "ca.pem", pemOf(signer->certificate.get()), 0644);
        !status.ok())
        return status;
    if (absl::Status status = write(out / "cert.pem", pemOf(made->get()), 0644); !status.ok())
        return status;
    return factsOf(made->get());
}

absl::StatusOr<Certificate> Authority::renew(int days, int64_t nowS, const fs::path& out) const {
    const auto held = holdFolder(folder_.string());
    if (!held.ok()) return held.status();
    const auto old = readCertificate(out / "cert.pem");
    if (!old.ok()) return old.status();
    const auto secret = readKeyText(out / "key.pem");
    if (!secret.ok()) return secret.status();
    const Key key = keyOf(*secret);
    if (!key)
        return absl::InvalidArgumentError(
            concat((out / "key.pem").string(), ": expected a private key in PEM form"));
    auto signer = signerOf(folder_);
    if (!signer.ok()) return signer.status();
    auto made = sign({old->name, old->hosts, false, nowS - kEarlierS, nowS + days * kDayS},
                     key.get(), signer->certificate.get(), signer->key.get());
    if (!made.ok()) return made.status();
    if (absl::Status status = keep(folder_, made->get()); !status.ok()) return status;
    if (absl::Status status = write(out / "cert.pem", pemOf(made->get()), 0644); !status.ok())
        return status;
    return factsOf(made->get());
}

absl::StatusOr<std::vector<Certificate>> Authority::issued() const {
    std::vector<Certificate> out;
    for (const std::string& file : diskFiles().list((folder_ / "issued").string())) {
        auto one = readCertificate(folder_ / "issued" / file);
        if (!one.ok()) return one.status();
        out.push_back(*std::move(one));
    }
    std::ranges::sort(out, {}, [](const Certificate& c) { return std::pair(c.name, c.startsS); });
    return out;
}

absl::StatusOr<std::vector<std::string>> Authority::revoked() const {
    auto list = listIn(folder_);
    if (!list.ok()) return list.status();
    return std::move(list->serials);
}

absl::StatusOr<std::vector<Certificate>> Authority::revoke(const std::string& nameOrSerial,
                                                           int64_t nowS) const {
    const auto held = holdFolder(folder_.string());
    if (!held.ok()) return held.status();
    auto signer = signerOf(folder_);
    if (!signer.ok()) return signer.status();
    auto before = listIn(folder_);
    if (!before.ok()) return before.status();
    std::vector<std::string>& serials = before->serials;
    const auto all = issued();
    if (!all.ok()) return all.status();
    std::vector<Certificate> fresh;
    bool known = false;
    for (const Certificate& one : *all) {
        if (one.name != nameOrSerial && one.serial != nameOrSerial) continue;
        known = true;
        if (std::ranges::find(serials, one.serial) == serials.end()) fresh.push_back(one);
    }
    if (!known)
        return absl::NotFoundError(concat("this authority issued nothing to \"", nameOrSerial,
                                          "\"; see bulkheadctl certs list"));
    for (const Certificate& one : fresh) serials.push_back(one.serial);
    const CrlPtr crl(::X509_CRL_new());
    // Later than the list before, whatever the clock says: by that a daemon tells which is newer.
    const int64_t issuedS = std::max(nowS, before->issuedS + 1);
    const std::unique_ptr<ASN1_TIME, Freed<&ASN1_TIME_free>> now(::ASN1_TIME_set(nullptr, issuedS));
    const std::unique_ptr<ASN1_TIME, Freed<&ASN1_TIME_free>> next(
        ::ASN1_TIME_set(nullptr, issuedS + kAuthorityDays * kDayS));
    ::X509_CRL_set_version(crl.get(), 1);
    ::X509_CRL_set_issuer_name(crl.get(), ::X509_get_subject_name(signer->certificate.get()));
    ::X509_CRL_set1_lastUpdate(crl.get(), now.get());
    ::X509_CRL_set1_nextUpdate(crl.get(), next.get());
    for (const std::string& serial : serials) {
        BIGNUM* number = nullptr;
        ::BN_hex2bn(&number, serial.c_str());
        const NumberPtr owned(number);
        const std::unique_ptr<ASN1_INTEGER, Freed<&ASN1_INTEGER_free>> integer(
            ::BN_to_ASN1_INTEGER(number, nullptr));
        X509_REVOKED* entry = ::X509_REVOKED_new();
        ::X509_REVOKED_set_serialNumber(entry, integer.get());
        ::X509_REVOKED_set_revocationDate(entry, now.get());
        ::X509_CRL_add0_revoked(crl.get(), entry);
    }
    ::X509_CRL_sort(crl.get());
    if (::X509_CRL_sign(crl.get(), signer->key.get(), ::EVP_sha256()) <= 0)
        return absl::InternalError("the list of revoked certificates could not be signed");
    const std::string pem = pemOf([&](BIO* bio) { ::PEM_write_bio_X509_CRL(bio, crl.get()); });
    if (absl::Status status = write(folder_ / "crl.pem", pem, 0644); !status.ok()) return status;
    return fresh;
}

absl::StatusOr<std::vector<std::string>> revokedBy(std::string_view crlPem,
                                                   std::string_view caPem) {
    auto list = listOf(crlPem, caPem);
    if (!list.ok()) return list.status();
    return std::move(list->serials);
}

absl::StatusOr<std::vector<std::string>> RevokedLists::take(std::string_view crlPem,
                                                            std::string_view caPem) {
    auto list = listOf(crlPem, caPem);
    if (!list.ok()) return list.status();
    int64_t& newest = newestS_[list->authority];
    if (list->issuedS < newest) {
        const auto text = [](int64_t seconds) {
            return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::FromUnixSeconds(seconds),
                                    absl::UTCTimeZone());
        };
        return absl::FailedPreconditionError(
            concat("the list was issued ", text(list->issuedS), ", and one issued ", text(newest),
                   " was read before: it lacks what was revoked since"));
    }
    newest = list->issuedS;
    return std::move(list->serials);
}

}  // namespace bulkhead::access
