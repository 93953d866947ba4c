// SPDX-License-Identifier: Apache-2.0
#include "backend/daemon/options.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>

#include "backend/daemon/report.h"
#include "backend/model/names.h"

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

}  // namespace

Parsed parse(int argc, char** argv) {
    Parsed out;
    Options& o = out.options;
    CLI::App app{"The Bulkhead daemon: runs jobs, keeps their history, serves consoles."};
    app.set_version_flag("--version", std::string(BULKHEAD_VERSION));
    app.add_option("--role", o.role, "controller, agent, or both under a supervisor (all)")
        ->check(CLI::IsMember({"controller", "agent", "all"}))
        ->capture_default_str();
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
    app.add_option("--run", o.run, "serve this run file, read-only, without jobs");
    app.add_option("--jobs", o.jobs,
                   "with --run: where its runs have their folders, to hold its ledgers against "
                   "their commit logs [FILE.state/jobs, or jobs beside FILE]");
    app.add_option("--job", o.job, "start the job of this file");
    app.add_option("--worker", o.worker, "path of bulkhead-worker [beside this program]");
    app.add_option("--agents", o.agents, "role all: nodes to stand up on this machine")
        ->check(CLI::Range(1, 64));
    app.add_option("--node", o.node, "role agent: name of this node")->capture_default_str();
    app.add_option("--address", o.address, "role agent: IP its ranks listen on");
    app.add_option("--controller", o.controller, "role agent: unix:/path or ip:port");
    app.add_option("--control-listen", o.controlListen,
                   "role controller: also listen for agents on ip:port");
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
    app.add_option("--gpus", o.gpus,
                   "GPUs that a node gives to ranks, one each: all, none, indices or UUIDs with "
                   "commas between, or i/n, the i-th of n parts [all, or a part by --agents]");
    app.add_option("--on-term", o.onTerm,
                   "on SIGTERM, SIGINT, SIGHUP: leave the jobs running for the next controller, or "
                   "stop them with a checkpoint [leave for role controller, else stop]")
        ->check(CLI::IsMember({"leave", "stop"}));
    app.add_flag("--private", o.isPrivate, "for one user: a client may end it");
    app.add_flag("--supervised", o.supervised)->group("");
    app.add_option("--ready-fd", o.readyFd, "tell on this descriptor when it serves");
    app.add_option("--life-fd", o.lifeFd,
                   "end, as on SIGTERM, when this descriptor is closed elsewhere");
    app.footer("Exit codes: 0 ended as asked, 1 failed while running, 2 could not start.");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& e) {
        const bool asked = e.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success);
        if (asked) app.exit(e);
        if (!asked) std::fprintf(stderr, "bulkheadd: %s; see bulkheadd --help\n", e.what());
        out.exitCode = asked ? kOk : kBadStart;
        return out;
    }
    for (const auto& [option, node] :
         {std::pair{"--node", o.node}, {"--print-agent-key", o.printAgentKey}})
        if (!model::isFileName(node) && (option == std::string("--node") || !node.empty())) {
            std::fprintf(stderr, "bulkheadd: %s: expected %s, found \"%s\"\n", option,
                         std::string(model::kFileNameRule).c_str(), model::printable(node).c_str());
            out.exitCode = kBadStart;
            return out;
        }
    if (o.stateDir.empty()) o.stateDir = defaultStateDir();
    for (std::string* path : {&o.stateDir, &o.socket, &o.db, &o.run, &o.jobs, &o.job, &o.tokenFile,
                              &o.access, &o.certs, &o.allow, &o.agentKey})
        absolute(*path);
    if (o.onTerm.empty()) o.onTerm = o.role == "controller" && !o.isPrivate ? "leave" : "stop";
    if (o.socket.empty()) o.socket = o.stateDir + "/bulkhead.sock";
    if (o.access.empty()) o.access = o.stateDir + "/access.toml";
    if (o.allow.empty()) o.allow = o.stateDir + "/allow.toml";
    if (o.certs.empty() && fs::exists(o.stateDir + "/certs/cert.pem"))
        o.certs = o.stateDir + "/certs";
    if (o.db.empty()) o.db = o.stateDir + "/runs.db";
    if (o.controlToken.empty()) o.controlToken = o.stateDir + "/control.token";
    if (o.controller.empty()) o.controller = "unix:" + o.controlSocket();
    if (o.address.empty()) o.address = "127.0.0.1";
    out.goOn = true;
    return out;
}

}  // namespace bulkhead::daemon
