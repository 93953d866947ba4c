// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "backend/daemon/agent_key.h"
#include "backend/daemon/programs.h"
#include "backend/daemon/roles.h"
#include "backend/daemon/signals.h"
#include "backend/runtime/agent/agent.h"
#include "backend/runtime/transport/address.h"
#include "backend/service/gate.h"

namespace bulkhead::daemon {
namespace {

constexpr int kLookMs = 200;
/// With so many attempts every name that anybody will be able to resolve has been.
constexpr int kLooks = 50;

/// Their addresses; empty when a signal came before one was known. One whose name cannot be
/// resolved is left out after a while if another is known.
std::vector<std::string> resolveControllers(const Options& options, Signals& signals) {
    for (int look = 0;; ++look) {
        std::vector<std::string> known;
        for (const std::string& name : options.controllers) {
            auto address = runtime::resolveHost(name);
            if (address.ok()) known.push_back(*std::move(address));
            if (address.ok() || (look != 0 && look != kLooks)) continue;
            spdlog::warn("agent {}: --controller: {}; {}", options.node,
                         std::string(address.status().message()),
                         look == 0 ? "it is tried again" : "it is left out until the next start");
        }
        if (known.size() == options.controllers.size()) return known;
        if (look >= kLooks && !known.empty()) return known;
        if (signals.next(kLookMs) != 0) return {};
    }
}

}  // namespace

int printAgentKey(const Options& options, Report report) {
    const auto token = service::loadToken(options.controlToken);
    if (!token.ok()) return report.failed(token.status());
    std::printf("%s\n", agentKeyText(*token, options.printAgentKey).c_str());
    return kOk;
}

int runAgent(const Options& options, Report report) {
    Signals signals({SIGTERM, SIGINT});
    const std::string& file = options.agentKey.empty() ? options.controlToken : options.agentKey;
    auto token = service::loadToken(file);
    // The controller makes it, or somebody copies it here.
    if (absl::IsNotFound(token.status()))
        spdlog::warn("agent {}: waits for {} at {}; copy it there from where the controller runs",
                     options.node, options.agentKey.empty() ? "the controller's secret" : "its key",
                     file);
    for (; absl::IsNotFound(token.status()); token = service::loadToken(file))
        if (signals.next(kLookMs) != 0) return kOk;
    if (!token.ok()) return report.failed(token.status());
    const absl::StatusOr<Secret> key = options.agentKey.empty()
                                           ? agentKey(*token, options.node)
                                           : parseAgentKey(*token, options.node);
    if (!key.ok())
        return report.failed(
            absl::Status(key.status().code(), file + ": " + std::string(key.status().message())));
    const auto address = runtime::resolveHost(options.address);
    if (!address.ok())
        return report.failed(absl::Status(address.status().code(),
                                          "--address: " + std::string(address.status().message())));
    const auto controllers = resolveControllers(options, signals);
    if (controllers.empty()) return kOk;
    const SystemClock clock;
    runtime::AgentOptions wanted;
    wanted.node = options.node;
    wanted.address = *address;
    wanted.slots = options.slots;
    wanted.gpus = options.gpus;
    wanted.controllers = controllers;
    wanted.key = *key;
    wanted.worker = workerOf(options);
    wanted.inherited = options.inherit;
    auto allow = model::readAllowList(options.allow);
    if (!allow.ok()) return report.failed(allow.status());
    wanted.allow = *std::move(allow);
    wanted.allowFile = options.allow;
    wanted.runDir = options.stateDir + "/agents/" + options.node;
    std::error_code ignored;
    std::filesystem::create_directories(options.stateDir + "/agents", ignored);
    auto agent = runtime::Agent::create(std::move(wanted), clock);
    if (!agent.ok()) return report.failed(agent.status());
    report.ready();
    std::atomic<bool> over{false};
    absl::Status ended;
    std::thread serving([&] {
        ended = (*agent)->run();
        over = true;
    });
    while (!over && signals.next(kLookMs) == 0) {
    }
    (*agent)->stop();
    serving.join();
    if (ended.ok()) return kOk;
    spdlog::error("agent {}: {}", options.node, std::string(ended.message()));
    return report.failed(ended);
}

}  // namespace bulkhead::daemon
