// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <memory>

#include "absl/status/statusor.h"

namespace grpc {
class ServerCredentials;
}

namespace bulkhead::service {

/// TLS for a server whose certificates lie in `folder` (backend/access/certificates.h). The files
/// are read again when they change, so that a renewed certificate needs no restart. Callers may
/// show a certificate: one that `ca.pem` does not vouch for ends the connection; the gate judges
/// whose it is. Errors: those of access::checkCertificates at `nowS`.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> serverCredentials(
    const std::filesystem::path& folder, int64_t nowS);

}  // namespace bulkhead::service
