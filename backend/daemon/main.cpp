// SPDX-License-Identifier: Apache-2.0
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "backend/daemon/roles.h"

int main(int argc, char** argv) {
    using namespace bulkhead::daemon;
    const Parsed parsed = parse(argc, argv);
    if (!parsed.goOn) return parsed.exitCode;
    const Options& options = parsed.options;
    spdlog::set_default_logger(spdlog::stderr_logger_mt("bulkheadd"));
    spdlog::set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
    const Report report(options.readyFd);
    if (!options.run.empty()) return serveRun(options, report);
    if (options.role == "controller") return runController(options, report);
    if (options.role == "agent") return runAgent(options, report);
    return supervise(options, report);
}
