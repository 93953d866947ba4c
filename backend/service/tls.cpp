// SPDX-License-Identifier: Apache-2.0
#include "backend/service/tls.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include "backend/access/certificates.h"

namespace bulkhead::service {

namespace tls = grpc::experimental;

constexpr unsigned kReadAgainS = 1;

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> serverCredentials(
    const std::filesystem::path& folder, int64_t nowS) {
    const auto own = access::checkCertificates(folder, nowS);
    if (!own.ok()) return own.status();
    if (own->hosts.empty())
        return absl::InvalidArgumentError(
            (folder / "cert.pem").string() +
            ": expected a daemon's certificate, found one without host names; issue it with "
            "bulkheadctl certs issue NAME --host HOST");
    tls::TlsServerCredentialsOptions options(std::make_shared<tls::FileWatcherCertificateProvider>(
        (folder / "key.pem").string(), (folder / "cert.pem").string(), (folder / "ca.pem").string(),
        kReadAgainS));
    options.watch_root_certs();
    options.watch_identity_key_cert_pairs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
    return tls::TlsServerCredentials(options);
}

}  // namespace bulkhead::service
