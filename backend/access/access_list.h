// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/common/fields.h"

/// People and programs that may call a daemon, and what each may do: the access file.
namespace bulkhead::access {

/// Each role may do what those before it may.
enum class Role : uint8_t {
    kViewer,    ///< looks: jobs, runs, preflights, replays
    kOperator,  ///< starts, stops and changes jobs
    kAdmin,     ///< ends a private daemon, reads the audit
};

struct Principal {
    std::string name;  ///< model::isFileName
    Role role = Role::kViewer;
    bool faults = false;              ///< may inject faults and start campaigns
    std::vector<std::string> tokens;  ///< SHA-256 of each, 64 hexadecimal digits
    std::string certificate;          ///< common name in its certificate; empty: `name`
    std::string expires;  ///< "2027-01-31": from that day on, UTC, refused; empty: never
    template <class Self, class Visitor>
    static void fields(Self& self, Visitor& visit) {
        visit("name", self.name);
        visit("role", self.role);
        visit("faults", self.faults);
        visit("tokens", self.tokens);
        visit("certificate", self.certificate);
        visit("expires", self.expires);
    }
};

/// 256 random bits as 64 hexadecimal digits.
std::string freshToken();

/// `expires` in seconds since 1970, UTC; nullopt when it is no day. Empty: never, the largest.
std::optional<int64_t> expiryOf(const Principal& principal);

/// The content of an access file. Thread: a value.
class AccessList {
  public:
    /// InvalidArgument with file, line, key, what was expected and what stood there.
    static absl::StatusOr<AccessList> parse(std::string_view text, const std::string& file);
    /// NotFound when there is none, PermissionDenied when others than its owner may write it.
    static absl::StatusOr<AccessList> read(const std::string& file);
    /// The form that parse() reads.
    std::string text() const;

    const std::vector<Principal>& principals() const { return principals_; }
    const Principal* named(std::string_view name) const;
    /// The principal whose token `shown` is: found by its hash, so that time tells nothing of it.
    const Principal* withToken(std::string_view shown) const;
    const Principal* withCertificate(std::string_view commonName) const;

    /// Replaces the one of that name.
    void put(Principal principal);
    /// false: there is none of that name.
    bool remove(std::string_view name);

  private:
    std::vector<Principal> principals_;  ///< by name
};

}  // namespace bulkhead::access

template <>
struct bulkhead::EnumNames<bulkhead::access::Role> {
    static constexpr std::array<std::string_view, 3> kNames = {"viewer", "operator", "admin"};
};
