// SPDX-License-Identifier: Apache-2.0
#include "backend/cli/confirm.h"

#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "backend/cli/cli.h"

namespace bulkhead::cli {

void printPreflight(const model::Preflight& p) {
    std::fprintf(stderr, "%s\n  %s\n", p.title.c_str(),
                 p.allowed ? p.effect.c_str() : p.refusal.c_str());
    const bool changes = p.contributorsBefore != p.contributorsAfter ||
                         p.samplesBefore != p.samplesAfter || p.lrFactorBefore != p.lrFactorAfter;
    if (!p.allowed || !changes) return;
    std::fprintf(
        stderr, "  contributors %u -> %u, samples a step %llu -> %llu, LR factor %.3g -> %.3g%s\n",
        p.contributorsBefore, p.contributorsAfter, static_cast<unsigned long long>(p.samplesBefore),
        static_cast<unsigned long long>(p.samplesAfter), p.lrFactorBefore, p.lrFactorAfter,
        p.pauses ? ", and the job waits: fewer than min_replicas remain" : "");
}

bool confirmed(bool yes) {
    if (yes) return true;
    if (::isatty(STDIN_FILENO) == 0 || ::isatty(STDERR_FILENO) == 0) return false;
    std::fprintf(stderr, "Go ahead? [y/N] ");
    std::string answer;
    std::getline(std::cin, answer);
    return answer == "y" || answer == "Y" || answer == "yes";
}

client::Failure notAllowed(const model::Preflight& p) {
    return localFailure(client::FailureCode::kRefused, p.title, p.refusal);
}

client::Failure notConfirmed(const model::Preflight& p) {
    return {client::FailureCode::kRefused, p.title, "Nobody confirmed it.",
            "Add --yes to go ahead without being asked.", false};
}

}  // namespace bulkhead::cli
