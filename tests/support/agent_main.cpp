// SPDX-License-Identifier: Apache-2.0
// An agent as a process of its own, so that a test can kill a node for real.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "backend/runtime/agent/agent.h"

int main(int argc, char** argv) {
    if (argc != 8) {
        std::fprintf(stderr, "usage: %s NODE ADDRESS SLOTS CONTROLLER TOKEN RUN_DIR GPUS\n",
                     argv[0]);
        return 2;
    }
    bulkhead::runtime::AgentOptions options;
    options.node = argv[1];
    options.address = argv[2];
    options.slots = static_cast<uint32_t>(std::atoi(argv[3]));
    options.controllers = {argv[4]};
    options.key =
        bulkhead::Secret::ofText(argv[5]).derive(bulkhead::runtime::agentIdentity(options.node));
    options.runDir = argv[6];
    options.gpus = argv[7];
    const bulkhead::SystemClock clock;
    auto agent = bulkhead::runtime::Agent::create(std::move(options), clock);
    if (!agent.ok()) {
        std::fprintf(stderr, "%s\n", std::string(agent.status().message()).c_str());
        return 1;
    }
    const absl::Status result = (*agent)->run();
    if (!result.ok()) std::fprintf(stderr, "%s\n", std::string(result.message()).c_str());
    return result.ok() ? 0 : 1;
}
