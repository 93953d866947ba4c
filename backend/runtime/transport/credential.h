// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "backend/common/secret.h"
#include "backend/common/types.h"

/// An identity at the other end of a connection is proved by a key that belongs to it and that both
/// ends know. Neither shows it: it goes into the handshake of TLS 1.3 as a pre-shared key
/// (RFC 8446, 2.2). Pure. Thread: any.
namespace bulkhead::runtime {

/// The identity of the end that connects, and its key.
struct Credential {
    std::string identity;  ///< 1 to 200 bytes, no zero among them
    Secret key;
};

/// The end that listens asks it for the key of an identity; nullopt for one that may not come.
/// Called on the thread that does the handshake.
using KeyOf = std::function<std::optional<Secret>(std::string_view identity)>;

/// Identities of the control plane. An agent's key is derived from the controller's secret, a
/// rank's from its job's, both by their identity.
std::string agentIdentity(std::string_view node);
std::string rankIdentity(std::string_view run, RankId rank, uint32_t incarnation);
/// Run of a rankIdentity(); nullopt for any other.
std::optional<std::string_view> runOfIdentity(std::string_view identity);

/// A joiner's, to those that serve it state: the identity names the fetch's key and does not show
/// it.
Credential joinerCredential(const Secret& key);

}  // namespace bulkhead::runtime
