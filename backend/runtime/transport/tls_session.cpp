// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/tls_session.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace bulkhead::runtime {
namespace {

/// Taken off a blocking socket, and given to it, in one call.
constexpr size_t kSocketBytes = size_t{64} << 10;

}  // namespace

struct TlsSession::Callbacks {
    static TlsSession& of(SSL* ssl) { return *static_cast<TlsSession*>(SSL_get_app_data(ssl)); }
    static unsigned int put(const Secret& key, unsigned char* psk, unsigned int room) {
        if (room < sizeof key.words) return 0;
        std::memcpy(psk, key.words.data(), sizeof key.words);
        return sizeof key.words;
    }
    static unsigned int asClient(SSL* ssl, const char*, char* identity, unsigned int identityRoom,
                                 unsigned char* psk, unsigned int room) {
        const TlsSession& self = of(ssl);
        if (self.identity_.empty() || self.identity_.size() >= identityRoom) return 0;
        std::memcpy(identity, self.identity_.c_str(), self.identity_.size() + 1);
        return put(self.key_, psk, room);
    }
    static unsigned int asServer(SSL* ssl, const char* identity, unsigned char* psk,
                                 unsigned int room) {
        TlsSession& self = of(ssl);
        const std::optional<Secret> key = self.keyOf_(identity);
        if (!key) return 0;
        self.identity_ = identity;
        return put(*key, psk, room);
    }
    /// OpenSSL's own sockets send without MSG_NOSIGNAL.
    static BIO_METHOD* makeSocketMethod() {
        BIO_METHOD* method = ::BIO_meth_new(::BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket");
        ::BIO_meth_set_write_ex(method, [](BIO* bio, const char* data, size_t n, size_t* done) {
            return moved(bio, ::send(socketOf(bio), data, n, MSG_NOSIGNAL), done);
        });
        ::BIO_meth_set_read_ex(method, [](BIO* bio, char* data, size_t n, size_t* done) {
            return moved(bio, ::recv(socketOf(bio), data, n, 0), done);
        });
        ::BIO_meth_set_ctrl(method, [](BIO*, int what, long, void*) -> long {
            return what == BIO_CTRL_FLUSH ? 1 : 0;
        });
        return method;
    }
    static BIO_METHOD* socketMethod() {
        static BIO_METHOD* const made = makeSocketMethod();
        return made;
    }
    static int socketOf(BIO* bio) {
        return static_cast<int>(reinterpret_cast<intptr_t>(::BIO_get_data(bio)));
    }
    static int moved(BIO* bio, ssize_t n, size_t* done) {
        BIO_clear_retry_flags(bio);
        if (n < 0 && errno == EINTR) BIO_set_retry_special(bio);
        *done = n > 0 ? static_cast<size_t>(n) : 0;
        return n > 0 ? 1 : 0;
    }
    static SSL_CTX* makeContext() {
        SSL_CTX* context = ::SSL_CTX_new(::TLS_method());
        SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
        // A pre-shared key given by these callbacks goes with SHA-256.
        ::SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256");
        SSL_CTX_set1_groups_list(context, "X25519");
        ::SSL_CTX_set_num_tickets(context, 0);
        SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
        SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
        ::SSL_CTX_set_psk_client_callback(context, &asClient);
        ::SSL_CTX_set_psk_server_callback(context, &asServer);
        return context;
    }
    /// Never freed: sessions may end while the process does.
    static SSL_CTX* context() {
        static SSL_CTX* const made = makeContext();
        return made;
    }
};

TlsSession::TlsSession(const Credential& credential, int socket)
    : ssl_(nullptr, &::SSL_free), identity_(credential.identity), key_(credential.key) {
    begin(false, socket);
}

TlsSession::TlsSession(KeyOf keyOf, int socket)
    : ssl_(nullptr, &::SSL_free), keyOf_(std::move(keyOf)) {
    if (socket >= 0) begin(true, socket);
}

TlsSession::~TlsSession() = default;

void TlsSession::begin(bool listens, int socket) {
    ssl_.reset(::SSL_new(Callbacks::context()));
    SSL_set_app_data(ssl_.get(), this);
    if (socket < 0) {
        ::SSL_set_bio(ssl_.get(), ::BIO_new(::BIO_s_mem()), ::BIO_new(::BIO_s_mem()));
    } else {
        BIO* bio = ::BIO_new(Callbacks::socketMethod());
        ::BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(socket)));
        ::BIO_set_init(bio, 1);
        // A record has 16 KB: several go with one call, or each would wake the other end.
        BIO* several = ::BIO_new(::BIO_f_buffer());
        BIO_set_write_buffer_size(several, static_cast<long>(kSocketBytes));
        ::BIO_up_ref(bio);
        ::SSL_set_bio(ssl_.get(), bio, ::BIO_push(several, bio));
        ::SSL_set_read_ahead(ssl_.get(), 1);
        ::SSL_set_default_read_buffer_len(ssl_.get(), kSocketBytes);
    }
    if (listens) {
        ::SSL_set_accept_state(ssl_.get());
    } else {
        // A certificate in the place of the key is not believed: none is trusted.
        ::SSL_set_verify(ssl_.get(), SSL_VERIFY_PEER, nullptr);
        ::SSL_set_connect_state(ssl_.get());
        if (socket < 0) ::SSL_do_handshake(ssl_.get());
    }
}

bool TlsSession::established() const {
    return ssl_ != nullptr && SSL_is_init_finished(ssl_.get()) == 1;
}

absl::Status TlsSession::failure() {
    const unsigned long error = ::ERR_get_error();
    char text[256] = "";
    ::ERR_error_string_n(error, text, sizeof text);
    ::ERR_clear_error();
    // "error:0A000126:SSL routines::unexpected eof" says it in its last part.
    const char* last = std::strrchr(text, ':');
    const std::string why = last == nullptr ? text : last + 1;
    const int reason = ERR_GET_REASON(error);
    const bool handshake = !wasEstablished_;
    const bool noTls = reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST ||
                       reason == SSL_R_UNEXPECTED_MESSAGE || reason == SSL_R_BAD_PACKET;
    if (handshake && !noTls)
        return absl::PermissionDeniedError(
            absl::StrCat("the two ends have no secret in common (", why, ")"));
    return absl::DataLossError(handshake
                                   ? absl::StrCat("bytes that are no TLS (", why, ")")
                                   : absl::StrCat("bytes were changed on the way (", why, ")"));
}

absl::Status TlsSession::receive(std::string_view wire, std::string& plain) {
    if (ssl_ == nullptr) begin(true, -1);
    ::ERR_clear_error();
    wasEstablished_ = established();
    ::BIO_write(::SSL_get_rbio(ssl_.get()), wire.data(), static_cast<int>(wire.size()));
    char buffer[size_t{16} << 10];
    while (true) {
        const int n = ::SSL_read(ssl_.get(), buffer, sizeof buffer);
        if (n > 0) {
            plain.append(buffer, static_cast<size_t>(n));
            continue;
        }
        const int why = ::SSL_get_error(ssl_.get(), n);
        if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_ZERO_RETURN) return absl::OkStatus();
        return failure();
    }
}

absl::Status TlsSession::send(std::string_view plain) {
    ::ERR_clear_error();
    if (plain.empty()) return absl::OkStatus();
    size_t written = 0;
    if (::SSL_write_ex(ssl_.get(), plain.data(), plain.size(), &written) == 1)
        return absl::OkStatus();
    return failure();
}

/// The status of a readAll() or writeAll() that moved nothing.
absl::Status TlsSession::broken(int result) {
    const int error = errno;
    switch (::SSL_get_error(ssl_.get(), result)) {
        case SSL_ERROR_WANT_READ:
        case SSL_ERROR_WANT_WRITE:
            return absl::OkStatus();  // a signal came between
        case SSL_ERROR_SSL:
            if (ERR_GET_REASON(::ERR_peek_error()) != SSL_R_UNEXPECTED_EOF_WHILE_READING)
                return failure();
            [[fallthrough]];
        case SSL_ERROR_ZERO_RETURN:
            ::ERR_clear_error();
            return absl::UnavailableError("closed by the peer");
        default:
            if (error == EAGAIN || error == EWOULDBLOCK)
                return absl::DeadlineExceededError("no progress in time");
            if (error == 0) return absl::UnavailableError("closed by the peer");
            return absl::UnavailableError(std::strerror(error));
    }
}

absl::Status TlsSession::readAll(void* data, size_t bytes) {
    auto* to = static_cast<char*>(data);
    while (bytes > 0) {
        wasEstablished_ = established();
        ::ERR_clear_error();
        errno = 0;
        size_t n = 0;
        const int result = ::SSL_read_ex(ssl_.get(), to, bytes, &n);
        if (result != 1)
            if (absl::Status s = broken(result); !s.ok()) return s;
        to += n;
        bytes -= n;
    }
    return absl::OkStatus();
}

absl::Status TlsSession::writeAll(const void* data, size_t bytes) {
    while (bytes > 0) {
        wasEstablished_ = established();
        ::ERR_clear_error();
        errno = 0;
        size_t n = 0;
        const int result = ::SSL_write_ex(ssl_.get(), data, bytes, &n);
        if (result == 1) break;
        if (absl::Status s = broken(result); !s.ok()) return s;
    }
    errno = 0;
    if (BIO_flush(::SSL_get_wbio(ssl_.get())) == 1) return absl::OkStatus();
    if (errno == EAGAIN || errno == EWOULDBLOCK)
        return absl::DeadlineExceededError("no progress in time");
    return absl::UnavailableError(std::strerror(errno));
}

std::string TlsSession::takeOutput() {
    if (ssl_ == nullptr) return {};
    BIO* out = ::SSL_get_wbio(ssl_.get());
    std::string bytes(BIO_ctrl_pending(out), '\0');
    if (!bytes.empty()) ::BIO_read(out, bytes.data(), static_cast<int>(bytes.size()));
    return bytes;
}

}  // namespace bulkhead::runtime
