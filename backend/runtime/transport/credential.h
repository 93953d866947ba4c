// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "backend/common/secret.h"
#include "backend/common/types.h"

/// Who is at the other end of a connection, and how that is proved: both ends know a key that
/// belongs to a name. Neither shows it: it goes into the handshake of TLS 1.3 as a pre-shared key
/// (RFC 8446, 2.2). Pure. Thread: any.
namespace bulkhead::runtime {

/// What the end that connects is.
struct Credential {
    std::string identity;  ///< 1 to 200 bytes, no zero among them
    Secret key;
};

/// What the end that listens knows: the key of an identity, nullopt for one that may not come.
/// Called on the thread that does the handshake.
using KeyOf = std::function<std::optional<Secret>(std::string_view identity)>;

/// Identities of the control plane. An agent's key is derived from the controller's secret, a
/// rank's from its job's, both by their identity.
std::string agentIdentity(std::string_view node);
std::string rankIdentity(std::string_view run, RankId rank, uint32_t incarnation);
/// Run of a rankIdentity(); nullopt for any other.
std::optional<std::string_view> runOfIdentity(std::string_view identity);

}  // namespace bulkhead::runtime
