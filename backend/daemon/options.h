// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace bulkhead::daemon {

struct Options {
    std::string role = "all";
    std::string stateDir;             ///< absolute
    std::string socket;               ///< default <state-dir>/bulkhead.sock
    std::vector<std::string> listen;  ///< TCP, none by default
    std::string tokenFile;
    std::string access;        ///< default <state-dir>/access.toml
    std::string certs;         ///< default <state-dir>/certs, if a certificate lies there
    bool insecure = false;     ///< TCP without TLS beyond this machine
    std::string db;            ///< default <state-dir>/runs.db
    uint32_t historyKeep = 0;  ///< days that the history of an ended run is kept; 0: for good
    std::string run;           ///< serve this file read-only, no jobs
    std::string jobs;          ///< with `run`: folders of its runs, for their commit logs
    std::string job;           ///< start this job file
    /// Variables, or PREFIX*, that ranks have of their agent's environment beside kInherited;
    /// default: all for a private daemon, else none.
    std::vector<std::string> inherit;
    std::string allow;    ///< default <state-dir>/allow.toml
    std::string worker;   ///< path of bulkhead-worker; default beside this program
    uint32_t agents = 1;  ///< role all: nodes on this machine
    std::string node;     ///< of an agent, or of a candidate; default: the host's name
    std::string address;  ///< role agent; default 127.0.0.1, if the controller is on this host
    /// Role agent: where the controller, or each that may lead, listens for agents.
    std::vector<std::string> controllers;
    std::vector<std::string> etcd;  ///< role controller: members that say who leads
    std::string etcdCerts;
    std::vector<std::string> controlListen;  ///< role controller: further addresses for agents
    std::string controlToken;                ///< secret; default <state-dir>/control.token
    std::string agentKey;  ///< role agent: file of its key, in the place of the controller's secret
    std::string printAgentKey;  ///< of this node, and nothing else
    bool newSecret = false;     ///< it may change although runs have not ended
    uint32_t slots = 64;
    std::string gpus = "all";  ///< as runtime::chooseGpus() takes it
    std::string onTerm;  ///< "leave" or "stop": what SIGTERM, SIGINT and SIGHUP do to the jobs
    std::string logFormat = "text";  ///< or "json"
    bool isPrivate = false;
    bool supervised = false;  ///< started by the supervisor, which holds the state's lock
    int readyFd = -1;
    int lifeFd = -1;  ///< closed with the process that made us; a byte on it: we go on without

    std::string auditFile() const { return stateDir + "/audit.db"; }
    std::string controlSocket() const { return stateDir + "/control.sock"; }
};

/// The result of parse(): continue with `options`, or end with `exitCode` (help was printed, or a
/// usage error was reported).
struct Parsed {
    Options options;
    bool goOn = false;
    int exitCode = 0;
};

Parsed parse(int argc, char** argv);

}  // namespace bulkhead::daemon
