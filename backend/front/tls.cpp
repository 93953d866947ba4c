// SPDX-License-Identifier: Apache-2.0
#include "backend/front/tls.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <spdlog/spdlog.h>

#include "absl/strings/str_cat.h"
#include "backend/access/certificates.h"

namespace bulkhead::front {
namespace {

/// HTTP/2 over TLS, in the form of ALPN.
constexpr std::string_view kHttp2("\x02h2", 3);
/// A chain of four certificates of RSA-4096 has some 8 KB.
constexpr long kMostCertificates = 16 << 10;
/// Changes of keys that one connection may ask for: gRPC asks for none, and each is work.
constexpr int kMostMessages = 32;

/// The reason of OpenSSL's last error; forgets all of them.
std::string lastError() {
    const unsigned long error = ::ERR_peek_last_error();
    const char* reason = ::ERR_reason_error_string(error);
    ::ERR_clear_error();
    return reason == nullptr ? "no reason" : reason;
}

int chooseProtocol(SSL*, const unsigned char** out, unsigned char* size, const unsigned char* in,
                   unsigned int bytes, void*) {
    unsigned char* chosen = nullptr;
    const int found = ::SSL_select_next_proto(&chosen, size,
                                              reinterpret_cast<const unsigned char*>(kHttp2.data()),
                                              kHttp2.size(), in, bytes);
    *out = chosen;
    return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

}  // namespace

struct ServerTlsSession::Callbacks {
    static void message(int write, int, int type, const void*, size_t, SSL* ssl, void*) {
        auto* self = static_cast<ServerTlsSession*>(SSL_get_app_data(ssl));
        if (write == 0 && type == SSL3_RT_HANDSHAKE && self->established_) ++self->messages_;
    }
};

absl::StatusOr<std::unique_ptr<ServerTls>> ServerTls::open(std::filesystem::path folder,
                                                           const Clock& clock) {
    std::unique_ptr<ServerTls> tls(new ServerTls(std::move(folder), clock));
    const MutexLock lock(tls->mutex_);
    tls->seen_ = tls->look();
    auto context = tls->read();
    if (!context.ok()) return context.status();
    tls->context_ = *std::move(context);
    return tls;
}

std::shared_ptr<ssl_ctx_st> ServerTls::now() {
    const MutexLock lock(mutex_);
    const AllSeen found = look();
    if (found == seen_) return context_;
    seen_ = found;
    if (auto context = read(); context.ok()) {
        context_ = *std::move(context);
        spdlog::info("the certificates in {} were read again", folder_.string());
    } else {
        spdlog::error("{}; the certificates that were there before count",
                      std::string(context.status().message()));
    }
    return context_;
}

ServerTls::AllSeen ServerTls::look() const {
    const auto seen = [&](const char* name) {
        return access::FileStamp::of((folder_ / name).string());
    };
    return {seen("key.pem"), seen("cert.pem"), seen("ca.pem")};
}

absl::StatusOr<std::shared_ptr<ssl_ctx_st>> ServerTls::read() const {
    const auto own = access::checkCertificates(folder_, clock_.unixNs() / kSecond);
    if (!own.ok()) return own.status();
    if (own->hosts.empty())
        return absl::InvalidArgumentError(
            (folder_ / "cert.pem").string() +
            ": expected a daemon's certificate, found one without host names; issue it with "
            "bulkheadctl certs issue NAME --host HOST");
    const std::shared_ptr<ssl_ctx_st> context(::SSL_CTX_new(::TLS_server_method()),
                                              &::SSL_CTX_free);
    SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION);
    ::SSL_CTX_set_num_tickets(context.get(), 0);
    SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
    SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_max_cert_list(context.get(), kMostCertificates);
    ::SSL_CTX_set_alpn_select_cb(context.get(), &chooseProtocol, nullptr);
    ::SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
    ::SSL_CTX_set_msg_callback(context.get(), &ServerTlsSession::Callbacks::message);
    const bool all =
        ::SSL_CTX_use_certificate_chain_file(context.get(), (folder_ / "cert.pem").c_str()) == 1 &&
        ::SSL_CTX_use_PrivateKey_file(context.get(), (folder_ / "key.pem").c_str(),
                                      SSL_FILETYPE_PEM) == 1 &&
        ::SSL_CTX_check_private_key(context.get()) == 1 &&
        ::SSL_CTX_load_verify_file(context.get(), (folder_ / "ca.pem").c_str()) == 1;
    if (!all)
        return absl::InvalidArgumentError(
            absl::StrCat(folder_.string(), ": the certificates cannot be used: ", lastError()));
    return context;
}

ServerTlsSession::ServerTlsSession(const std::shared_ptr<ssl_ctx_st>& context)
    : ssl_(::SSL_new(context.get()), &::SSL_free) {
    SSL_set_app_data(ssl_.get(), this);
    ::SSL_set_bio(ssl_.get(), ::BIO_new(::BIO_s_mem()), ::BIO_new(::BIO_s_mem()));
    ::SSL_set_accept_state(ssl_.get());
}

absl::Status ServerTlsSession::receive(std::string_view wire, std::string& plain) {
    ::ERR_clear_error();
    ::BIO_write(::SSL_get_rbio(ssl_.get()), wire.data(), static_cast<int>(wire.size()));
    char buffer[size_t{16} << 10];
    while (messages_ <= kMostMessages) {
        const int n = ::SSL_read(ssl_.get(), buffer, sizeof buffer);
        established_ = established_ || SSL_is_init_finished(ssl_.get()) == 1;
        if (n > 0) {
            plain.append(buffer, static_cast<size_t>(n));
            continue;
        }
        const int why = ::SSL_get_error(ssl_.get(), n);
        if (why == SSL_ERROR_WANT_READ) return absl::OkStatus();
        if (why == SSL_ERROR_ZERO_RETURN) return absl::UnavailableError("ended by the peer");
        return absl::InvalidArgumentError(absl::StrCat(
            established() ? "What came is not what was sent" : "The TLS handshake failed", " (",
            lastError(), ")."));
    }
    return absl::InvalidArgumentError(
        absl::StrCat("It asked for new keys more than ", kMostMessages, " times."));
}

absl::Status ServerTlsSession::send(std::string_view plain) {
    ::ERR_clear_error();
    size_t written = 0;
    if (plain.empty() || ::SSL_write_ex(ssl_.get(), plain.data(), plain.size(), &written) == 1)
        return absl::OkStatus();
    return absl::InternalError(lastError());
}

void ServerTlsSession::end() {
    if (established()) ::SSL_shutdown(ssl_.get());
    ::ERR_clear_error();
}

std::string ServerTlsSession::takeOutput() {
    BIO* out = ::SSL_get_wbio(ssl_.get());
    std::string bytes(BIO_ctrl_pending(out), '\0');
    if (!bytes.empty()) ::BIO_read(out, bytes.data(), static_cast<int>(bytes.size()));
    return bytes;
}

std::string ServerTlsSession::certificate() const {
    X509* shown = ::SSL_get0_peer_certificate(ssl_.get());
    if (shown == nullptr) return {};
    const std::unique_ptr<BIO, int (*)(BIO*)> text(::BIO_new(::BIO_s_mem()), &::BIO_free);
    ::PEM_write_bio_X509(text.get(), shown);
    char* bytes = nullptr;
    const long size = BIO_get_mem_data(text.get(), &bytes);
    return {bytes, static_cast<size_t>(size)};
}

}  // namespace bulkhead::front
