// SPDX-License-Identifier: Apache-2.0
#include "backend/daemon/agent_key.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "backend/runtime/transport/credential.h"

namespace bulkhead::daemon {
namespace {

constexpr size_t kWordDigits = 16;

}  // namespace

Secret agentKey(const std::string& token, const std::string& node) {
    return Secret::ofText(token).derive(runtime::agentIdentity(node));
}

std::string agentKeyText(const std::string& token, const std::string& node) {
    std::string out = absl::StrCat(node, ":");
    for (const uint64_t word : agentKey(token, node).words)
        absl::StrAppendFormat(&out, "%016x", word);
    return out;
}

absl::StatusOr<Secret> parseAgentKey(const std::string& text, const std::string& node) {
    const size_t colon = text.rfind(':');
    Secret key;
    bool good =
        colon != std::string::npos && text.size() - colon - 1 == kWordDigits * key.words.size();
    for (size_t i = 0; i < key.words.size() && good; ++i)
        good = absl::SimpleHexAtoi(text.substr(colon + 1 + i * kWordDigits, kWordDigits),
                                   &key.words[i]);
    if (!good)
        return absl::InvalidArgumentError(
            "expected NODE:KEY, as bulkheadd --print-agent-key NODE prints it");
    if (text.substr(0, colon) != node)
        return absl::FailedPreconditionError(
            absl::StrCat("it is the key of node ", text.substr(0, colon), ", and this is node ",
                         node, ": name its own, or another --node"));
    return key;
}

}  // namespace bulkhead::daemon
