// SPDX-License-Identifier: Apache-2.0
#include "backend/daemon/options.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>

#include "backend/common/file_system.h"
#include "backend/daemon/report.h"
#include "backend/model/names.h"
#include "backend/model/toml_reader.h"

namespace bulkhead::daemon {
namespace {

namespace fs = std::filesystem;

std::string defaultStateDir() {
    if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && *state != '\0')
        return std::string(state) + "/bulkhead";
    const char* home = std::getenv("HOME");
    return std::string(home != nullptr ? home : "/tmp") + "/.local/state/bulkhead";
}

void absolute(std::string& path) {
    if (!path.empty()) path = fs::absolute(path).lexically_normal().string();
}

std::string hostName() {
    char name[256] = "";
    (void)::gethostname(name, sizeof name - 1);
    return name;
}

/// NAME or PREFIX*; "*" is every variable.
bool isVariable(std::string_view name) {
    if (name.ends_with('*'))
        name.remove_suffix(1);
    else if (name.empty())
        return false;
    return std::all_of(name.begin(), name.end(),
                       [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
}

/// Ranks of nodes that share a host find each other at its loopback address.
bool isOnThisHost(const std::string& address) {
    return address.empty() || address.starts_with("unix:") || address.starts_with("127.") ||
           address.starts_with("[::1]") || address.starts_with("localhost:");
}

bool isHostPort(const std::string& text) {
    const size_t colon = text.rfind(':');
    if (colon == std::string::npos || colon == 0) return false;
    const std::string port = text.substr(colon + 1);
    return !port.empty() && port.size() <= 5 &&
           std::ranges::all_of(port, [](unsigned char c) { return std::isdigit(c) != 0; });
}

/// The options of a file as arguments, without those that the command line has.
absl::StatusOr<std::vector<std::string>> fromFile(const std::string& file, const CLI::App& app) {
    constexpr uint64_t kMostBytes = 1 << 20;
    const auto text = readAtMost(file, kMostBytes);
    if (!text.ok()) return text.status();
    toml::table table;
    if (absl::Status status = model::parseToml(*text, file, table); !status.ok()) return status;
    std::vector<std::string> names;  // hidden options and the way to this file are none of them
    for (const CLI::Option* option : app.get_options())
        if (!option->get_group().empty() && !option->get_lnames().empty())
            names.push_back(option->get_lnames().front());
    std::erase_if(names, [](const std::string& name) {
        return name == "help" || name == "version" || name == "config" || name.ends_with("-fd");
    });
    model::TomlReader reader(file);
    std::vector<std::string> out;
    for (const auto& [key, node] : table) {
        const std::string name(key.str());
        if (std::find(names.begin(), names.end(), name) == names.end()) {
            const std::vector<std::string_view> known(names.begin(), names.end());
            reader.failAt(key.source(),
                          model::concat(name, ": no such option", model::hintFor(name, known)));
            return reader.status();
        }
        const CLI::Option* option = app.get_option("--" + name);
        if (option->count() > 0) continue;
        const bool isFlag = option->get_expected_max() == 0;
        const auto add = [&](const toml::node& value) {
            if (const auto* string = value.as_string(); string && !isFlag)
                out.push_back(model::concat("--", name, "=", string->get()));
            else if (const auto* number = value.as_integer(); number && !isFlag)
                out.push_back(model::concat("--", name, "=", number->get()));
            else if (const auto* flag = value.as_boolean(); flag && isFlag)
                out.push_back(model::concat("--", name, "=", flag->get() ? "true" : "false"));
            else
                reader.failAt(value.source(),
                              model::concat(name, ": expected ",
                                            isFlag ? "true or false" : "a string or whole number"));
        };
        if (const toml::array* array = node.as_array(); array && option->get_expected_max() > 1)
            for (const toml::node& value : *array) add(value);
        else
            add(node);
        if (reader.failed()) return reader.status();
    }
    return out;
}

}  // namespace

Parsed parse(int argc, char** argv) {
    Parsed out;
    Options& o = out.options;
    const auto refuse = [&out](const std::string& why) {
        std::fprintf(stderr, "bulkheadd: %s\n", why.c_str());
        out.exitCode = kBadStart;
        return out;
    };
    CLI::App app{"The Bulkhead daemon: runs jobs, keeps their history, serves consoles."};
    app.set_version_flag("--version", std::string(BULKHEAD_VERSION));
    app.add_option("--role", o.role, "controller, agent, or both under a supervisor (all)")
        ->check(CLI::IsMember({"controller", "agent", "all"}))
        ->capture_default_str();
    std::string config;
    app.add_option("--config", config,
                   "TOML file with options, a line NAME = VALUE each; the command line wins");
    app.add_option("--state-dir", o.stateDir, "jobs, sockets, tokens [~/.local/state/bulkhead]");
    app.add_option("--socket", o.socket, "Unix socket for consoles [STATE-DIR/bulkhead.sock]");
    app.add_option("--listen", o.listen, "also TCP, host:port or port (loopback)");
    app.add_option("--token-file", o.tokenFile,
                   "token of an administrator on TCP; made if not there");
    app.add_option("--access", o.access, "who else may call on TCP [STATE-DIR/access.toml]");
    app.add_option(
        "--certs", o.certs,
        "folder with ca.pem, cert.pem and key.pem: TCP is TLS [STATE-DIR/certs, if there]");
    app.add_option("--allow", o.allow,
                   "programs, plugins and paths that jobs may use [STATE-DIR/allow.toml; without "
                   "that file: all]");
    app.add_flag("--insecure", o.insecure, "TCP beyond this machine without TLS");
    app.add_option("--db", o.db, "history file [STATE-DIR/runs.db]");
    app.add_option("--history-keep", o.historyKeep,
                   "days after which the history of an ended run goes, unless its folder below "
                   "STATE-DIR/jobs is still there [for good]")
        ->check(CLI::Range(1, 36500));
    app.add_option("--run", o.run, "serve this run file, read-only, without jobs");
    app.add_option("--jobs", o.jobs,
                   "with --run: where its runs have their folders, to hold its ledgers against "
                   "their commit logs [FILE.state/jobs, or jobs beside FILE]");
    app.add_option("--job", o.job, "start the job of this file");
    app.add_option("--worker", o.worker, "path of bulkhead-worker [beside this program]");
    app.add_option("--inherit", o.inherit,
                   "variables of the agent's environment that ranks have too, beside those that "
                   "docs/security.md lists: NAME or PREFIX* [none; with --private: all]");
    app.add_option("--agents", o.agents,
                   "role all: nodes to stand up on this machine [1]; 0: a controller alone")
        ->check(CLI::Range(0, 64));
    app.add_option("--node", o.node,
                   "name of this node, or of a controller with --etcd [the host's name]");
    app.add_option(
        "--address", o.address,
        "role agent: host name or IP at which other nodes reach its ranks [127.0.0.1, if "
        "the controller is on this host]");
    app.add_option("--controller", o.controllers,
                   "role agent: unix:/path or host:port; repeat it for each controller that may "
                   "lead [STATE-DIR/control.sock]");
    app.add_option("--etcd", o.etcd,
                   "role controller: host:port of each member of an etcd in which controllers with "
                   "one state directory agree who leads; the others stand by");
    app.add_option("--etcd-certs", o.etcdCerts,
                   "folder with ca.pem, cert.pem and key.pem for etcd [plain text]");
    app.add_option("--control-listen", o.controlListen,
                   "role controller: also listen for agents on ip:port; ranks connect where their "
                   "agent did");
    app.add_option(
        "--control-token", o.controlToken,
        "file with the controller's secret, which agents need too [STATE-DIR/control.token]");
    app.add_option("--agent-key", o.agentKey,
                   "role agent: file with the key of its node, instead of --control-token");
    app.add_option("--print-agent-key", o.printAgentKey,
                   "print the key of this node's agent, for --agent-key, and end");
    app.add_flag("--new-secret", o.newSecret,
                 "the controller's secret may be new although runs have not ended: their ranks are "
                 "given up");
    app.add_option("--slots", o.slots, "processes a node runs at most")->capture_default_str();
    app.add_option(
        "--gpus", o.gpus,
        "GPUs that a node gives to ranks, one each: all, none, indices or UUIDs with "
        "commas between, or i/n, the i-th of n parts, of those that CUDA_VISIBLE_DEVICES leaves "
        "[all, or a part by --agents]");
    app.add_option("--on-term", o.onTerm,
                   "on SIGTERM, SIGINT, SIGHUP: leave the jobs running for the next controller, or "
                   "stop them with a checkpoint [leave for role controller, else stop]")
        ->check(CLI::IsMember({"leave", "stop"}));
    app.add_option("--log-format", o.logFormat, "text, or json: an object a line")
        ->check(CLI::IsMember({"text", "json"}))
        ->capture_default_str();
    app.add_flag("--private", o.isPrivate, "for one user: a client may end it");
    app.add_flag("--supervised", o.supervised)->group("");
    app.add_option("--ready-fd", o.readyFd, "tell on this descriptor when it serves");
    app.add_option("--life-fd", o.lifeFd,
                   "end, as on SIGTERM, when this descriptor is closed elsewhere");
    app.footer("Exit codes: 0 ended as asked, 1 failed while running, 2 could not start.");
    try {
        app.parse(argc, argv);
        if (!config.empty()) {
            const auto more = fromFile(config, app);
            if (!more.ok()) return refuse(std::string(more.status().message()));
            std::vector<std::string> all(argv + 1, argv + argc);
            all.insert(all.end(), more->begin(), more->end());
            std::reverse(all.begin(), all.end());  // as CLI11 takes a vector
            o = Options();
            app.parse(std::move(all));
        }
    } catch (const CLI::ParseError& e) {
        const bool asked = e.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success);
        if (asked) app.exit(e);
        if (!asked) std::fprintf(stderr, "bulkheadd: %s; see bulkheadd --help\n", e.what());
        out.exitCode = asked ? kOk : kBadStart;
        return out;
    }
    if (o.stateDir.empty()) o.stateDir = defaultStateDir();
    // The name was node0 once: whoever ran here under it finds its ranks again.
    if (o.role == "agent" && app.count("--node") == 0)
        o.node = fs::exists(o.stateDir + "/agents/node0") ? "node0" : hostName();
    if (!o.etcd.empty() && app.count("--node") == 0) o.node = hostName();
    if (!o.etcd.empty() && (o.role != "controller" || o.controlListen.empty()))
        return refuse(
            "--etcd: a controller that may stand by needs --role controller, and --control-listen "
            "ip:port, which agents are given with --controller");
    if (!o.etcd.empty() && !o.job.empty())
        return refuse(
            "--job: not with --etcd, where each controller that comes to lead would start "
            "it again; start it by bulkheadctl start");
    for (const std::string& member : o.etcd)
        if (!isHostPort(member))
            return refuse("--etcd: expected host:port, found \"" + model::printable(member) + "\"");
    for (const auto& [option, node] :
         {std::pair{"--node", o.node}, {"--print-agent-key", o.printAgentKey}})
        if (!model::isFileName(node) && (app.count(option) > 0 || !node.empty()))
            return refuse(std::string(option) + ": expected " + std::string(model::kFileNameRule) +
                          ", found \"" + model::printable(node) + "\"");
    for (const std::string& controller : o.controllers)
        if (o.role == "agent" && o.address.empty() && !isOnThisHost(controller))
            return refuse("--address: missing; the controller at " + model::printable(controller) +
                          " may be on another host: name the host name or IP at which other nodes "
                          "reach this one");
    for (std::string* path : {&o.stateDir, &o.socket, &o.db, &o.run, &o.jobs, &o.job, &o.tokenFile,
                              &o.access, &o.certs, &o.allow, &o.agentKey, &o.etcdCerts})
        absolute(*path);
    for (const std::string& name : o.inherit)
        if (!isVariable(name))
            return refuse("--inherit: expected the name of a variable or PREFIX*, found \"" +
                          model::printable(name) + "\"; repeat the option for each");
    if (o.inherit.empty() && o.isPrivate) o.inherit = {"*"};
    if (o.onTerm.empty()) o.onTerm = o.role == "controller" && !o.isPrivate ? "leave" : "stop";
    if (o.socket.empty()) o.socket = o.stateDir + "/bulkhead.sock";
    if (o.access.empty()) o.access = o.stateDir + "/access.toml";
    if (o.allow.empty()) o.allow = o.stateDir + "/allow.toml";
    if (o.certs.empty() && fs::exists(o.stateDir + "/certs/cert.pem"))
        o.certs = o.stateDir + "/certs";
    if (o.db.empty()) o.db = o.stateDir + "/runs.db";
    if (o.controlToken.empty()) o.controlToken = o.stateDir + "/control.token";
    if (o.controllers.empty()) o.controllers = {"unix:" + o.controlSocket()};
    if (o.address.empty()) o.address = "127.0.0.1";
    out.goOn = true;
    return out;
}

}  // namespace bulkhead::daemon
