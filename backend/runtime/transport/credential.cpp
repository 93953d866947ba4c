// SPDX-License-Identifier: Apache-2.0
#include "backend/runtime/transport/credential.h"

#include "absl/strings/str_cat.h"

namespace bulkhead::runtime {
namespace {

constexpr std::string_view kRank = "rank ";

}  // namespace

std::string agentIdentity(std::string_view node) {
    return "agent " + std::string(node);
}

std::string rankIdentity(std::string_view run, RankId rank, uint32_t incarnation) {
    return absl::StrCat(std::string(kRank), std::string(run), " r", rank.replica, "s", rank.shard,
                        " ", incarnation);
}

std::optional<std::string_view> runOfIdentity(std::string_view identity) {
    if (!identity.starts_with(kRank)) return std::nullopt;
    identity.remove_prefix(kRank.size());
    return identity.substr(0, identity.find(' '));
}

Credential joinerCredential(const Secret& key) {
    return {absl::StrCat("joiner ", absl::Hex(key.derive("name").words[0])), key};
}

}  // namespace bulkhead::runtime
