// SPDX-License-Identifier: Apache-2.0
#include "backend/access/access_list.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "backend/common/digest.h"
#include "backend/common/file_system.h"
#include "backend/common/secret.h"
#include "backend/model/names.h"
#include "backend/model/toml_reader.h"

namespace bulkhead::access {
namespace {

using model::concat;

constexpr uint64_t kMostBytes = 1 << 20;
constexpr size_t kHashDigits = 64;

bool isHash(std::string_view text) {
    return text.size() == kHashDigits &&
           text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

/// "key: what is wrong", or empty.
std::string wrongWith(const Principal& principal, const AccessList& before) {
    if (!model::isFileName(principal.name))
        return concat("name: expected ", model::kFileNameRule, ", found \"", principal.name, "\"");
    if (before.named(principal.name) != nullptr)
        return concat("name: expected each name once, found \"", principal.name, "\" again");
    for (const std::string& token : principal.tokens)
        if (!isHash(token))
            return "tokens: expected the SHA-256 of each token, 64 of 0-9 and a-f; make one with "
                   "bulkheadctl access add NAME --token";
    if (!expiryOf(principal))
        return concat("expires: expected a day such as \"2027-01-31\", found \"", principal.expires,
                      "\"");
    if (principal.certificate.find_first_of("\"\\\n\r") != std::string::npos)
        return "certificate: expected a common name without quotes, backslashes and line breaks";
    const std::string& common =
        principal.certificate.empty() ? principal.name : principal.certificate;
    if (before.withCertificate(common) != nullptr)
        return concat("certificate: expected each common name once, found \"", common, "\" again");
    return {};
}

}  // namespace

std::string freshToken() {
    const Secret secret = Secret::random();
    return sha256Hex(
        std::string_view(reinterpret_cast<const char*>(secret.words.data()), sizeof secret.words));
}

std::optional<int64_t> expiryOf(const Principal& principal) {
    const std::string& day = principal.expires;
    if (day.empty()) return std::numeric_limits<int64_t>::max();
    if (day.size() != 10 || day[4] != '-' || day[7] != '-') return std::nullopt;
    int part[3] = {0, 0, 0};
    size_t at = 0;
    for (const char c : day) {
        if (c == '-')
            ++at;
        else if (c >= '0' && c <= '9' && at < 3)
            part[at] = 10 * part[at] + (c - '0');
        else
            return std::nullopt;
    }
    const std::chrono::year_month_day date{std::chrono::year(part[0]),
                                           std::chrono::month(static_cast<unsigned>(part[1])),
                                           std::chrono::day(static_cast<unsigned>(part[2]))};
    if (!date.ok()) return std::nullopt;
    return std::chrono::sys_days(date).time_since_epoch() / std::chrono::seconds(1);
}

absl::StatusOr<AccessList> AccessList::parse(std::string_view text, const std::string& file) {
    toml::table table;
    if (absl::Status status = model::parseToml(text, file, table); !status.ok()) return status;
    AccessList list;
    for (const auto& [key, node] : table)
        if (key.str() != "principal")
            return absl::InvalidArgumentError(
                concat(file, ":", node.source().begin.line, ": expected [[principal]], found \"",
                       model::shortened(std::string_view(key.str()), 60), "\""));
    const toml::array* all = table["principal"].as_array();
    if (table.contains("principal") && all == nullptr)
        return absl::InvalidArgumentError(file + ": principal: expected [[principal]] tables");
    for (size_t i = 0; all != nullptr && i < all->size(); ++i) {
        model::TomlReader reader(file);
        const toml::table* one = all->get(i)->as_table();
        if (one == nullptr)
            return absl::InvalidArgumentError(file + ": principal: expected [[principal]] tables");
        Principal principal;
        reader.readTable(*one, principal);
        if (reader.failed()) return reader.status();
        if (!one->contains("role"))
            return absl::InvalidArgumentError(
                concat(file, ":", one->source().begin.line,
                       ": role: missing, expected viewer, operator or admin"));
        if (const std::string wrong = wrongWith(principal, list); !wrong.empty())
            return absl::InvalidArgumentError(reader.located(wrong));
        list.put(std::move(principal));
    }
    return list;
}

absl::StatusOr<AccessList> AccessList::read(const std::string& file) {
    const auto text = readTrusted(file, kMostBytes);
    if (!text.ok()) return text.status();
    return parse(*text, file);
}

std::string AccessList::text() const {
    std::string out =
        "# People and programs that may call this daemon. Written by bulkheadctl access; the "
        "daemon "
        "reads it again when it changes.\n";
    for (const Principal& p : principals_) {
        out += concat("\n[[principal]]\nname = \"", p.name, "\"\nrole = \"", enumName(p.role),
                      "\"\nfaults = ", p.faults ? "true" : "false", "\n");
        if (!p.tokens.empty())
            out += concat("tokens = [\"", model::joined(p.tokens, "\", \""), "\"]\n");
        if (!p.certificate.empty()) out += concat("certificate = \"", p.certificate, "\"\n");
        if (!p.expires.empty()) out += concat("expires = \"", p.expires, "\"\n");
    }
    return out;
}

const Principal* AccessList::named(std::string_view name) const {
    for (const Principal& principal : principals_)
        if (principal.name == name) return &principal;
    return nullptr;
}

const Principal* AccessList::withToken(std::string_view shown) const {
    const std::string hash = sha256Hex(shown);
    for (const Principal& principal : principals_)
        if (std::ranges::find(principal.tokens, hash) != principal.tokens.end()) return &principal;
    return nullptr;
}

const Principal* AccessList::withCertificate(std::string_view commonName) const {
    for (const Principal& p : principals_)
        if ((p.certificate.empty() ? p.name : p.certificate) == commonName) return &p;
    return nullptr;
}

void AccessList::put(Principal principal) {
    remove(principal.name);
    const auto at = std::ranges::lower_bound(principals_, principal.name, {}, &Principal::name);
    principals_.insert(at, std::move(principal));
}

bool AccessList::remove(std::string_view name) {
    return std::erase_if(principals_, [&](const Principal& p) { return p.name == name; }) != 0;
}

}  // namespace bulkhead::access
