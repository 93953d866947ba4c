// SPDX-License-Identifier: Apache-2.0
// The verbs access, certs and audit: callers of a daemon.
#include "backend/access/access_list.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "backend/access/audit_log.h"
#include "backend/access/certificates.h"
#include "backend/cli/cli.h"
#include "backend/cli/session.h"
#include "backend/cli/text.h"
#include "backend/common/clock.h"
#include "backend/common/digest.h"
#include "backend/common/file_system.h"
#include "backend/model/json.h"
#include "backend/model/names.h"

namespace bulkhead::cli {
namespace {

namespace fs = std::filesystem;
using access::AccessList;
using access::Authority;
using access::Certificate;
using access::Principal;
using model::concat;

constexpr int64_t kSecondNs = 1'000'000'000;

int64_t nowS() {
    return SystemClock().unixNs() / kSecondNs;
}

client::FailureCode codeOf(const absl::Status& status) {
    if (absl::IsNotFound(status)) return client::FailureCode::kNotFound;
    if (absl::IsAlreadyExists(status)) return client::FailureCode::kRefused;
    return client::FailureCode::kInvalid;
}

int failed(const Cli& cli, const std::string& title, const absl::Status& status) {
    return fail(cli, localFailure(codeOf(status), title, std::string(status.message())));
}

void print(const Cli& cli, const model::Json& json, const std::string& text) {
    std::printf("%s\n", cli.json ? model::dumpJson(json).c_str() : text.c_str());
}

// --- access -------------------------------------------------------------------------------------

struct AccessOptions {
    std::string file;
    Principal principal;
    std::string role = "viewer";
    bool token = false;
    std::string tokenOut;
};

/// The list in the file; of nobody where there is none.
absl::StatusOr<AccessList> listIn(const std::string& file) {
    auto list = AccessList::read(file);
    if (absl::IsNotFound(list.status())) return AccessList();
    return list;
}

/// Held from before the list is read until it was written: two who change it take turns.
absl::StatusOr<UniqueFd> hold(const std::string& file) {
    const fs::path folder = fs::absolute(file).parent_path();
    std::error_code ignored;
    fs::create_directories(folder, ignored);
    return holdFolder(folder.string());
}

absl::Status keep(const AccessList& list, const std::string& file) {
    // Read back first: what is written must be what a daemon can read.
    if (auto read = AccessList::parse(list.text(), file); !read.ok()) return read.status();
    return writeDurably(diskFiles(), file, list.text());
}

int addPrincipal(const Cli& cli, const AccessOptions& o) {
    const std::string title = concat("Cannot add ", o.principal.name);
    const auto held = hold(o.file);
    if (!held.ok()) return failed(cli, title, held.status());
    auto list = listIn(o.file);
    if (!list.ok()) return failed(cli, title, list.status());
    Principal principal = o.principal;
    principal.role = *enumFromName<access::Role>(o.role);
    if (const Principal* before = list->named(principal.name)) principal.tokens = before->tokens;
    std::string token;
    if (o.token || !o.tokenOut.empty()) {
        token = access::freshToken();
        principal.tokens.push_back(sha256Hex(token));
        if (!o.tokenOut.empty())
            if (auto status = writeDurably(diskFiles(), o.tokenOut, token + "\n"); !status.ok())
                return failed(cli, title, status);
    }
    list->put(principal);
    if (auto status = keep(*list, o.file); !status.ok()) return failed(cli, title, status);
    if (!o.tokenOut.empty()) token.clear();
    model::Json json{{"name", principal.name}, {"role", o.role}, {"file", o.file}};
    if (!token.empty()) json["token"] = token;
    if (!o.tokenOut.empty()) json["token_file"] = o.tokenOut;
    std::string text = concat(principal.name, " is ", o.role,
                              principal.faults ? ", with faults, in " : " in ", o.file);
    if (!token.empty())
        text += concat("\nToken, shown this once (keep it in a file of mode 0600): ", token);
    if (!o.tokenOut.empty()) text += concat("\nToken file: ", o.tokenOut);
    print(cli, json, text);
    return kOk;
}

int removePrincipal(const Cli& cli, const std::string& file, const std::string& name) {
    const std::string title = concat("Cannot remove ", name);
    const auto held = hold(file);
    if (!held.ok()) return failed(cli, title, held.status());
    auto list = listIn(file);
    if (!list.ok()) return failed(cli, title, list.status());
    if (!list->remove(name))
        return failed(cli, title,
                      absl::NotFoundError(
                          concat(file, " names no \"", name, "\"; see bulkheadctl access list")));
    if (auto status = keep(*list, file); !status.ok()) return failed(cli, title, status);
    print(cli, {{"removed", name}, {"file", file}}, concat(name, " is no longer in ", file));
    return kOk;
}

int listPrincipals(const Cli& cli, const std::string& file) {
    const auto list = listIn(file);
    if (!list.ok()) return failed(cli, "Cannot read the access file", list.status());
    std::vector<std::vector<std::string>> rows{
        {"NAME", "ROLE", "FAULTS", "TOKENS", "CERTIFICATE", "EXPIRES"}};
    for (const Principal& p : list->principals()) {
        const std::string role(enumName(p.role));
        if (cli.json)
            print(cli,
                  {{"name", p.name},
                   {"role", role},
                   {"faults", p.faults},
                   {"tokens", p.tokens.size()},
                   {"certificate", p.certificate.empty() ? p.name : p.certificate},
                   {"expires", p.expires}},
                  "");
        rows.push_back({p.name, role, p.faults ? "yes" : "no", std::to_string(p.tokens.size()),
                        p.certificate.empty() ? p.name : p.certificate,
                        p.expires.empty() ? "never" : p.expires});
    }
    if (cli.json) return kOk;
    if (list->principals().empty())
        std::printf("%s names nobody; add someone with bulkheadctl access add\n", file.c_str());
    else
        std::printf("%s", table(rows).c_str());
    return kOk;
}

void addAccessVerbs(CLI::App& app, Cli& cli) {
    CLI::App* all =
        app.add_subcommand("access", "People and programs that may call a daemon on TCP");
    all->require_subcommand(1);
    auto o = std::make_shared<AccessOptions>();
    o->file = defaultStateDir() + "/access.toml";
    all->add_option("--access", o->file, "the daemon's access file")->capture_default_str();
    CLI::App* verb = all->add_subcommand("list", "Who is in it");
    verb->callback([&cli, o] { cli.chosen = [&cli, o] { return listPrincipals(cli, o->file); }; });
    verb = all->add_subcommand("add", "Add somebody, or change what they may do");
    verb->add_option("name", o->principal.name, "letters, digits, dots, dashes, underscores")
        ->required();
    verb->add_option("--role", o->role,
                     "viewer looks, operator changes jobs, admin reads the audit")
        ->check(CLI::IsMember({"viewer", "operator", "admin"}))
        ->capture_default_str();
    verb->add_flag("--faults", o->principal.faults, "may inject faults and start campaigns");
    verb->add_option("--expires", o->principal.expires, "a day, 2027-01-31; from then on refused");
    verb->add_option("--certificate", o->principal.certificate,
                     "common name in the certificate [NAME]");
    verb->add_flag("--token", o->token, "make a token and print it, once");
    verb->add_option("--token-out", o->tokenOut, "make a token and write it to this file");
    verb->callback([&cli, o] { cli.chosen = [&cli, o] { return addPrincipal(cli, *o); }; });
    verb = all->add_subcommand("remove", "Refuse somebody from now on");
    verb->add_option("name", o->principal.name, "who")->required();
    verb->callback([&cli, o] {
        cli.chosen = [&cli, o] { return removePrincipal(cli, o->file, o->principal.name); };
    });
}

// --- certs --------------------------------------------------------------------------------------

struct CertsOptions {
    std::string authority;
    std::string name;
    std::vector<std::string> hosts;
    std::string folder;
    int days = 365;
};

model::Json jsonOf(const Certificate& c) {
    return {{"name", c.name},
            {"hosts", c.hosts},
            {"serial", c.serial},
            {"starts_s", c.startsS},
            {"ends_s", c.endsS}};
}

std::string wordsOf(const Certificate& c) {
    return concat(c.name, c.hosts.empty() ? "" : " for ", model::joined(c.hosts), ", serial ",
                  c.serial, ", until ", dateTime(c.endsS * kSecondNs));
}

int initAuthority(const Cli& cli, const CertsOptions& o) {
    const auto made =
        Authority::init(o.authority, o.name.empty() ? "Bulkhead authority" : o.name, nowS());
    if (!made.ok()) return failed(cli, "No authority was made", made.status());
    print(cli, {{"authority", o.authority}},
          concat("The authority is in ", o.authority,
                 ". Its ca.key signs certificates: keep a copy where nobody else can read it."));
    return kOk;
}

int issue(const Cli& cli, const CertsOptions& o) {
    const std::string title = concat("No certificate for ", o.name);
    const auto authority = Authority::open(o.authority);
    if (!authority.ok()) return failed(cli, title, authority.status());
    const auto made = authority->issue(o.name, o.hosts, o.days, nowS(), o.folder);
    if (!made.ok()) return failed(cli, title, made.status());
    print(cli, jsonOf(*made), concat(wordsOf(*made), "\nFolder for --certs: ", o.folder));
    return kOk;
}

int renew(const Cli& cli, const CertsOptions& o) {
    const std::string title = concat("Cannot renew ", o.folder);
    const auto authority = Authority::open(o.authority);
    if (!authority.ok()) return failed(cli, title, authority.status());
    const auto made = authority->renew(o.days, nowS(), o.folder);
    if (!made.ok()) return failed(cli, title, made.status());
    print(cli, jsonOf(*made), concat(wordsOf(*made), "\nA daemon takes it without a restart."));
    return kOk;
}

int revoke(const Cli& cli, const CertsOptions& o) {
    const std::string title = concat("Cannot revoke ", o.name);
    const auto authority = Authority::open(o.authority);
    if (!authority.ok()) return failed(cli, title, authority.status());
    const auto gone = authority->revoke(o.name, nowS());
    if (!gone.ok()) return failed(cli, title, gone.status());
    if (cli.json)
        for (const Certificate& c : *gone) print(cli, jsonOf(c), "");
    else if (gone->empty())
        std::printf("All certificates of %s were revoked before.\n", o.name.c_str());
    for (const Certificate& c : *gone)
        if (!cli.json) std::printf("Revoked: %s\n", wordsOf(c).c_str());
    if (!cli.json)
        std::printf(
            "Copy %s/crl.pem into the --certs folder of each daemon; no restart is needed.\n",
            o.authority.c_str());
    return kOk;
}

int listCertificates(const Cli& cli, const CertsOptions& o) {
    const std::string title = "Cannot list certificates";
    const auto authority = Authority::open(o.authority);
    if (!authority.ok()) return failed(cli, title, authority.status());
    const auto all = authority->issued();
    if (!all.ok()) return failed(cli, title, all.status());
    const auto revoked = authority->revoked();
    if (!revoked.ok()) return failed(cli, title, revoked.status());
    std::vector<std::vector<std::string>> rows{{"NAME", "HOSTS", "UNTIL", "STATE", "SERIAL"}};
    for (const Certificate& c : *all) {
        const bool gone = std::ranges::find(*revoked, c.serial) != revoked->end();
        const char* state = gone ? "revoked" : c.endsS <= nowS() ? "expired" : "valid";
        model::Json json = jsonOf(c);
        json["state"] = state;
        if (cli.json) print(cli, json, "");
        rows.push_back({c.name, c.hosts.empty() ? "-" : model::joined(c.hosts),
                        dateTime(c.endsS * kSecondNs), state, c.serial});
    }
    if (!cli.json) std::printf("%s", table(rows).c_str());
    return kOk;
}

int checkFolder(const Cli& cli, const CertsOptions& o) {
    const auto certificate = access::checkCertificates(o.folder, nowS());
    if (!certificate.ok())
        return failed(cli, "These certificates cannot be used", certificate.status());
    print(cli, jsonOf(*certificate), wordsOf(*certificate));
    return kOk;
}

void addCertsVerbs(CLI::App& app, Cli& cli) {
    CLI::App* all = app.add_subcommand("certs", "Certificates for TLS, and an authority for them");
    all->require_subcommand(1);
    auto o = std::make_shared<CertsOptions>();
    o->authority = defaultStateDir() + "/authority";
    all->add_option("--authority", o->authority, "folder of the authority")->capture_default_str();
    const auto chooses = [&cli, o](CLI::App* verb, int (*run)(const Cli&, const CertsOptions&)) {
        verb->callback([&cli, o, run] { cli.chosen = [&cli, o, run] { return run(cli, *o); }; });
    };
    const auto days = [o](CLI::App* verb) {
        verb->add_option("--days", o->days, "valid for so long")
            ->check(CLI::Range(1, 3650))
            ->capture_default_str();
    };
    CLI::App* verb = all->add_subcommand("init", "Make an authority");
    verb->add_option("--name", o->name, "as it is shown in certificates [Bulkhead authority]");
    chooses(verb, initAuthority);
    verb = all->add_subcommand("issue", "A folder of certificates for a person or a daemon");
    verb->add_option("name", o->name, "a principal of the access file, or of a daemon")->required();
    verb->add_option("--host", o->hosts, "a daemon's: host name or IP that callers reach it by");
    verb->add_option("--out", o->folder, "folder to write")->required();
    days(verb);
    chooses(verb, issue);
    verb = all->add_subcommand("renew", "A new certificate for the same name, hosts and key");
    verb->add_option("folder", o->folder, "a folder that issue wrote")->required();
    days(verb);
    chooses(verb, renew);
    verb = all->add_subcommand("revoke", "Refuse a certificate from now on");
    verb->add_option("name", o->name, "a name, for all of its certificates, or a serial number")
        ->required();
    chooses(verb, revoke);
    chooses(all->add_subcommand("list", "What the authority has issued"), listCertificates);
    verb = all->add_subcommand("check", "Can this folder be used with --certs, and until when?");
    verb->add_option("folder", o->folder, "with ca.pem, cert.pem and key.pem")->required();
    chooses(verb, checkFolder);
}

// --- audit --------------------------------------------------------------------------------------

struct AuditOptions {
    model::AuditQuery query;
    std::string file;
};

client::Result<model::AuditPage> pageOf(const Cli& cli, const AuditOptions& o) {
    if (!o.file.empty()) {
        const auto log = access::AuditLog::openForReading(o.file);
        const auto page = log.ok() ? (*log)->read(o.query) : log.status();
        if (!page.ok())
            return localFailure(codeOf(page.status()), "Cannot read the audit",
                                std::string(page.status().message()));
        return *page;
    }
    auto session = Session::open(cli);
    if (!session.ok()) return session.failure();
    return session.value()->await<model::AuditPage>(
        [&](client::Client& c, auto reply) { c.readAudit(o.query, std::move(reply)); });
}

struct JsonWriter {
    model::Json& json;
    template <class T>
    void operator()(std::string_view name, const T& value) {
        json[std::string(name)] = value;
    }
};

int audit(const Cli& cli, const AuditOptions& o) {
    const auto page = pageOf(cli, o);
    if (!page.ok()) return fail(cli, page.failure());
    std::vector<model::AuditEntry> entries = page.value().entries;
    // Asked for from the end, shown in order.
    if (o.query.newestFirst) std::ranges::reverse(entries);
    std::vector<std::vector<std::string>> rows{
        {"TIME", "WHO", "BY", "FROM", "CALL", "JOB", "REVISION", "OUTCOME"}};
    for (const model::AuditEntry& e : entries) {
        if (cli.json) {
            model::Json json = model::Json::object();
            JsonWriter writer{json};
            model::AuditEntry::fields(e, writer);
            std::printf("%s\n", model::dumpJson(json).c_str());
        }
        std::string outcome = e.outcome;
        if (!e.message.empty()) outcome += ": " + e.message;
        if (e.repeated > 0) outcome += concat(" (and ", e.repeated, " more)");
        rows.push_back(
            {dateTime(e.timeNs), e.principal.empty() ? "-" : concat(e.principal, " (", e.via, ")"),
             e.by.empty() ? "-" : e.by, e.peer, e.call, e.object.empty() ? "-" : e.object,
             e.revision == 0 ? "-" : concat(e.revision), outcome});
    }
    if (!cli.json) std::printf("%s", table(rows).c_str());
    if (!o.query.check) return kOk;
    const model::AuditPage& all = page.value();
    const bool whole = all.brokenAt == 0;
    if (cli.json)
        print(cli, {{"entries", all.total}, {"head", all.head}, {"broken_at", all.brokenAt}}, "");
    else if (whole)
        std::printf("%llu entries, the chain holds; last hash %s\n",
                    static_cast<unsigned long long>(all.total), all.head.c_str());
    else
        std::printf(
            "The chain breaks at entry %llu of %llu: it was changed, or entries are missing\n",
            static_cast<unsigned long long>(all.brokenAt),
            static_cast<unsigned long long>(all.total));
    return whole ? kOk : kRunFailed;
}

void addAuditVerb(CLI::App& app, Cli& cli) {
    auto o = std::make_shared<AuditOptions>();
    o->query.limit = 50;
    CLI::App* verb = app.add_subcommand("audit", "Who asked a daemon for what; for administrators");
    verb->add_option("--from", o->query.fromSeq, "from this entry on [the last ones]");
    verb->add_option("--limit", o->query.limit, "at most so many")->capture_default_str();
    verb->add_flag("--check", o->query.check, "compute the chain of hashes anew");
    verb->add_option("--file", o->file, "a copy of a daemon's audit.db, instead of the daemon");
    verb->callback([&cli, o] {
        o->query.newestFirst = o->query.fromSeq == 0;
        cli.chosen = [&cli, o] { return audit(cli, *o); };
    });
}

}  // namespace

void addAccess(CLI::App& app, Cli& cli) {
    addAccessVerbs(app, cli);
    addCertsVerbs(app, cli);
    addAuditVerb(app, cli);
}

}  // namespace bulkhead::cli
