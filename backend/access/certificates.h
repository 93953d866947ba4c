// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

/// Certificates for TLS between consoles and daemons, and a small authority that issues them, for
/// those whose company has none. A folder of certificates, as TLS takes it, has
///   ca.pem    certificates of the authorities that are trusted,
///   cert.pem  its own certificate, and those between it and the authority,
///   key.pem   its private key, mode 0600,
///   crl.pem   of the authority, if some were revoked; only a daemon reads it.
/// An authority's folder has ca.pem, ca.key (mode 0600), crl.pem, and issued/SERIAL.pem.
/// Keys are P-256, signatures ECDSA with SHA-256. Errors name the file and the remedy. Thread: any.
namespace bulkhead::access {

struct Certificate {
    std::string name;                ///< common name; empty: none, several, or one with a NUL
    std::vector<std::string> hosts;  ///< DNS names and IP addresses; none: not a daemon's
    std::string serial;              ///< upper-case hexadecimal digits
    int64_t startsS = 0;             ///< valid from, seconds since 1970
    int64_t endsS = 0;               ///< and up to
};

/// The first certificate in a PEM text. InvalidArgument when there is none.
absl::StatusOr<Certificate> certificateOf(std::string_view pem);
absl::StatusOr<Certificate> readCertificate(const std::filesystem::path& file);

/// Checks a folder of certificates as a whole: all three files, the key private, of the
/// certificate, which is signed by what ca.pem has and valid at `nowS`. Returns the certificate.
absl::StatusOr<Certificate> checkCertificates(const std::filesystem::path& folder, int64_t nowS);

/// An authority that its folder keeps.
class Authority {
  public:
    /// Makes one, valid for ten years. AlreadyExists when the folder has one.
    static absl::StatusOr<Authority> init(const std::filesystem::path& folder,
                                          const std::string& name, int64_t nowS);
    /// NotFound when the folder has none.
    static absl::StatusOr<Authority> open(const std::filesystem::path& folder);

    /// Writes a folder of certificates for `name`: a daemon that is reached as one of `hosts`, or,
    /// with none, somebody who calls one. AlreadyExists when `out` has a certificate.
    absl::StatusOr<Certificate> issue(const std::string& name,
                                      const std::vector<std::string>& hosts, int days, int64_t nowS,
                                      const std::filesystem::path& out) const;
    /// A new certificate for the name, the hosts and the key of the folder `out`; replaces cert.pem
    /// at once, so that a daemon can read it at any time.
    absl::StatusOr<Certificate> renew(int days, int64_t nowS,
                                      const std::filesystem::path& out) const;
    /// Every certificate that this authority issued.
    absl::StatusOr<std::vector<Certificate>> issued() const;
    /// Adds the certificate with this serial number, or all of this name, to crl.pem. NotFound when
    /// it issued none. Returns those that were not revoked before.
    absl::StatusOr<std::vector<Certificate>> revoke(const std::string& nameOrSerial,
                                                    int64_t nowS) const;
    /// Serial numbers in crl.pem.
    absl::StatusOr<std::vector<std::string>> revoked() const;

    const std::filesystem::path& folder() const { return folder_; }

  private:
    explicit Authority(std::filesystem::path folder) : folder_(std::move(folder)) {}
    std::filesystem::path folder_;
};

/// Serial numbers that a crl.pem revokes, if one of the authorities in `caPem` signed it;
/// InvalidArgument otherwise.
absl::StatusOr<std::vector<std::string>> revokedBy(std::string_view crlPem, std::string_view caPem);

/// The lists of revoked certificates that were put in one place, one after the other: an old one,
/// however genuine, gives no certificate back that a newer one revoked. Thread: externally
/// serialised.
class RevokedLists {
  public:
    /// Does as revokedBy(); FailedPrecondition for a list that its authority issued before the newest of
    /// it that was taken.
    absl::StatusOr<std::vector<std::string>> take(std::string_view crlPem, std::string_view caPem);

  private:
    std::map<std::string, int64_t> newestS_;  ///< when it was issued, Unix time, by authority
};

}  // namespace bulkhead::access
